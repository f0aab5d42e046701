"""Changes an agent while it runs: its model, its mode, its options, the conversation's settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from supervisor.conversations.agent.incarnation import Incarnation
from supervisor.conversations.agent.lifecycle.lifecycle import AgentLifecycle
from supervisor.conversations.agent.opening import session_states
from supervisor.conversations.agent.options import check_room, note_mode, note_option, set_mode, set_option
from supervisor.conversations.agent.session_choices import check_model, set_model
from supervisor.conversations.agent.shared import Shared
from supervisor.conversations.state.errors import AgentFailure


class Reconfiguration:
    """Changes one conversation's agent, between its starts, stops and repairs."""

    def __init__(self, shared: Shared, lifecycle: AgentLifecycle) -> None:
        self._lifecycle = lifecycle
        self._kind = shared.kind
        self._deadlines = shared.context.deadlines
        self._recorder = shared.recorder
        self._record = shared.record
        self._translator = shared.translator

    async def switch_model(self, model: str) -> None:
        """Choose another model: at once if the agent lives, else at its next start.

        Raises NotAccepted, AgentTimeout, AgentFailure; then nothing changed.

        Cancellation may leave the agent changed, but not the record.
        """
        async with self._lifecycle.lock:
            record, run = self._record, self._lifecycle.ready
            if run is not None and run.usable and run.session is not None:
                await set_model(run, model, self._deadlines)
            else:
                check_model(record, model)
            record.agent = attrs.evolve(record.agent, acp_model=model)
            record.reported.current_model = model
            if record.reported.agent_state:
                record.reported.agent_state["acp_current_model_id"] = model

    async def choose(self, run: Incarnation, option_id: str | None, value: str | bool) -> None:
        """Set an option of the open session, or its mode (`option_id` None), and keep it for later sessions.

        Raises NotAccepted, AgentTimeout, AgentFailure; then nothing is kept.

        Cancellation may leave the agent changed, but not the record.
        """
        async with self._lifecycle.lock:
            record, deadlines = self._record, self._deadlines
            if run.session is None or not run.usable:
                raise AgentFailure("ACPAgentExited", "The agent has ended.", retryable=True)
            if option_id is None:
                session = await set_mode(run, str(value), deadlines)
                note_mode(record, session, str(value))
            else:
                check_room(record, option_id)
                session = await set_option(run, option_id, value, deadlines)
                note_option(record, session, option_id, value)
            for key, state in session_states(session):
                self._recorder.emit(self._translator.state(key, state))

    async def configure(self, change: Mapping[str, Any], note: Callable[[], None]) -> None:
        """Send a change to the agent if it runs and accepts changes; an agent that is starting or opening its
        session gets it before its first prompt. `note` writes the change to the record, without a checkpoint
        in between.

        Raises NotAccepted, AgentFailure; then nothing changed.

        Cancellation may leave the agent changed, but not the record.
        """
        runs = self._lifecycle.ready is not None and self._kind.takes_changes
        if not runs:
            self._lifecycle.sessions.note_change(change, note)
            return
        async with self._lifecycle.lock:
            run = self._lifecycle.ready
            if run is not None and run.usable and run.session is not None:
                await self._kind.configure(run, change, self._deadlines.option)
            self._lifecycle.sessions.note_change(change, note)
