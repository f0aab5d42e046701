"""What Prometheus is told: the figures of one moment. Values come from their owners; nothing is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from supervisor.conversations.views import Figures


@attrs.frozen(kw_only=True)
class Readings:
    """What the server knows. Seconds and bytes; taken on the event loop, rendered in a thread."""

    version: str
    containment: str
    uptime: float
    sockets: int
    connections: int
    limit_connections: int
    conversations: int
    journal_degraded: bool
    journal_waiting_bytes: int
    agents: Figures


def render(readings: Readings, accept: str) -> tuple[bytes, str]:
    """The exposition and its content type, in a format that an Accept header wants. Blocks; for a thread."""
    # Imported here: most servers are never scraped, and the library brings an HTTP server along.
    from gateway import exposition

    return exposition.render(readings, accept)
