"""What Prometheus is told: the figures of one moment. Values come from their owners; nothing is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from supervisor.conversations.views import Figures


@attrs.frozen(kw_only=True)
class WebhookFigures:
    """What webhooks have done since the start. `waiting`: conversations with something to send, each for each
    receiver."""

    delivered: int
    dropped: int
    failures: int
    waiting: int


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
    webhooks: WebhookFigures | None = None
