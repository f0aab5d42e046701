"""When a server that was started for one conversation is no longer needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import structlog
import trio

from supervisor.machines.errors import DatabaseAway

if TYPE_CHECKING:
    from gateway.api.services import Services

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 1.0
"""Seconds between two looks."""

EMPTY_SECONDS: Final = 60.0
"""Seconds that a new server waits for its conversation: the request that it was started for comes at once."""


async def wait_until_unneeded(services: Services, conversation_id: str, seconds: float) -> None:
    """Return when the conversation is deleted, or nothing has used it for so many seconds: no turn, no
    socket, no command. One that does not come is waited for `EMPTY_SECONDS`."""
    had = False
    used = trio.current_time()
    while True:
        await trio.sleep(LOOK_SECONDS)
        figures = services.supervisor.figures()
        commands = services.bash.running if services.bash is not None else 0
        if figures.turns_running or figures.queued or services.subscribers.total or commands:
            used = trio.current_time()
        idle = trio.current_time() - used
        had = had or bool(figures.conversations_loaded or figures.starts_total)  # it may be gone by now
        if figures.conversations_loaded or (had and await _has(services, conversation_id)):
            if idle >= seconds:
                log.info("this server is not needed: nothing used it", seconds=seconds)
                return
        elif had or idle >= EMPTY_SECONDS:
            log.info("this server is not needed: it has no conversation")
            return


async def _has(services: Services, conversation_id: str) -> bool:
    """Whether there is the conversation, as when its deletion can be undone."""
    assert services.machines is not None
    try:
        return await services.machines.place_of(conversation_id) is not None
    except DatabaseAway:
        return True
