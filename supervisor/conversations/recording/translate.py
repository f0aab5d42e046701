"""Translates an agent's `session/update`s into events, in order. Pure: values in, values out.

Text and thoughts gather in a *segment*. Its id is minted when it opens, and the streamed deltas announce it.
When it closes, it becomes the durable event of that id: a MessageEvent if something follows it (a tool call,
a new message, a turn that did not succeed), or the turn's FinishAction if the turn ends with it. Thoughts go
to `reasoning_content`. A segment of thoughts alone is no message: it stays open during tool calls until an
event that can hold it follows, which is an ActionEvent, a message or the turn's FinishAction. Where none
does, it becomes a ThinkAction.

Tool calls are `calls` (see `tool_calls/calls.py`). The first event of a call is held back while its input
still arrives and, in a conversation that asks a person, until it is known whether this call asks. The caller
bounds that by a timer (`holding`, `release`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import attrs

from supervisor.acp import schema
from supervisor.acp.schema import ID_CHARS, ContentChunk, ToolCall, ToolCallUpdate, short_id
from supervisor.acp.schema.updates import text_of
from supervisor.conversations.recording.agent_states import AgentStates
from supervisor.conversations.recording.bounds.attachments import Originals
from supervisor.conversations.recording.effects import Close, Effect, Recorded
from supervisor.conversations.recording.speech import Response, Speech
from supervisor.conversations.recording.tool_calls.asked import Asked, together
from supervisor.conversations.recording.tool_calls.call_ids import CallIds, LateWord, Stopped
from supervisor.conversations.recording.tool_calls.calls import Ending, ToolCallState
from supervisor.conversations.recording.tool_calls.consent import (
    Inquiry,
    about,
    added,
    judged,
    may_be_meant,
    may_be_meant_too,
    shows_work,
)
from supervisor.conversations.recording.tool_calls.events import (
    DETAILS,
    action_event,
    details_of,
    end_events,
    late_input,
    question_event,
    start_acp,
    start_action,
)
from supervisor.conversations.recording.tool_calls.payloads import OpenPayloads
from supervisor.credentials.masking import NOTHING, Masker
from supervisor.events import RejectionSource, new_event_id

OPEN_CALLS_MAX: Final = 2_000
"""The most open tool calls per turn.

If an agent opens more without closing any, the oldest is closed as interrupted: an agent must not fill the
memory.
"""

TEXT_MEMBERS: Final = 2
"""Members of a block of text that says nothing else: its type and its text."""

OUTPUT_MEMBERS: Final = 3
"""Members of an update that has a shell's output and nothing else: its kind, the call's id, and `_meta`."""

_STOPPED: Final = (Ending.REJECTED, Ending.INTERRUPTED)

NOTIFICATION: Final = "acp_notification"
"""The key of the state with a notification of the agent's own, by method and params."""


