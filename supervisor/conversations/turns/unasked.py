"""Tells that an agent did something without asking, or although the answer was no, in a conversation that
requires a confirmation."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import structlog
import trio

from supervisor.acp import SessionResult
from supervisor.acp.schema import NAME_CHARS, cut
from supervisor.conversations.agent.asking_mode import Found, find
from supervisor.conversations.recording.effects import Recorded
from supervisor.conversations.recording.recorder import Recorder
from supervisor.conversations.recording.tool_calls.call_ids import LateWord, Stopped
from supervisor.conversations.recording.tool_calls.calls import Ending, ToolCallState
from supervisor.conversations.recording.tool_calls.consent import ran, tells_of_refusal
from supervisor.conversations.recording.tool_calls.rejections import named_files
from supervisor.conversations.state.confirmation import CONFIRMATION, asks_a_person
from supervisor.conversations.turns.rejected_files import LOOK_SECONDS, RejectedFiles
from supervisor.events import Message, MessageEvent, SecurityRisk, TextContent, new_event_id
from supervisor.journal.errors import JournalError

log = structlog.get_logger(__name__)

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


HEEDLESS: Final = frozenset({"iac-code"})
"""Agents, by their `agentInfo.name`, that take every option for a yes (iac-code 0.16.0). All others are known
by what they do."""


class Unasked:
    """Looks at each call of one conversation that ends. What only reads is not reported: few agents ask for
    it."""

    def __init__(self, recorder: Recorder, start: Callable[[Callable[[], Awaitable[None]]], object]) -> None:
        """`start`: begins a task of the server's."""
        self._recorder = recorder
        self._start = start
        self._record = recorder.record
        self.standing = False
        """Whether a person allowed something for good, so that the agent need not ask for it again."""
        self.chosen = False
        """Whether a client chose the agent's mode under this policy: that it does not ask is no news then."""
        self.offered: Callable[[], SessionResult | None] = lambda: None
        """Gives what the agent's session offers; None if it has none."""
        self.files = RejectedFiles(recorder.record.start.working_dir)
        self._said_no = self._disregarded = False
        """Whether something was rejected in this turn, and whether the agent did it all the same."""
        self._claims: list[tuple[Stopped, str]] = []
        """Rejected calls that the agent claims to have completed, and what it says of them."""
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
            or not ran(call, ending, after_no=self._said_no)
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
        if kind in kinds or self.chosen:
            return (event,)  # it was reported before, or is what was chosen
        text = (
            f"The agent ran `{title}` without asking, although this conversation requires a confirmation of "
            f"such calls. Ostler can only decide what an agent asks for. {self._advice()} Until it asks for "
            f"a call of the kind `{kind}`, assume that calls of this kind are not confirmed."
        )
        return (event, _message(text))

    def _advice(self) -> str:
        """What would make the agent ask: another mode, if it has one that is known to."""
        mode = self._record.agent.acp_session_mode
        everything = asks_a_person(self._record.confirmation_policy, SecurityRisk.LOW)
        offered = self.offered()
        found = Found(None, False) if offered is None else find(offered, everything=everything)
        if mode and found.settings:
            return (
                f"Its settings keep it in the mode `{cut(mode, NAME_CHARS)}`: without `acp_session_mode` "
                "Ostler chooses what asks. Or configure the agent to ask."
            )
        if found.asks:
            return "Configure the agent to ask: the mode that is known to ask does not ask for such calls."
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

    # -- what was rejected ------------------------------------------------------------------------------

    @property
    def heedless(self) -> bool:
        """Whether the agent takes an option that rejects for a yes, as far as is known."""
        return self._record.heedless or self._record.reported.agent_state.get("acp_agent_name") in HEEDLESS

    def new_turn(self) -> None:
        """Another turn begins."""
        self._said_no = self._disregarded = False
        self._claims.clear()
        self.files.clear()

    def rejected(self, call: ToolCallState) -> None:
        """A call was rejected. Look at `files` before the agent gets the answer."""
        self._said_no = True
        self.files.reject(call.call_id, named_files(call))

    def reported(self, call: Stopped, word: LateWord) -> Sequence[Recorded]:
        """The agent reports a call as completed that was rejected. Some agents do so of calls that they did
        not run; where the call names a file, a look at that shows it."""
        if call.call_id == self._refused:
            return ()
        if self.files.knows(call.call_id) and not call.guessed:
            self._claims.append((call, word.said))
            self._start(self._look_at_once)
            return ()
        return self._claim(call, word.said, done=word.works)

    @property
    def unsure(self) -> bool:
        """Whether a claim waits for a look at its files."""
        return bool(self._claims)

    async def look(self) -> None:
        """Report the claims that wait, as far as LOOK_SECONDS suffice. Raises JournalError.

        Cancellation: those that were not looked at wait on.
        """
        with trio.move_on_after(LOOK_SECONDS):
            while self._claims:
                claim = self._claims[0]
                done = await self.files.changed(claim[0].call_id)
                if claim in self._claims:  # another look may have been faster, and the turn may be over
                    self._claims.remove(claim)
                    self._recorder.emit(self._claim(*claim, done=done))

    async def _look_at_once(self) -> None:
        try:
            with suppress(JournalError):  # what the agent says next meets it, too
                await self.look()
        except Exception:
            # A fault here must not end the server, whose nursery this task is in.
            log.exception("files of a rejected call were not looked at", conversation_id=self._record.id)

    def unlooked(self) -> list[Recorded]:
        """The claims that wait when the turn ends."""
        claims = self._claims.copy()
        self._claims.clear()
        return [event for call, said in claims for event in self._claim(call, said, done=False)]

    def turn_finished(self) -> None:
        """The agent has ended its turn. One that took a no for a yes, and then heeded one, is offered options
        again. Only once: that it heeds `cancelled` does not say what it does with an option."""
        if self._record.heedless and self._said_no and not (self._disregarded or self._record.pardoned):
            self._record.heedless, self._record.pardoned = False, True
            self._recorder.unsaved = True

    def _claim(self, call: Stopped, said: str, *, done: bool) -> Sequence[Recorded]:
        name = call.title or call.kind or "a call"
        if not done and tells_of_refusal(said):
            return ()
        if call.guessed:
            text = (
                f"The agent reports `{name}` as completed. It had asked without saying about what, and "
                "Ostler took the no to be for this call, too."
            )
        elif done:
            self._take_note()
            text = (
                f"The agent reports `{name}` as completed, although it was rejected. "
                "Look at what it has done."
            )
        else:
            text = f"The agent reports `{name}` as completed, which was rejected. Nothing shows that it ran."
        return (_message(f"{text} It says: {cut(said, SAID_CHARS)}" if said else text),)

    def _take_note(self) -> None:
        """The agent did, or tried to do, what was rejected: it takes a no for a yes."""
        self._disregarded = True
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
        self.chosen = False
        known = self._record.reported.agent_state.get(CONFIRMATION, {})
        if UNASKED in known or KINDS in known:
            left = {name: value for name, value in known.items() if name not in (UNASKED, KINDS)}
            self._record.reported.agent_state[CONFIRMATION] = left


def _message(text: str) -> Recorded:
    message = Message(role="assistant", content=(TextContent(text=text),))
    return Recorded(MessageEvent(id=new_event_id(), source="environment", llm_message=message))
