"""Permission requests of an agent: answered at once by the policy, or later by a person.

The rule chooses by option *kind*, never by position: agents list options in their own order, and the first
one may grant a standing permission or change modes. Without a person, only `allow_once` is ever chosen:
`allow_always` would outlive the call that it was asked for.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final

import attrs
import trio

from supervisor.acp import PermissionOption, PermissionRequest, RpcError, parse_permission
from supervisor.conversations.hooks.hooks import Hooks
from supervisor.conversations.recording.recorder import Recorder
from supervisor.conversations.recording.reports import Reports
from supervisor.conversations.recording.tool_calls import ToolCallState
from supervisor.conversations.recording.translate import Translator
from supervisor.conversations.state.queue import TurnQueue
from supervisor.conversations.state.status import ExecutionStatus
from supervisor.conversations.state.turn import Turn
from supervisor.events import SecurityRisk
from supervisor.hooks import HookEvent

TOO_MANY: Final = -32603
"""The JSON-RPC code of an internal error: ACP has none for a limit."""

WAITING_MAX: Final = 100
"""The most requests of one agent that may wait for a person at the same time."""

CANCELLED: Final[dict[str, Any]] = {"outcome": {"outcome": "cancelled"}}
"""The answer without a decision (ACP's word)."""

_ALLOW: Final = ("allow_once",)
_REJECT: Final = ("reject_once", "reject_always")


def asks_a_person(policy: Mapping[str, Any], risk: SecurityRisk) -> bool:
    """Whether `policy` (an object with `kind`, as clients send it) requires a person's confirmation of a call
    of that risk (see `recording/risk.py`).

    `ConfirmRisky` asks from its `threshold` on (HIGH where it names none), and about an UNKNOWN risk unless
    its `confirm_unknown` is false.
    """
    kind = policy.get("kind")
    if kind == "AlwaysConfirm":
        return True
    if kind == "ConfirmRisky":
        if risk is SecurityRisk.UNKNOWN:
            return bool(policy.get("confirm_unknown", True))
        return risk >= SecurityRisk(policy.get("threshold") or SecurityRisk.HIGH)
    return False


def may_ask(policy: Mapping[str, Any]) -> bool:
    """Whether there is any call that `policy` wants a person to confirm."""
    return any(asks_a_person(policy, risk) for risk in SecurityRisk)


def _selected(option: PermissionOption) -> dict[str, Any]:
    return {"outcome": {"outcome": "selected", "optionId": option.option_id}}


def _first(options: Sequence[PermissionOption], kinds: Sequence[str]) -> PermissionOption | None:
    for kind in kinds:
        for option in options:
            if option.kind == kind:
                return option
    return None


def allow(options: Sequence[PermissionOption]) -> dict[str, Any] | None:
    """The answer that allows this one call; None if the agent offers no such option."""
    option = _first(options, _ALLOW)
    return None if option is None else _selected(option)


def allow_standing(options: Sequence[PermissionOption]) -> dict[str, Any] | None:
    """The answer that allows the call permanently. Only for a person who accepted and had no smaller
    option."""
    option = _first(options, ("allow_always",))
    return None if option is None else _selected(option)


def reject(options: Sequence[PermissionOption]) -> dict[str, Any]:
    """The answer that rejects: the agent's rejecting option, else `cancelled`."""
    option = _first(options, _REJECT)
    return CANCELLED if option is None else _selected(option)


@attrs.define(eq=False)
class Pending:
    """One request. `key` names its tool call; `answer` is None until it is decided."""

    key: str
    options: Sequence[PermissionOption]
    decided: trio.Event = attrs.field(factory=trio.Event)
    answer: Mapping[str, Any] | None = None

    def decide(self, answer: Mapping[str, Any]) -> None:
        """Answer the request; the first decision stays."""
        if self.answer is None:
            self.answer = answer
            self.decided.set()


class Permissions:
    """The permission requests of one conversation.

    A request is handled in its place among the updates: its tool call is an event, and the state is
    published, before anything that comes after it. A person's answer holds for all requests that are open at
    that moment. PreToolUse hooks are asked first; one that blocks decides, whatever the policy is.
    """

    def __init__(
        self,
        recorder: Recorder,
        translator: Translator,
        reports: Reports,
        queue: TurnQueue,
        clock: Callable[[], float] = trio.current_time,
        hooks: Hooks | None = None,
    ) -> None:
        self._hooks = hooks
        self._hooked = 0
        self._recorder = recorder
        self._record = recorder.record
        self._translator = translator
        self._reports = reports
        self._queue = queue
        self._clock = clock
        self._pending: list[Pending] = []
        self.touched = -math.inf
        """When a person was asked, or the last open request was answered, on Trio's clock."""

    @property
    def waiting(self) -> bool:
        """Whether a request waits for a person."""
        return bool(self._pending)

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
        if turn is None or turn.cancelling:
            return _at_once(CANCELLED)
        key, risk, outs = self._translator.requested(request.tool_call.raw)
        self._recorder.emit(outs)
        call = self._translator.call(key)
        hooks = self._hooks
        if hooks is not None and call and hooks.concerns(HookEvent.PRE_TOOL_USE, call.tool_name):
            self._check_room()
            self._recorder.emit(self._translator.ask(key))
            self._hooked += 1
            return self._after_hooks(hooks, request, key, call, turn)
        return self._by_policy(request, key, risk)

    async def _after_hooks(
        self, hooks: Hooks, request: PermissionRequest, key: str, call: ToolCallState, turn: Turn
    ) -> Mapping[str, Any]:
        """Ask the hooks, then whoever the policy names."""
        try:
            if self._over(turn):
                return CANCELLED  # before this began
            said = await hooks.ask(hooks.before_call(call))
        finally:
            self._hooked -= 1
            self.touched = self._clock()
        if said.cancelled or self._over(turn) or self._translator.call(key) is not call:
            return CANCELLED
        if said.blocked:
            self._recorder.emit(self._translator.reject(key, said.reason, "hook"))
            return reject(request.options)
        return await self._by_policy(request, key, call.risk)

    def _over(self, turn: Turn) -> bool:
        return self._queue.turn is not turn or turn.cancelling

    def _check_room(self) -> None:
        if len(self._pending) + self._hooked >= WAITING_MAX:
            raise RpcError(
                TOO_MANY, f"{WAITING_MAX} permission requests are waiting already; wait for an answer"
            )

    def _by_policy(
        self, request: PermissionRequest, key: str, risk: SecurityRisk
    ) -> Awaitable[Mapping[str, Any]]:
        if not asks_a_person(self._record.confirmation_policy, risk):
            allowed = allow(request.options)
            if allowed is not None:
                self._recorder.emit(self._translator.allowed(key))
                return _at_once(allowed)
            self._recorder.emit(self._translator.ask(key))
            reason = "The agent offered no way to allow this call once."
            self._recorder.emit(self._translator.reject(key, reason))
            return _at_once(reject(request.options))
        self._check_room()
        outs = self._translator.ask(key)
        pending = Pending(key, request.options)
        self._pending.append(pending)
        self._recorder.emit(outs)
        self._reports.waiting()
        self.touched = self._clock()
        return self._decision(pending)

    async def _decision(self, pending: Pending) -> Mapping[str, Any]:
        """Wait for the answer.

        Cancelled when the agent takes its request back or is gone: the person is then no longer asked.
        """
        try:
            await pending.decided.wait()
        finally:
            self._pending.remove(pending)
            self._waited()
        return pending.answer or CANCELLED

    def _waited(self) -> None:
        if self._pending:
            return
        self.touched = self._clock()
        waiting = self._record.execution_status is ExecutionStatus.WAITING_FOR_CONFIRMATION
        if waiting and self._queue.turn is not None:
            self._reports.status(ExecutionStatus.RUNNING)

    def decide(self, accept: bool, reason: str) -> bool:
        """Answer all waiting requests: allow each call once (permanently if the agent offers nothing less),
        or reject it.

        Returns False if none waits. Raises JournalError.
        """
        if not self._pending:
            return False
        for pending in self._open():
            if accept:
                pending.decide(allow(pending.options) or allow_standing(pending.options) or CANCELLED)
            else:
                pending.decide(reject(pending.options))
                self._recorder.emit(self._translator.reject(pending.key, reason))
        self._reports.status(ExecutionStatus.RUNNING)
        return True

    def cancel(self) -> None:
        """Answer all requests with `cancelled`: the turn has ended, or is being cancelled."""
        for pending in self._open():
            pending.decide(CANCELLED)
        if self._hooks is not None:
            self._hooks.cancel(HookEvent.PRE_TOOL_USE)

    def _open(self) -> list[Pending]:
        return [pending for pending in self._pending if pending.answer is None]

    def policy_changed(self) -> None:
        """Apply the changed policy of the record from the next request on."""
        hooked = self._hooks is not None and self._hooks.has(HookEvent.PRE_TOOL_USE)
        self._translator.confirming = hooked or may_ask(self._record.confirmation_policy)


async def _at_once(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    return answer