@attrs.define
class Translator:
    """Translates for one conversation. Feed it updates in order of arrival; it has no I/O and no clock.

    `core`: the vocabulary of tool calls. `confirming`: whether calls may wait for a person. `session`: the
    number of the agent's session, so that call ids stay unique across sessions.

    `mask` keeps secrets out of streamed text, also where they are split: the end of a piece that may be the
    beginning of one waits for the next piece.

    `workspace`: the directory that the risk of a call is judged by (`asked.py`).

    `originals`: the limits of attachments.

    `on_end` is called with each call that ends, before its last events are made.

    Its memory is bounded: see the constants here and in `payloads`, `calls`, `gather` and `originals`.
    """

    core: bool
    confirming: bool = False
    session: int = 0
    mint: Callable[[], str] = new_event_id
    _mask: Masker = NOTHING
    originals: Originals = attrs.field(factory=Originals)
    workspace: str = "/"
    on_end: Callable[[ToolCallState, Ending], None] | None = None
    after_end: Callable[[ToolCallState, Ending], Sequence[Recorded]] | None = None
    """Gives more events after those of a call that ended."""
    on_progress: Callable[[ToolCallState], None] | None = None
    """Called with each call that runs when its agent says more of it than what its shell writes."""
    after_no: Callable[[Stopped, LateWord], Sequence[Recorded]] | None = None
    """Gives events of a call that was rejected, and that the agent reports as completed all the same, with
    what it says of it."""
    _calls: dict[str, ToolCallState] = attrs.field(factory=dict)
    _asked: dict[str, ToolCallState] = attrs.field(factory=dict)
    """The open calls that were asked for."""
    _held: list[ToolCallState] = attrs.field(factory=list)
    _ids: CallIds = attrs.field(factory=CallIds, init=False)
    spoke: bool = False
    """Whether the agent has said a word in the turn; blanks and thoughts are none."""
    rejected: bool = False
    """Whether a call of the turn was rejected."""
    tokens: schema.Usage | None = None
    """The token counts that the agent sent with its messages in the turn."""
    _shown_last: ToolCallState | None = None
    """The call whose ActionEvent is the newest one, unless a question came after it."""
    _effects: list[Effect] = attrs.field(factory=list, init=False)
    _response: Response = attrs.field(init=False)
    _speech: Speech = attrs.field(init=False)
    _states: AgentStates = attrs.field(init=False)
    payloads: OpenPayloads = attrs.field(init=False)
    """What the open calls hold, and the terminals that they name."""

    def __attrs_post_init__(self) -> None:
        self._response = Response(self.mint)
        self._states = AgentStates(self.mint, self.originals)
        self.payloads = OpenPayloads(self._calls, self._effects)
        self._speech = Speech(
            self._effects, self.mint, self._mask, self.originals, self._response, self._tell
        )

    @property
    def mask(self) -> Masker:
        """What keeps secrets out of streamed text."""
        return self._mask

    @mask.setter
    def mask(self, mask: Masker) -> None:
        self._mask = self._speech.mask = mask

    @property
    def gathered(self) -> int:
        """The approximate bytes of text, output and payloads in the turn."""
        return self.payloads.gathered + self._speech.gathered

    def _drain(self) -> list[Effect]:
        effects = self._effects.copy()
        self._effects.clear()
        return effects

    def new_turn(self) -> None:
        """Reset the limits of a turn."""
        self.originals.new_turn()
        self.payloads.gathered = self._speech.gathered = 0
        self.spoke, self.rejected, self.tokens = False, False, None
        self._ids.new_turn()

    def begin_answer(self) -> list[Effect]:
        """The agent is about to be prompted: its earlier text, such as a banner, is not part of the
        answer."""
        self.spoke = False
        return self.close_text()

    def new_session(self, number: int) -> None:
        """Begin session `number` (from 0): the agent may reuse its call ids."""
        self.session = number
        self._ids.clear()

    # -- updates -----------------------------------------------------------------------------------

    def update(self, update: schema.Update) -> list[Effect]:
        """Translate one `session/update`."""
        # Most of what agents send.
        sort = type(update)
        if sort is ToolCallUpdate or sort is ToolCall:
            self._tool_call(update.raw, new=sort is ToolCall)
        elif not isinstance(update, ContentChunk):
            self._effects.extend(self._states.take(update))
        elif sort is not schema.UserMessageChunk:  # an echo of what the journal already holds
            self._chunk(update, thought=sort is schema.AgentThoughtChunk)
        return self._drain()

    def _chunk(self, update: ContentChunk, *, thought: bool) -> None:
        content = update.content
        text = text_of(content)
        if text != "":
            self._moves_on()
        if text is None:
            # A block that is not a text. Kinds that this version does not know are kept as they came.
            if not self._speech.block(content, update.message_id, thought=thought):
                self._tell("acp_update", update.raw)
            elif not thought:
                self.spoke = True
        elif text and thought:
            self._speech.thought(text)
        elif text:
            self.spoke = self.spoke or not text.isspace()
            self._speech.chunk(text, update.message_id)
        if len(content) > TEXT_MEMBERS or "_meta" in update.raw:
            self._note(update)

    def _note(self, update: ContentChunk) -> None:
        """Keep a chunk's members besides its content, for the message; and tokens, which two agents send
        there."""
        self._speech.note(update.raw, update.content)
        tokens = schema.usage_in_meta(update.raw)
        if tokens is not None:
            self.tokens = tokens if self.tokens is None else self.tokens.plus(tokens)

    def notification(self, method: str, params: Any) -> list[Effect]:
        """A notification of the agent's own, as it came."""
        self._tell(NOTIFICATION, {"method": method, "params": params})
        return self._drain()

    def _moves_on(self) -> None:
        """The agent says something, after what it has asked for."""
        self._end_unclaimed()
        self._release()

    def part(self) -> None:
        """Note another activity of the agent, which separates its texts."""
        self._speech.part()

    # -- tool calls ---------------------------------------------------------------------------------

    def _tool_call(self, raw: Mapping[str, Any], *, new: bool) -> None:
        agent_id = _call_id(raw)
        call = None if agent_id is None else self._calls.get(agent_id)
        if call is None:
            if self._ids.is_over(agent_id, raw, new=new):
                if raw.get("status") is not None:
                    self._speech.part()
                denied = self._ids.carried_out(agent_id, raw, lambda: self.payloads.in_terminal(raw))
                if denied is not None and self.after_no is not None:
                    self._effects.extend(self.after_no(*denied))
                return  # a late word about a call whose end is recorded
            call = self._begin_call(agent_id)
        elif self._speech.segment is not None and raw.get("status") not in (None, call.status):
            self._speech.part()
        self.payloads.merge(call, raw)
        if self.confirming:
            call.works = call.works or shows_work(raw)
        status = call.status
        if status == "completed":
            self._end(call, Ending.COMPLETED)
        elif status == "failed":
            self._end(call, Ending.FAILED)
        elif call.started_id is None:
            if self._settled(call):
                self._start(call)
        else:
            if not call.input_recorded:
                self._tell_input(call, last=False)
            if self.on_progress is not None and (len(raw) > OUTPUT_MEMBERS or "_meta" not in raw):
                self.on_progress(call)

    def _tell_input(self, call: ToolCallState, *, last: bool) -> None:
        late = late_input(call, last=last)
        if late is not None:
            self._tell("action_input", late)

    @property
    def inputless(self) -> ToolCallState | None:
        """The one open command whose input the agent has not sent."""
        mute = [call for call in self._calls.values() if call.kind == "execute" and not call.raw_input]
        return mute[0] if len(mute) == 1 and mute[0].announced else None

    def runs(self, given: Mapping[str, Any]) -> list[Effect]:
        """The agent runs a command in one of Ostler's terminals: the input of `inputless`."""
        call = self.inputless
        if call is not None:
            since = call.reported_since
            self.payloads.merge(call, {"rawInput": given})
            call.reported_since = since
            self._tell_input(call, last=True)
        return self._drain()

    def _begin_call(self, agent_id: str | None) -> ToolCallState:
        if self._speech.segment is not None:
            self._speech.interrupt()
        for call in self._asked.values():  # mostly none
            call.passed = call.passed or (call.unclaimed and call.only_asked)
        if len(self._calls) >= OPEN_CALLS_MAX:
            self._end(next(iter(self._calls.values())), Ending.INTERRUPTED)
        if agent_id is None:
            agent_id = self.mint()
        uses, before = self._ids.use(agent_id)
        suffix = f".{self.session}" if self.session else ""
        if uses > 1:
            suffix += f"~{uses}"
        call = ToolCallState(
            agent_id + suffix, agent_id, self.mint, self._mask, self.originals, self.workspace
        )
        if before is not None:  # it was only asked about, and taken for over too early
            call.title, call.kind, call.name = before.title, before.kind, before.name
            call.asked = True
        if self._asked:
            # By a person alone: what a policy allowed is as harmless as the question said.
            call.covered = any(
                each.unclaimed and each.only_asked and each.by_person for each in self._asked.values()
            )
        self._calls[agent_id] = call
        self._held.append(call)
        return call

    def _end_unclaimed(self, *, passed: bool = False) -> None:
        """End the calls that the agent asked for and was allowed, and said nothing of since it continued.

        `passed`: only those after which another call began.
        """
        for call in list(self._asked.values()) if self._asked else ():
            if call.unclaimed and call.only_asked and (call.passed or not passed):
                self._ids.presume(call)
                self._end(call, Ending.COMPLETED)

    def terminal_output(self, terminal_id: str, text: str) -> list[Effect]:
        """More output of a terminal that a call names; of any other, nothing comes of it."""
        self.payloads.terminal_output(terminal_id, text)
        return self._drain()

    def _settled(self, call: ToolCallState) -> bool:
        """Whether a call's first event can be written: its input is there and it will not ask."""
        if call.content or call.output or call.shown or call.raw_output is not None:
            return not self.confirming or call.raw_output is not None
        return call.status == "in_progress" and not self.confirming

    @property
    def calling(self) -> bool:
        """Whether a tool call is open, during which silence is normal."""
        return bool(self._calls)

    @property
    def holding(self) -> bool:
        """Whether a call's first event is held back; the caller bounds that with `release`."""
        if self._held:
            return True
        return bool(self._asked) and any(call.passed for call in self._asked.values())

    def release(self, *, everything: bool = True) -> list[Effect]:
        """Write the first events that are held back.

        Unless `everything`, when a timer ran out: while a call that was asked for is open, those of the calls
        that do not run yet, as far as their agent says, are held back longer: it will ask for them in their
        turn.
        """
        self._end_unclaimed(passed=True)
        if self.confirming and self._asked and not everything:
            # Content may be what it is to do, a diff say; what a shell wrote is what it did.
            for call in [call for call in self._held if call.output or call.shown]:
                self._start(call)
        else:
            self._release()
        return self._drain()

    def _release(self) -> None:
        while self._held:
            self._start(self._held[0], unsure=True)

    def _start(self, call: ToolCallState, *, unsure: bool = False) -> None:
        """Write the first event of a call. `unsure`: it may still be asked about, which only an ActionEvent
        allows; one call must not be two."""
        self._held.remove(call)
        if self.core or (unsure and self.confirming and not call.asked):
            self._speech.with_thoughts(lambda each: start_action(call, each, self._response()))
            self._shown_last = call
        else:
            self._effects.append(start_acp(call, self.mint()))

    def _end(self, call: ToolCallState, ending: Ending) -> None:
        if call.started_id is None:
            self._start(call)
        if not call.input_recorded:
            self._tell_input(call, last=True)
        self.payloads.end(call)
        del self._calls[call.agent_call_id]
        if self._asked:
            self._asked.pop(call.agent_call_id, None)
        if self._shown_last is call:
            self._shown_last = None
        if call.rejection is not None and ending is not Ending.COMPLETED:
            ending = Ending.REJECTED
        if ending in _STOPPED:
            self._ids.stop(call)
        if self.on_end is not None:
            self.on_end(call, ending)
        self._effects.extend(end_events(call, ending, self.mint))
        if call.locations or call.rest or call.name or call.unsaid is not None:
            details = details_of(call)
            if details:
                self._effects += self._states.note(DETAILS, details, always=True)
        if self.after_end is not None:
            self._effects.extend(self.after_end(call, ending))
        if not self._calls:
            self._response.end()  # what follows comes from the model's next response

    # -- permissions --------------------------------------------------------------------------------

    def requested(
        self, tool_call: Mapping[str, Any], more: Mapping[str, Any] | None = None
    ) -> tuple[Inquiry, list[Effect]]:
        """Handle a permission request: merge its description of the call, and keep its other members
        (`more`)."""
        return self.judge(self._note_request(tool_call, more or {}))

    def judge(self, inquiry: Inquiry) -> tuple[Inquiry, list[Effect]]:
        """The question with the risk of its calls as they are described by now, and of those that its answer
        may go for, too: agents ask once for all calls of an answer, under the id of one."""
        calls = self.calls_of(inquiry)
        meant = [each.risk for each in self._calls.values() if self.confirming and may_be_meant_too(each)]
        risk = together([inquiry.risk, *(call.risk for call in calls), *meant])
        for call in calls:
            if meant and len(calls) == 1:
                call.stands_for = risk
            if self.confirming and call.action_id is not None and call.recorded_risk is not call.risk:
                # Its event is already written with another risk: report the risk that decides separately.
                value = {"action_id": call.action_id, "security_risk": call.risk}
                self._tell("action_risk", value)
                call.recorded_risk = call.risk
        return attrs.evolve(inquiry, risk=risk), self._drain()

    def _note_request(self, tool_call: Mapping[str, Any], more: Mapping[str, Any]) -> Inquiry:
        agent_id = _call_id(tool_call)
        own = None if agent_id is None else self._calls.get(agent_id)
        if own is None:
            calls, guess = about(tool_call, [call for call in self._calls.values() if may_be_meant(call)])
            if calls:
                self._speech.part()
                risk = judged(tool_call, calls, guess=guess)
                for call in calls:
                    self.payloads.merge(call, added(tool_call, call), asking=True)
                    self._wait_for_answer(call, more)
                    call.guessed = guess
                    call.stands_for = risk if len(calls) == 1 else None
                last = calls[-1]
                keys = tuple(call.agent_call_id for call in calls)
                title = last.title if len(keys) == 1 else str(tool_call.get("title") or "")
                return Inquiry(keys, title, last.risk if risk is None else risk, more)
            own = self._begin_call(agent_id)
        else:
            self._speech.part()
        # The request describes the call better than the updates so far, but the call is not over yet.
        self.payloads.merge(own, tool_call, asking=True)
        self._wait_for_answer(own, more)
        own.stands_for = None
        return Inquiry((own.agent_call_id,), own.title, own.risk, more)

    def _wait_for_answer(self, call: ToolCallState, more: Mapping[str, Any]) -> None:
        call.allowed_before = call.allowed_before or call.allowed
        call.allowed = call.passed = False
        call.more = more
        self._asked[call.agent_call_id] = call

    def calls_of(self, inquiry: Inquiry) -> list[ToolCallState]:
        """The open calls that a question is about."""
        return [self._calls[key] for key in inquiry.keys if key in self._calls]

    def ask(self, inquiry: Inquiry) -> list[Effect]:
        """Calls wait for a person, or for a hook: each is an ActionEvent now, with its risk and all that the
        agent says of it. What else was announced stands before it: the answer may go for that, too.

        Where its ActionEvent is written already, and others came after it or there is more to say, or where
        there are several calls, a message of the agent's asks: an event cannot be amended, and clients show
        their buttons at the newest event of the agent's, once for each.
        """
        calls = self.calls_of(inquiry)
        for call in calls:
            self._release_before(call)
        if self.confirming:
            for each in [each for each in self._held if may_be_meant(each)]:
                self._start(each, unsure=True)
        repeated = []
        for call in calls:
            question = call.question()
            if call.action_id is None:
                self._speech.with_thoughts(
                    lambda each, call=call, question=question: action_event(  # type: ignore[misc]
                        call, each, self._response(), question
                    )
                )
                self._shown_last = call
            else:
                self._tell_input(call, last=True)
                newest = call is self._shown_last and call.title == call.recorded_title
                if call.questions or question.content or not newest:
                    repeated.append(call)
            call.questions += 1
        if inquiry.several:
            parts = tuple(call.question() for call in calls)
            self._put_question(Asked(inquiry.title, None, [], 0, (), inquiry.more, about=parts))
        elif repeated:
            self._put_question(repeated[0].question().with_input())
        return self._drain()

    def _put_question(self, question: Asked) -> None:
        self._shown_last = None
        self._speech.interrupt()
        self._effects.append(question_event(self.mint(), self._response(), question))

    def allowed(self, inquiry: Inquiry) -> list[Effect]:
        """Calls were allowed without a person."""
        for call in self.calls_of(inquiry):
            held = call in self._held
            self._release_before(call)
            if held:
                self._held.append(call)
                self._start(call)
        return self._drain()

    def answered(self, inquiry: Inquiry, *, by_person: bool = True) -> None:
        """A request was allowed. Calls that the person saw at the same time may run, too."""
        for call in self.calls_of(inquiry):
            call.allowed, call.reported_since, call.by_person = True, False, by_person
        for each in self._calls.values() if by_person else ():
            each.covered = each.covered or (each.started_id is not None and may_be_meant(each))

    def _release_before(self, call: ToolCallState) -> None:
        """A call is written now, whether it asks or not. Those that were announced before it come first, if
        their agent says that they run."""
        if call in self._held:
            before = self._held[: self._held.index(call)]
            self._held.remove(call)
            for each in before:
                if each.status == "in_progress" and not each.asked:
                    self._start(each, unsure=True)

    def reject(self, inquiry: Inquiry, reason: str, by: RejectionSource = "user") -> list[Effect]:
        """Record that a person (or a policy, or a hook) rejected the calls, and close them: not every agent
        does."""
        for call in self.calls_of(inquiry):
            self.rejected = True
            call.rejection, call.rejected_by = reason, by
            self._end(call, Ending.REJECTED)
        return self._drain()

    def close_text(self) -> list[Effect]:
        """Close an open segment as a message: text outside any turn that is complete."""
        self._speech.close()
        return self._drain()

    # -- the end of a turn --------------------------------------------------------------------------

    def end_turn(self, close: Close, note: str | None = None, unsaid: str | None = None) -> list[Effect]:
        """Close what is open. Calls the agent left open are interrupted, never completed.

        `note` says in a few words why an answer was cut short. With `Close.FINISH` the last segment
        becomes the turn's answer, an empty one where the agent said nothing after its last tool call.
        `unsaid`: what stands there where the agent did not say a word (`spoke`).
        """
        if close is Close.FINISH:
            self._end_unclaimed()
        self._release()
        self._effects.extend(self._states.end_turn())
        for call in list(self._calls.values()):
            if call.unclaimed and (close is Close.FINISH or call.only_asked):
                self._end(call, Ending.COMPLETED)  # there are agents that tell no end
            else:
                self._end(call, Ending.UNANSWERED if call.only_asked else Ending.INTERRUPTED)
        if close is Close.MESSAGE:
            self._speech.close()
        else:
            self._speech.finish(note, unsaid)
        self._response.end()
        return self._drain()

    def answer(self, text: str) -> list[Effect]:
        """An answer by Ostler itself, in the form of an agent's."""
        self._speech.answer(text)
        self._response.end()
        return self._drain()

    # -- the rest -----------------------------------------------------------------------------------

    def state(self, key: str, value: Any) -> list[Effect]:
        """A state of the agent as an event, unless it is unchanged."""
        self._effects.extend(self._states.note(key, value))
        return self._drain()

    def _tell(self, key: str, value: Any) -> None:
        """The same, also where it is unchanged."""
        self._effects.extend(self._states.note(key, value, always=True))


def _call_id(raw: Mapping[str, Any]) -> str | None:
    """The id of a tool call, shortened where it is longer than any id should be."""
    agent_id = raw.get("toolCallId")
    if not agent_id or not isinstance(agent_id, str):
        return None
    return agent_id if len(agent_id) <= ID_CHARS else short_id(agent_id)
