"""The server's figures: a snapshot for Prometheus, and those of the last hour. Their owners count."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
import structlog
import trio

if TYPE_CHECKING:
    from gateway.api.contract import Supervisor
    from supervisor.conversations.views import Figures

log = structlog.get_logger(__name__)

SAMPLE_SECONDS: Final = 10.0
"""How often the history gets a sample: fine enough for a chart of an hour, and no work to speak of."""

SAMPLES: Final = 360
"""An hour of samples, some 100 KiB."""


class History:
    """The figures of the last hour, the oldest first. Nothing is kept before the first conversation."""

    def __init__(self) -> None:
        self.samples: deque[dict[str, Any]] = deque(maxlen=SAMPLES)

    def take(self, figures: Figures) -> None:
        """Add a sample, dated now (seconds since the epoch)."""
        self.samples.append(
            {
                "time": round(time.time(), 1),
                "live_agents": figures.live_agents,
                "starting": figures.starting,
                "queued": figures.queued,
                "hibernated": figures.hibernated,
                "parked": figures.parked,
                "turns_running": figures.turns_running,
                "rss_bytes": figures.rss_bytes,
                "starts_total": figures.starts_total,
                "restarts_total": figures.restarts_total,
                "crashes_total": figures.crashes_total,
                "turns_total": sum(figures.turns_total.values()),
                "tokens": figures.usage["tokens"],
                "costs": figures.usage["costs"],
            }
        )

    async def watch(self, supervisor: Supervisor) -> None:
        """Take samples until it is cancelled."""
        while True:
            try:
                if supervisor.prepared:
                    self.take(supervisor.figures())
            except Exception:  # a chart without a sample is no reason to end the server
                log.exception("figures were not kept")
            await trio.sleep(SAMPLE_SECONDS)


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
    walls: str
    walls_mechanism: str
    uptime: float
    sockets: int
    connections: int
    limit_connections: int
    conversations: int
    journal_degraded: bool
    journal_waiting_bytes: int
    agents: Figures
    webhooks: WebhookFigures | None = None
    servers: Sequence[Mapping[str, Any]] = ()
    """Those over one database, as `GET /api/servers` has them."""
