"""Repairs the session of a running agent: opens or loads it again, or gives it up."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from supervisor.acp import ConnectionLost
from supervisor.conversations.agent.incarnation import Incarnation
from supervisor.conversations.agent.lifecycle.lifecycle import AgentLifecycle
from supervisor.conversations.agent.shared import Shared
from supervisor.conversations.state.errors import AgentFailure, NotAccepted
from supervisor.conversations.state.state import MemoryLost
from supervisor.conversations.state.turn import Turn
from supervisor.journal.errors import JournalError


class SessionRepair:
    """Repairs the session of one conversation's agent."""

    def __init__(self, shared: Shared, lifecycle: AgentLifecycle) -> None:
        self._lifecycle = lifecycle
        self._sessions = lifecycle.sessions
        self._deadlines = shared.context.deadlines
        self._recorder = shared.recorder
        self._record = shared.record
        self._translator = shared.translator
        self._publisher = shared.publisher
        self._queue = shared.queue
        self._logger = shared.recorder.logger

    async def free_session(
        self, run: Incarnation, turn: Turn, turn_ends: Callable[[float], Awaitable[bool]]
    ) -> None:
        """Free a session whose turn does not end: close and reopen it, else end the process.

        `ensure` does not return the agent before this is done, even if the turn ends first: a prompt in a
        closed session is lost. `turn_ends` waits for the given seconds and returns whether the turn ended.

        Cancellation may leave the session closed; the canceller stops the agent.
        """
        async with self._lifecycle.lock:
            if self._queue.turn is not turn:
                return  # it has just ended; the session can take the next turn
            seconds = self._deadlines.cancel_close
            end = trio.current_time() + seconds
            closed = await self._sessions.close(run, seconds)
            if not (closed and await turn_ends(end - trio.current_time()) and await self.reopen(run)):
                self._logger.warning("cannot close the agent's session; ending its process", pid=run.pid)
                self._lifecycle.drop(run)

    async def load_again(self, run: Incarnation) -> None:
        """Load the session again if the agent no longer finds it (its helper ended, for example). Raises
        AgentFailure, ConnectionLost.

        Cancellation leaves the agent without its session; the canceller stops it.
        """
        async with self._lifecycle.lock:
            self._logger.info("agent does not find its session; loading it again")
            started = await self._sessions.load_again(run)
            self._recorder.emit(self._translator.release())
            self._publisher.refused(started.refused)

    async def reopen(self, run: Incarnation) -> bool:
        """Open the closed session again in the same process. Returns whether that worked."""
        try:
            with trio.fail_after(self._record.agent.acp_startup_timeout):
                started = await self._sessions.reopen(run)
        except (AgentFailure, ConnectionLost, JournalError, trio.TooSlowError) as error:
            self._logger.info("agent did not open its session again", error=str(error))
            return False
        self._lifecycle.touch()
        self._sessions.opened(run, started)
        return True

    def forgotten(self, run: Incarnation, why: str = "the agent does not find its session") -> None:
        """End an incarnation that still does not find its session after loading it again.

        The next one gets a new session and a transcript.
        """
        if self._record.now.remembers:
            self._recorder.apply(MemoryLost(why))
            self._recorder.save()
        self._lifecycle.drop(run)

    async def move(
        self,
        run: Incarnation,
        ask: Callable[[Incarnation], Awaitable[object]],
        refuse: Callable[[], None],
    ) -> None:
        """Move the agent to another event (`ask`); it gets no turn meanwhile.

        `refuse` raises if the conversation must not be moved now; it is called before and after. If the move
        fails halfway, the agent is ended, and the next one gets a transcript, since the agent may remember
        another branch.

        Raises NotAccepted, AgentFailure, what `refuse` raises; then it has not moved.

        Cancellation ends the agent in this way, too.
        """
        async with self._lifecycle.lock:
            refuse()
            try:
                await ask(run)
                # Again: a message may have come while the agent moved.
                refuse()
            except NotAccepted:
                raise
            except BaseException:
                self.forgotten(run, "the agent moved to another event")
                raise
