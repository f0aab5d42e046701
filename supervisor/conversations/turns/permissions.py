"""Permission requests of an agent: answered at once by the policy, or later by a person.

The rule chooses by option *kind*, never by position: agents list options in their own order, and the first
one may grant a standing permission or change modes. Without a person, only `allow_once` is ever chosen:
`allow_always` would outlive the call that it was asked for.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import attrs
import trio

from supervisor.acp import PermissionOption, PermissionRequest, RpcError, parse_permission
from supervisor.acp.permission_answers import ALLOWING, CANCELLED, REJECTING, answer_of, matching, once
from supervisor.acp.schema import NAME_CHARS, cut, short_id
from supervisor.acp.schema.read import identifier, objects
from supervisor.conversations.agent.kind import Question
from supervisor.conversations.agent.shared import Shared
from supervisor.conversations.agent.side.discarding import at_once
from supervisor.conversations.hooks.hooks import NOTHING, Hooks
from supervisor.conversations.recording.agent_updates import PERMISSION
from supervisor.conversations.recording.permission_log import (
    STATE,
    By,
    PermissionEntry,
    PermissionLog,
    shown_options,
)
from supervisor.conversations.recording.tool_calls.asked import more_of
from supervisor.conversations.recording.tool_calls.calls import ToolCallState
from supervisor.conversations.recording.tool_calls.consent import Inquiry
from supervisor.conversations.recording.tool_calls.rejections import Rejections, named_files
from supervisor.conversations.state.confirmation import asks_a_person, may_ask
from supervisor.conversations.state.errors import NotAccepted, NotPossible
from supervisor.conversations.state.state import ActionAnswered, ActionAsked, AnswersDelivered, PersonAnswered
from supervisor.conversations.state.status import ExecutionStatus
from supervisor.conversations.state.turn import Turn
from supervisor.conversations.turns.unasked import Unasked
from supervisor.events import ActionEvent, RejectionSource, SecurityRisk, new_event_id
from supervisor.hooks.config import HookEvent
from supervisor.journal.errors import JournalError

TOO_MANY: Final = -32603
"""The JSON-RPC code of an internal error: ACP has none for a limit."""

WAITING_MAX: Final = 100
"""The most requests of one agent that may wait for a person at the same time."""

STORED_SECONDS: Final = 5.0
"""Seconds that an answer for the built-in agent waits until it is on disk. After that the agent gets it
anyway, so that a hanging disk does not withhold a person's answer."""

WRITE: Final = "fs/write_text_file"
RUN: Final = "terminal/create"
CHECKED: Final = frozenset({WRITE, RUN})
"""The agent's requests by which Ostler itself would carry out a rejected action."""

REFUSED: Final = -32000
"""The JSON-RPC code for what a person has rejected: the first of those that ACP leaves to its users."""

WITHDRAWN: Final = "The agent took its request back, or is gone."


@attrs.define(eq=False)
class Pending:
    """One request that waits. `inquiry` names its tool calls; `answer` is None until it is decided."""

    inquiry: Inquiry | None
    entry: PermissionEntry
    options: Sequence[PermissionOption]
    native: bool = False
    """Whether the agent reported the call as its own event, and will report how it ends."""
    ends: bool = False
    """Whether the agent stops when it is rejected."""
    decided: trio.Event = attrs.field(factory=trio.Event)
    answer: Mapping[str, Any] | None = None

    def decide(self, answer: Mapping[str, Any]) -> None:
        """Answer the request; the first decision wins."""
        if self.answer is None:
            self.answer = answer
            self.decided.set()

    def option(self, shown_id: str) -> PermissionOption | None:
        """The option that clients see under this id."""
        for shown, option in zip(self.entry.options, self.options, strict=True):
            if shown["id"] == shown_id:
                return option
        return None


