"""Tells that an agent did something without asking, or although the answer was no, in a conversation that
requires a confirmation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from supervisor.acp.schema import NAME_CHARS, cut
from supervisor.conversations.recording.effects import Recorded
from supervisor.conversations.recording.recorder import Recorder
from supervisor.conversations.recording.tool_calls.call_ids import Stopped
from supervisor.conversations.recording.tool_calls.calls import Ending, ToolCallState
from supervisor.conversations.recording.tool_calls.consent import ran, tells_of_refusal
from supervisor.conversations.state.confirmation import CONFIRMATION, asks_a_person
from supervisor.events import Message, MessageEvent, SecurityRisk, TextContent, new_event_id

UNASKED: Final = "unasked"
KINDS: Final = "kinds"
"""Members of the state `confirmation`: the first call that ran unasked, and whether the agent asks for calls
of a kind, for the kinds of which one ran unasked."""

KINDS_MAX: Final = 50
"""Kinds that a state names: the protocol has ten, and an agent may make up more."""

OTHER: Final = "other"
"""The kind of a call that has none."""

SAID_CHARS: Final = 500
"""Characters that are repeated of what an agent says came of a call."""


class Unasked:
    """Looks at each call of one conversation that ends. What only reads is not reported: few agents ask for
    it."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._record = recorder.record
        self.standing = False
        """Whether a person allowed something for good, so that the agent need not ask for it again."""
        self._refused = ""
        """The last call that Ostler refused to carry out."""

    def call_ended(self, call: ToolCallState, ending: Ending) -> Sequence[Recorded]:
        """The events that tell of a call that ran without being asked for: the first one of each kind."""
        if (
            call.asked
            or call.covered
            or self.standing
            or call.risk is SecurityRisk.LOW
            or not asks_a_person(self._record.confirmation_policy, call.risk)
            or not ran(call, ending)
        ):
            return ()
        known = self._record.reported.agent_state.get(CONFIRMATION, {})
        kind = cut(call.kind or OTHER, NAME_CHARS)
        kinds = known.get(KINDS, {})
        if kinds.get(kind) is False or len(kinds) >= KINDS_MAX:
            return ()
        title = cut(call.title or call.tool_name, NAME_CHARS)
        first = {"tool_call_id": call.call_id, "title": title, "tool_kind": call.kind}
        event = self._note({UNASKED: known.get(UNASKED, first), KINDS: {**kinds, kind: False}})
        if kind in kinds:
            return (event,)  # it was reported before
        text = (
            f"The agent ran `{title}` without asking, although this conversation requires a confirmation of "
            f"such calls. Ostler can only decide what an agent asks for. {self._advice()} Until it asks for "
            f"a call of the kind `{kind}`, assume that calls of this kind are not confirmed."
        )
        return (event, _message(text))

    def _advice(self) -> str:
        """What would make the agent ask. Where its settings name no mode, it is in the one that asks, if it
        has one that is known to."""
        mode = self._record.agent.acp_session_mode
        if mode:
            return (
                f"Its settings keep it in the mode `{cut(mode, NAME_CHARS)}`: without `acp_session_mode` "
                "Ostler looks for one that asks. Or configure the agent to ask."
            )
        return "Configure the agent to ask: it offers no mode that is known to ask for such calls."

    def asked(self, kind: str | None) -> Sequence[Recorded]:
        """The agent asks for a call of that kind: so it does ask for these."""
        known = self._record.reported.agent_state.get(CONFIRMATION, {})
        kinds = known.get(KINDS, {})
        kind = cut(kind or OTHER, NAME_CHARS)
        if kinds.get(kind) is not False:
            return ()
        changed: dict[str, Any] = {KINDS: {**kinds, kind: True}}
        if (known.get(UNASKED, {}).get("tool_kind") or OTHER) == kind:
            changed[UNASKED] = None
        return (self._note(changed),)

    def _note(self, changed: Mapping[str, Any]) -> Recorded:
        known = {
            "mode": None,
            "asks": False,
            "set": False,
            **self._record.reported.agent_state.get(CONFIRMATION, {}),
            **changed,
        }
        state = {name: value for name, value in known.items() if value is not None or name != UNASKED}
        self._record.reported.agent_state[CONFIRMATION] = state
        self._recorder.unsaved = True
        return Recorded(self._recorder.state(CONFIRMATION, state))

    def reported(self, call: Stopped, said: str) -> Sequence[Recorded]:
        """The agent reports a call as completed that was rejected, and says this of it. Some agents do so of
        calls that they did not run, and say that."""
        if tells_of_refusal(said) or call.call_id == self._refused:
            return ()
        name = call.title or call.kind or "a call"
        if call.guessed:
            text = (
                f"The agent reports `{name}` as completed. It had asked without saying about what, and "
                "Ostler took the no to be for this call, too."
            )
        else:
            self._take_note()
            text = (
                f"The agent reports `{name}` as completed, although it was rejected. "
                "Look at what it has done."
            )
        return (_message(f"{text} It says: {cut(said, SAID_CHARS)}" if said else text),)

    def _take_note(self) -> None:
        """The agent did, or tried to do, what was rejected: it takes a no for a yes."""
        self._record.heedless = self._recorder.unsaved = True

    def refused(self, what: str, call_id: str, *, written: bool) -> Sequence[Recorded]:
        """Ostler refused to run or write what was rejected, in the call of that id. Reported once each."""
        self._take_note()
        if call_id == self._refused:
            return ()
        self._refused = call_id
        tried = f"write `{what}` through Ostler" if written else f"run `{what}` in a terminal of Ostler's"
        return (_message(f"The agent tried to {tried}, although that was rejected. Ostler refused it."),)

    def forget(self) -> None:
        """The policy is another: what is not confirmed then is reported again."""
        known = self._record.reported.agent_state.get(CONFIRMATION, {})
        if UNASKED in known or KINDS in known:
            left = {name: value for name, value in known.items() if name not in (UNASKED, KINDS)}
            self._record.reported.agent_state[CONFIRMATION] = left


def _message(text: str) -> Recorded:
    message = Message(role="assistant", content=(TextContent(text=text),))
    return Recorded(MessageEvent(id=new_event_id(), source="environment", llm_message=message))
