"""A snapshot of the figures for Prometheus. Their owners count; nothing is stored here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from supervisor.conversations.views import Figures


@attrs.frozen(kw_only=True)
class WebhookFigures:
    """Webhook figures since the start. `waiting`: pairs of conversation and receiver with events to send."""

    delivered: int
    dropped: int
    failures: int
    waiting: int


@attrs.frozen(kw_only=True)
class Readings:
    """The server's figures, in seconds and bytes; taken on the event loop, rendered in a thread."""

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
