"""The session of an agent: opened, brought up to date, recorded, closed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from supervisor.acp import AcpError
from supervisor.conversations.agent.incarnation import Incarnation
from supervisor.conversations.agent.launch.plan import Plan
from supervisor.conversations.agent.opening import Started, load_agent, note_session, open_agent
from supervisor.conversations.agent.session_setup import STARTUP_TIMEOUT
from supervisor.conversations.agent.shared import Shared
from supervisor.conversations.state.errors import AgentFailure, NotAccepted
from supervisor.conversations.state.state import SessionOpened


class Sessions:
    """Opens the session of each incarnation. It takes no lock: the caller holds the lifecycle's."""

    def __init__(self, shared: Shared) -> None:
        self._kind = shared.kind
        self._voice = shared.voice
        self._deadlines = shared.context.deadlines
        self._recorder = shared.recorder
        self._record = shared.record
        self._translator = shared.translator
        self._publisher = shared.publisher
        self._logger = shared.recorder.logger
        self._changed: dict[str, Any] = {}
        """Changes of the agent's configuration since its plan was made."""

    def plan_begins(self) -> None:
        """A new plan will have every change so far."""
        self._changed = {}

    def note_change(self, change: Mapping[str, Any], note: Callable[[], None]) -> None:
        """Keep a change for a session that is being opened. `note` writes it to the record."""
        self._changed = {**self._changed, **change}
        note()

    async def open(self, run: Incarnation) -> Started:
        """Open the session, and send the changes since the plan was made. Raises as `open_agent`."""
        started = await open_agent(run, self._record, self._deadlines)
        await self._catch_up(run)
        return started

    async def reopen(self, run: Incarnation) -> Started:
        """Open the closed session again in the same process. Raises as `open`, and JournalError."""
        run.plan = await self.recall(run.plan)
        return await self.open(run)

    async def load_again(self, run: Incarnation) -> Started:
        """Load the session again that the agent no longer finds. Raises as `reopen`."""
        run.plan = await self.recall(run.plan)
        started = await load_agent(run, self._record, self._deadlines)
        await self._catch_up(run)
        return started

    async def recall(self, plan: Plan) -> Plan:
        """Return the plan, with what the log has of the agent's events. Raises JournalError."""
        return await self._kind.recall(plan, self._recorder.log, self._voice)

    def opened(self, run: Incarnation, started: Started) -> None:
        """Record an open session, in the record and in events."""
        # Before the session is recorded: its answers may quote secrets already.
        self._recorder.mask = self._translator.mask = run.plan.mask
        self._voice.new_mask(run.plan.mask)
        session = started.session
        self._recorder.apply(
            SessionOpened(
                session.memory,
                session.session_id,
                cwd=self._record.start.working_dir,
                at=time.time(),
                reason=session.reason,
                disk=run.plan.data_disk,
            )
        )
        note_session(self._record, run, started)
        self._translator.new_session(self._record.now.sessions - 1)
        self._publisher.session(started.session.memory, started.session.reason, self._kind.system_prompt)
        self._publisher.refused(started.refused)
        for key, value in started.states():
            self._recorder.emit(self._translator.state(key, value))

    async def _catch_up(self, run: Incarnation) -> None:
        """Send the agent the changes since its plan was made. Raises AgentFailure."""
        sent: dict[str, Any] = {}
        # Again, as long as clients change something while the agent is being configured.
        while sent != self._changed:
            sent = self._changed
            try:
                await self._kind.configure(run, sent, self._deadlines.option)
            except NotAccepted as error:
                raise AgentFailure(
                    "ACPInitError", str(error), kind="config", user_action="settings"
                ) from error

    async def close(self, run: Incarnation, seconds: float | None = None) -> bool:
        """Send `session/close` if the agent offers it, and wait `seconds` (`Deadlines.close`) at most. Best
        effort; returns whether the agent agreed."""
        if run.session is None or not run.usable or not run.closes_sessions:
            return False
        try:
            await run.connection.request(
                "session/close",
                {"sessionId": run.session.session_id},
                timeout=self._deadlines.close if seconds is None else seconds,
            )
        except AcpError as error:
            self._logger.info("agent did not close its session", error=str(error))
            return False
        return True


def with_last_output(failure: AgentFailure, run: Incarnation) -> AgentFailure:
    """Add the agent's last output to a start failure that is a timeout or has no known cause; leave others
    unchanged.

    The agent may have asked for something on its standard error.
    """
    if failure.code == STARTUP_TIMEOUT or failure.unexplained:
        failure.add_stderr_tail(run.stderr_tail.lines())
    return failure
