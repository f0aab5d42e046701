"""The cancel ladder: asks an agent to end its turn, then closes its session, then ends its process.

Each step has a deadline; all of them together take less than five seconds. Ostler keeps reading meanwhile:
the events of a cancelled turn are recorded too.
"""

from __future__ import annotations

from functools import partial

import trio

from supervisor.conversations.agent.incarnation import Incarnation
from supervisor.conversations.agent.lifecycle.repair import SessionRepair
from supervisor.conversations.agent.shared import Shared
from supervisor.conversations.state.turn import Turn
from supervisor.conversations.turns.permissions import Permissions
from supervisor.patience import ended_by


class CancelLadder:
    """Sends `session/cancel`, then closes the session and opens it again, then ends the process."""

    def __init__(self, shared: Shared, repair: SessionRepair, permissions: Permissions) -> None:
        self._deadlines = shared.context.deadlines
        self._queue = shared.queue
        self._repair = repair
        self._permissions = permissions
        self._logger = shared.recorder.logger

    def begin(self, turn: Turn, run: Incarnation, nursery: trio.Nursery) -> None:
        """Cancel a turn of an agent whose session is open; the later steps are a task in `nursery`.

        Does nothing for a turn that is being cancelled already.
        """
        assert run.session is not None
        if turn.cancel():
            # Answer first: an agent that waits for a permission may read nothing else.
            self._permissions.cancel()
            run.connection.notify("session/cancel", {"sessionId": run.session.session_id})
            nursery.start_soon(self._climb, turn, run)

    async def _climb(self, turn: Turn, run: Incarnation) -> None:
        if await self._ends_within(turn, self._deadlines.cancel_grace):
            return
        self._logger.warning("agent did not end a cancelled turn in time", pid=run.pid)
        # A new process costs seconds, so it waits for a message or the deadline.
        if not run.closes_sessions:  # all that is left is its process
            await self._ends_before_a_message(turn, self._deadlines.cancel_close)
        # Holds the lifecycle's lock, so that the next message does not meet a session that is being closed.
        await self._repair.free_session(run, turn, partial(self._ends_within, turn))

    async def _ends_before_a_message(self, turn: Turn, seconds: float) -> None:
        """Wait for the end of the turn, until the next message waits for that."""
        async with ended_by(self._queue.more_comes):
            await self._ends_within(turn, seconds)

    async def _ends_within(self, turn: Turn, seconds: float) -> bool:
        settled = self._queue.settled
        with trio.move_on_after(max(0.0, seconds)):  # what is left of a time may be nothing
            while self._queue.turn is turn:
                await settled.wait()
        return self._queue.turn is not turn
