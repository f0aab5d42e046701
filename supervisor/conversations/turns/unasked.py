"""Tells that an agent did something without asking, in a conversation that requires a confirmation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from supervisor.acp.schema import NAME_CHARS, cut
from supervisor.conversations.recording.recorder import Recorder
from supervisor.conversations.recording.tool_call_events import Recorded
from supervisor.conversations.recording.tool_calls import Ending, ToolCallState
from supervisor.conversations.state.confirmation import CONFIRMATION, asks_a_person
from supervisor.events import Message, MessageEvent, SecurityRisk, TextContent, new_event_id

UNASKED: Final = "unasked"


class Unasked:
    """Looks at each call of one conversation that ends. What only reads is not told of: few agents ask for
    it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._record = recorder.record
        self.standing = False
        """Whether a person allowed something for good, so that the agent need not ask for it again."""

    def call_ended(self, call: ToolCallState, ending: Ending) -> Sequence[Recorded]:
        """The events that tell of a call that ran without being asked for: the first one of a
        conversation."""
        told = self._record.agent_state.get(CONFIRMATION, {})
        if (
            call.asked
            or call.covered
            or self.standing
            or UNASKED in told
            or ending not in (Ending.COMPLETED, Ending.FAILED)
            or call.risk is SecurityRisk.LOW
            or not asks_a_person(self._record.confirmation_policy, call.risk)
        ):
            return ()
        title = cut(call.title or call.tool_name, NAME_CHARS)
        first = {"tool_call_id": call.call_id, "title": title, "tool_kind": call.kind}
        state = self._record.agent_state[CONFIRMATION] = {
            "mode": None,
            "set": False,
            **told,
            "asks": False,
            UNASKED: first,
        }
        self._recorder.unsaved = True
        text = (
            f"The agent ran `{title}` without asking, although this conversation requires a confirmation "
            "of such calls. Ostler can only decide what an agent asks for. Choose a mode of the agent that "
            "asks (`acp_session_mode`), or configure the agent to ask; until then assume that nothing is "
            "confirmed."
        )
        message = Message(role="assistant", content=(TextContent(text=text),))
        return (
            Recorded(self._recorder.state(CONFIRMATION, state)),
            Recorded(MessageEvent(id=new_event_id(), source="environment", llm_message=message)),
        )

    def forget(self) -> None:
        """The policy is another: what is not confirmed then is told again."""
        told = self._record.agent_state.get(CONFIRMATION, {})
        if UNASKED in told:
            self._record.agent_state[CONFIRMATION] = {k: v for k, v in told.items() if k != UNASKED}