class Permissions:
    """The permission requests of one conversation.

    A request is handled in order among the updates: its tool call is recorded, and the state published,
    before any later update. A person answers one request by its id, or all that are open at that moment.
    PreToolUse hooks run first; one that blocks overrides the policy.
    """

    def __init__(
        self, shared: Shared, hooks: Hooks | None = None, clock: Callable[[], float] = trio.current_time
    ) -> None:
        self._voice = shared.voice
        self._hooks = hooks
        self._hooked = 0
        self._recorder = shared.recorder
        self._record = shared.record
        self._log = PermissionLog(shared.recorder)
        self._translator = shared.translator
        self._publisher = shared.publisher
        self._queue = shared.queue
        self._clock = clock
        self._pending: list[Pending] = []
        self._kept: list[Pending] = []
        """The requests of an agent that has ended."""
        self._repeated: set[str] = set()
        """The actions that it asked about, or had the answer for: the next one asks again."""
        self.gone: Callable[[], bool] = lambda: False
        """Says whether the agent's process has ended, or is ending."""
        self.leaving = False
        """Whether the server stops, and waiting requests stay open for the next one."""
        self.unasked = Unasked(shared.recorder, shared.context.nursery.start_soon)
        shared.translator.after_end = self.unasked.call_ended
        shared.translator.after_no = self.unasked.reported
        self._rejections = Rejections()
        self.touched = -math.inf
        """When a person was asked, or the last open request was answered, on Trio's clock."""

    @property
    def waiting(self) -> bool:
        """Whether a request waits for a person."""
        return bool(self._open())

    @property
    def keeps(self) -> bool:
        """Whether there are requests of an agent that is gone, answered or not; the next one repeats them."""
        return bool(self._repeated)

    @property
    def outlasting(self) -> bool:
        """Whether all that waits are actions in the agent's memory: so they can wait
        for an answer without the process."""
        waiting = self._open()
        return bool(waiting) and all(each.native and each.ends for each in waiting)

    def keep(self, actions: Sequence[ActionEvent]) -> bool:
        """Wait on for the answers to what the agent of an earlier server asked about these actions. Returns
        False if the record does not tell what was asked."""
        entries = {
            each["action_id"]: each
            for each in self._record.reported.agent_state.get(STATE, ())
            if each["status"] == "waiting"
        }
        asked = self._record.now.asked
        unanswered = {action_id for action_id, answer in asked.items() if answer is None}
        if unanswered != entries.keys() or not all(each["options"] for each in entries.values()):
            return False
        self._kept = [
            Pending(None, PermissionEntry.of(each), _options_of(each), native=True, ends=True)
            for each in entries.values()
        ]
        self._repeated = set(asked)
        self._voice.reopen(actions)
        return True

    def outlive(self) -> bool:
        """The agent may be gone: if so, wait on for the answers to what it asked, where the next one repeats
        all of that. Returns whether it does."""
        turn = self._queue.turn
        if turn is None or turn.cancelling or not self.gone() or not self.outlasting:
            return False
        self._kept, self._pending = self._open(), []
        self._repeated = set(self._record.now.asked)
        return True

    @property
    def asking_hooks(self) -> bool:
        """Whether a request waits for hooks."""
        return self._hooked > 0

    def ask(self, params: Any) -> Awaitable[Mapping[str, Any]]:
        """Handle a `session/request_permission`. Await the result for ACP's answer.

        It waits for as long as the person does. Cancellation means that the agent took the request back, or
        is gone.

        Raises RpcError (-32602 if the parameters name no call, -32603 if too many requests wait),
        JournalError.
        """
        request = parse_permission(params)
        turn = self._queue.turn
        if turn is not None and not turn.cancelling:
            question = self._voice.question(request, self._recorder.mask)
            if question is not None:
                return self._ask_native(question, request)
        # The connection does not mask requests, and a diff of them could not be masked afterwards.
        asked, more = self._recorder.mask.value(
            [request.tool_call.raw, more_of(request.raw, request.tool_call.raw)]
        )
        if turn is None or turn.cancelling:
            entry = PermissionEntry(
                new_event_id(),
                short_id(str(asked.get("toolCallId"))),
                None,
                cut(str(asked.get("title") or ""), NAME_CHARS),
                request.tool_call.kind,
                SecurityRisk.UNKNOWN,
                shown_options(request.options, self._recorder),
            )
            self._settle(entry, None, "cancel")
            self._log.answered_at_once(entry)
            return at_once(CANCELLED)
        inquiry, effects = self._translator.requested(asked, more)
        self._recorder.emit(effects)
        calls = self._translator.calls_of(inquiry)
        for call in calls:
            self._recorder.emit(self.unasked.asked(call.kind))
        hooks = self._hooks
        if hooks is not None and any(
            hooks.concerns(HookEvent.PRE_TOOL_USE, call.tool_name) for call in calls
        ):
            self._check_room()
            self._recorder.emit(self._translator.ask(inquiry))
            self._hooked += 1
            return self._after_hooks(hooks, request, inquiry, calls, turn)
        return self._by_policy(request, inquiry)

    def _ask_native(self, question: Question, request: PermissionRequest) -> Awaitable[Mapping[str, Any]]:
        """Ask a person about an action that is in the journal. The agent has judged by the policy itself."""
        action = question.action
        answer = self._record.now.asked.get(action.id) if action.id in self._repeated else None
        if answer is not None:
            self._repeated.discard(action.id)
            if not self._repeated:
                self._kept = []
                self._hand_over()
            return self._once_stored(answer)
        self._check_room()
        entry = PermissionEntry(
            new_event_id(),
            action.tool_call_id,
            action.id,
            cut(question.title or action.tool_name, NAME_CHARS),
            None,
            question.risk,
            shown_options(request.options, self._recorder),
            question.given,
        )
        pending = Pending(None, entry, request.options, native=True, ends=not question.aside)
        self._show(pending, request)
        if not question.aside:
            self._recorder.apply(ActionAsked(action.id))
        self._pending.append(pending)
        self._log.waits(entry)
        self._publisher.waiting()
        self.touched = self._clock()
        return self._decision(pending)

    async def _after_hooks(
        self,
        hooks: Hooks,
        request: PermissionRequest,
        inquiry: Inquiry,
        calls: Sequence[ToolCallState],
        turn: Turn,
    ) -> Mapping[str, Any]:
        """Ask the hooks about each call, then a person where the policy says so."""
        said = NOTHING
        try:
            # An update may give a call another name meanwhile.
            for call in [each for each in calls if hooks.concerns(HookEvent.PRE_TOOL_USE, each.tool_name)]:
                if self._over(turn):
                    return CANCELLED  # before this began
                said = await hooks.ask(hooks.before_call(call))
                if said.cancelled or said.blocked:
                    break
        finally:
            self._hooked -= 1
            self.touched = self._clock()
        if said.cancelled or self._over(turn) or self._translator.calls_of(inquiry) != calls:
            return self._answer_at_once(self._entry(request, inquiry, calls), None, "cancel")
        if said.blocked:
            answer = self._answer_at_once(
                self._entry(request, inquiry, calls), self._no(request.options), "hook", said.reason
            )
            self._reject(inquiry, said.reason, "hook")
            return await self._after_no(answer)
        # The agent may have said more of its calls while the hooks were at work.
        inquiry, effects = self._translator.judge(inquiry)
        self._recorder.emit(effects)
        return await self._by_policy(request, inquiry, announced=True)

    def _over(self, turn: Turn) -> bool:
        return self._queue.turn is not turn or turn.cancelling

    def _check_room(self) -> None:
        if len(self._pending) + self._hooked >= WAITING_MAX:
            raise RpcError(
                TOO_MANY, f"{WAITING_MAX} permission requests are waiting already; wait for an answer"
            )

    def _entry(
        self, request: PermissionRequest, inquiry: Inquiry, calls: Sequence[ToolCallState]
    ) -> PermissionEntry:
        call = calls[-1]
        kinds = {each.kind for each in calls}
        return PermissionEntry(
            new_event_id(),
            call.call_id,
            call.action_id,
            cut(inquiry.title, NAME_CHARS),
            call.kind if len(kinds) == 1 else None,
            inquiry.risk,
            shown_options(request.options, self._recorder),
            tool_call_ids=[each.call_id for each in calls] if inquiry.several else [],
        )

    def _answer_at_once(
        self, entry: PermissionEntry, option: PermissionOption | None, by: By, reason: str | None = None
    ) -> Mapping[str, Any]:
        answer = answer_of(option)
        self._settle(entry, option, by, reason)
        self._log.answered_at_once(entry)
        return answer

    def _settle(
        self,
        entry: PermissionEntry,
        option: PermissionOption | None,
        by: By,
        reason: str | None = None,
        *,
        accept: bool = False,
    ) -> None:
        """Note in the entry what was answered, by whom."""
        entry.by, entry.reason = by, reason
        if option is None:
            entry.status = "rejected" if by in ("hook", "person") and not accept else "cancelled"
            return
        accepted = option.kind in ALLOWING or (accept and option.kind not in REJECTING)
        entry.status = "allowed" if accepted else "rejected"
        (entry.option_id,) = self._recorder.mask.value([option.option_id])

    def _by_policy(
        self, request: PermissionRequest, inquiry: Inquiry, *, announced: bool = False
    ) -> Awaitable[Mapping[str, Any]]:
        calls = self._translator.calls_of(inquiry)
        if not asks_a_person(self._record.confirmation_policy, inquiry.risk):
            allowed = once(request.options)
            if allowed is not None:
                self._recorder.emit(self._translator.allowed(inquiry))
                answer = self._answer_at_once(self._entry(request, inquiry, calls), allowed, "policy")
                self._allow(inquiry, by_person=False)
                return at_once(answer)
            self._recorder.emit(() if announced else self._translator.ask(inquiry))
            reason = "The agent offered no way to allow this call once."
            answer = self._answer_at_once(
                self._entry(request, inquiry, calls), self._no(request.options), "policy", reason
            )
            self._reject(inquiry, reason)
            return self._after_no(answer)
        self._check_room()
        effects = () if announced else self._translator.ask(inquiry)
        self._recorder.emit(effects)
        pending = Pending(inquiry, self._entry(request, inquiry, calls), request.options)
        self._show(pending, request)
        self._pending.append(pending)
        self._log.waits(pending.entry)
        self._publisher.waiting()
        self.touched = self._clock()
        return self._decision(pending)

    def _show(self, pending: Pending, request: PermissionRequest) -> None:
        """A request waits for a person: those that follow the agent's updates get it as the agent sent it."""
        shown = self._recorder.mask.value({**request.raw})
        shown.pop("sessionId", None)
        offered = [each["id"] for each in pending.entry.options]
        options = {identifier(each, "optionId"): each for each in objects(shown, "options") or ()}
        shown["options"] = [{**options.get(each, {}), "optionId": each} for each in offered]
        self._recorder.updates.add({"sessionUpdate": PERMISSION, "id": pending.entry.id, "request": shown})

    def _allow(self, inquiry: Inquiry, *, by_person: bool = True) -> None:
        for call in self._translator.calls_of(inquiry):
            self._rejections.allow(call)
            self.unasked.files.allow(named_files(call))
        self._translator.answered(inquiry, by_person=by_person)

    def _reject(
        self, inquiry: Inquiry, reason: str, by: RejectionSource = "user", *, by_person: bool = False
    ) -> None:
        for call in self._translator.calls_of(inquiry):
            self._rejections.reject(call, by_person=by_person)
            self.unasked.rejected(call)
        self._recorder.emit(self._translator.reject(inquiry, reason, by))

    async def _after_no(self, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        """Hand out a no when the files are looked at that it is about."""
        await self.unasked.files.look()
        return answer

    def _no(self, options: Sequence[PermissionOption]) -> PermissionOption | None:
        """The option for a no; None (ACP's `cancelled`) for an agent that treats every option as a yes."""
        return None if self.unasked.heedless else matching(options, accept=False)

    def new_turn(self) -> None:
        """Another turn begins: actions rejected before may be tried again."""
        self._rejections.clear()
        self.unasked.new_turn()

    @property
    def refuses(self) -> bool:
        """Whether anything was rejected that `check` would refuse."""
        return bool(self._rejections)

    def check(self, method: str, given: Mapping[str, Any]) -> None:
        """The agent wants to run a command in Ostler's terminal, or to write a file through Ostler: what was
        rejected in this turn is refused, and reported. `given` has no secrets in it.

        Raises RpcError (-32000), JournalError.
        """
        found = self._rejections.of(method, given, self._record.start.working_dir)
        if found is None:
            return
        what, call_id = found
        self._recorder.emit(self.unasked.refused(cut(what, NAME_CHARS), call_id, written=method == WRITE))
        raise RpcError(REFUSED, "This was rejected. Do not do it, unless you ask again and are allowed to.")

    async def _decision(self, pending: Pending) -> Mapping[str, Any]:
        """Wait for the answer.

        Cancelled when the agent takes its request back or is gone: the person is then no longer asked, unless
        the next agent repeats it.
        """
        try:
            await pending.decided.wait()
        finally:
            if pending not in self._kept and (pending.answer is not None or not self.outlive()):
                self._end_wait(pending)
        answer = pending.answer or CANCELLED
        return await (self._once_stored(answer) if pending.ends else self._after_no(answer))

    def _end_wait(self, pending: Pending) -> None:
        self._pending.remove(pending)
        if self.leaving:
            return
        if pending.answer is None:
            self._settle(pending.entry, None, "cancel", WITHDRAWN)
            self._log.given_up(pending.entry)
        self._waited(pending)

    def _hand_over(self) -> None:
        """Clear the stored answers, since the agent gets them now. After a kill of the server, the next one
        must not treat them as undelivered."""
        if self._record.now.asked:
            self._recorder.apply(AnswersDelivered())
            with suppress(JournalError):
                self._recorder.save(quiet=True)

    async def _once_stored(self, answer: Mapping[str, Any]) -> Mapping[str, Any]:
        with suppress(JournalError), trio.move_on_after(STORED_SECONDS):
            await self._recorder.log.flushed_unless_troubled()
        return answer

    def _waited(self, pending: Pending) -> None:
        if self._open():
            return
        self._hand_over()
        self.touched = self._clock()
        if pending.ends and pending.entry.status == "rejected":
            return  # it does not continue
        waiting = self._record.now.execution_status is ExecutionStatus.WAITING_FOR_CONFIRMATION
        if waiting and self._queue.turn is not None:
            self._recorder.apply(PersonAnswered())

    def decide(
        self, accept: bool, reason: str, request_id: str | None = None, option_id: str | None = None
    ) -> bool:
        """Answer the request of this id, or all that wait: allow the call once (permanently if the agent
        offers nothing less), or reject it; or choose the option that is named.

        Returns False if none waits. Raises NotPossible if no request of this id waits, NotAccepted if it has
        no such option, JournalError.
        """
        waiting = self._open()
        if request_id is not None:
            waiting = [pending for pending in waiting if pending.entry.id == request_id]
            if not waiting:
                raise NotPossible(f"No such request waits: {cut(request_id, NAME_CHARS)}")
        if not waiting:
            return False
        chosen = [(pending, self._chosen(pending, accept, option_id)) for pending in waiting]
        for pending, option in chosen:
            self._settle(pending.entry, option, "person", None if accept else reason, accept=accept)
            if pending.native:
                answer = {**answer_of(option), "_meta": {"ostler": {"reason": pending.entry.reason}}}
                pending.decide(answer)
                if pending.ends and pending.entry.action_id is not None:
                    self._recorder.apply(ActionAnswered(pending.entry.action_id, answer))
            if option is not None and option.kind == "allow_always":
                self.unasked.standing = True
        self._log.answered([pending.entry for pending, _ in chosen])
        for pending, option in chosen:
            if pending.native:
                continue
            pending.decide(answer_of(option))
            assert pending.inquiry is not None
            if pending.entry.status == "allowed":
                self._allow(pending.inquiry)
            elif not accept:
                self._reject(pending.inquiry, reason, by_person=True)
        if not self._open() and (accept or not all(pending.ends for pending, _ in chosen)):
            self._recorder.apply(PersonAnswered())
        return True

    def _chosen(self, pending: Pending, accept: bool, option_id: str | None) -> PermissionOption | None:
        """The option for a person's answer. Raises NotAccepted."""
        option = _chosen(pending, accept, option_id)
        if accept or pending.native or option is None:
            return option
        return None if self.unasked.heedless else option

    def cancel(self) -> None:
        """Answer all requests with `cancelled`: the turn has ended, or is being cancelled."""
        waiting = self._open()
        for pending in waiting:
            pending.decide(CANCELLED)
            self._settle(pending.entry, None, "cancel")
        if self._hooks is not None:
            self._hooks.cancel(HookEvent.PRE_TOOL_USE)
        self._log.answered([pending.entry for pending in waiting])
        self._kept, self._repeated = [], set()
        self._recorder.apply(AnswersDelivered())

    def _open(self) -> list[Pending]:
        return [each for each in (*self._kept, *self._pending) if each.answer is None]

    def policy_changed(self) -> None:
        """Apply the changed policy of the record from the next request on."""
        hooked = self._hooks is not None and self._hooks.has(HookEvent.PRE_TOOL_USE)
        self._translator.confirming = hooked or may_ask(self._record.confirmation_policy)
        self.unasked.forget()


def _chosen(pending: Pending, accept: bool, option_id: str | None) -> PermissionOption | None:
    """The option for a person's answer. Raises NotAccepted."""
    if option_id is None:
        return matching(pending.options, accept)
    option = pending.option(option_id)
    if option is None:
        offered = ", ".join(each["id"] for each in pending.entry.options)
        raise NotAccepted(f"Unknown option {cut(option_id, NAME_CHARS)!r}. The request offers: {offered}.")
    if option.kind in (REJECTING if accept else ALLOWING):
        raise NotAccepted(
            f"The option {option_id!r} is of kind {option.kind}; accept is {str(accept).lower()}."
        )
    return option


def _options_of(entry: Mapping[str, Any]) -> list[PermissionOption]:
    return [PermissionOption(each["id"], each["name"], each["kind"]) for each in entry["options"]]
