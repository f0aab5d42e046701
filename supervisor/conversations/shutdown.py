"""The end of all conversations: their turns end or are interrupted, their agents are stopped."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import structlog
import trio

from supervisor.agents.containment.containment import kill_agents
from supervisor.conversations.agent.context import Context
from supervisor.conversations.state.errors import ConversationClosing, ToBeDeleted
from supervisor.journal.errors import JournalError

if TYPE_CHECKING:
    from supervisor.conversations.conversation import Conversation

log = structlog.get_logger(__name__)

DRAIN_LOOK_SECONDS: Final = 0.05
"""Seconds between two checks for running turns while draining."""

SHUTDOWN_SECONDS: Final = 8.0
"""Seconds for stopping all conversations; the rest is then cancelled without recording cancelled turns."""


class Shutdown:
    """Stops the loaded conversations of a server."""

    def __init__(self, context: Context, loaded: Mapping[str, Conversation]) -> None:
        self._context = context
        self._loaded = loaded
        self._hurried = trio.Event()
        self._killing = trio.Event()

    def hurry(self, *, kill: bool = False) -> None:
        """Make `close` stop waiting for turns, also while it runs already.

        With `kill`, it kills the agents first instead of stopping them in order.
        """
        self._hurried.set()
        if kill:
            self._killing.set()

    async def close(self, drain_seconds: float = 0.0) -> None:
        """Let running turns end within a deadline, then stop every agent, all at the same time.

        Turns that last longer are interrupted; their output is kept. Shielded from cancellation, and bounded.
        """
        with trio.CancelScope(shield=True):
            # First: nothing speculative starts while the rest ends.
            self._context.warm_pool.close()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._kill_when_hurried)
                # Before the drain, which would wait for one turn of a goal after another.
                await self._stop_goals()
                with trio.move_on_after(drain_seconds):
                    await self._drained()
                with trio.move_on_after(SHUTDOWN_SECONDS):
                    async with trio.open_nursery() as stopping:
                        for conversation in list(self._loaded.values()):
                            if conversation.active:
                                stopping.start_soon(_close, conversation)
                nursery.cancel_scope.cancel()

    async def _stop_goals(self) -> None:
        """Stop all goals, which would begin one turn after another."""

        async def stop(conversation: Conversation) -> None:
            with suppress(JournalError, ConversationClosing, ToBeDeleted):
                await conversation.stop_goal()

        async with trio.open_nursery() as nursery:
            for conversation in list(self._loaded.values()):
                nursery.start_soon(stop, conversation)

    async def _drained(self) -> None:
        """Wait until no turn is running, or `hurry` is called."""
        # While nothing can be stored, turns do not end.
        while self._context.journal.trouble is None and any(
            conversation.busy and not conversation.outlasting for conversation in self._loaded.values()
        ):
            with trio.move_on_after(DRAIN_LOOK_SECONDS):
                await self._hurried.wait()
                return

    async def _kill_when_hurried(self) -> None:
        await self._killing.wait()
        # Turns are being interrupted by then, so that none is taken for one whose agent crashed.
        await trio.sleep(DRAIN_LOOK_SECONDS)
        while True:
            await kill_agents()
            await trio.sleep(DRAIN_LOOK_SECONDS)


async def _close(conversation: Conversation) -> None:
    """Close one of many conversations: a fault with one must not keep the others from closing."""
    try:
        await conversation.close(leaving=True)
    except Exception:
        log.exception("conversation not closed in order", conversation_id=conversation.id)
