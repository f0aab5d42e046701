"""What an agent asks before it acts: answered at once by the policy, or by a person in their own time.

`permissions` is the policy; `confirmations` are the requests that wait.
"""

from __future__ import annotations

from collections.abc import Awaitable, Mapping
from typing import Any, Final

from supervisor.acp import RpcError, parse_permission

from . import permissions
from .confirmations import Confirmations
from .recorder import Recorder
from .reports import Reports
from .silence import SilenceWatch
from .translate import Translator
from .turns import Turns

TOO_MANY: Final = -32603
"""The protocol's code for an error of ours: it has none for a limit."""

WAITING_MAX: Final = 100
"""Requests of one agent that may wait for a person at the same time: more than a person answers."""


class PermissionRequests:
    """Those of one conversation. A request is taken in where it stands among the updates: its call is an
    event, and the state is told, before anything that comes after it is looked at."""

    def __init__(
        self,
        recorder: Recorder,
        translator: Translator,
        reports: Reports,
        turns: Turns,
        confirmations: Confirmations,
        silence: SilenceWatch,
    ) -> None:
        self._recorder = recorder
        self._record = recorder.record
        self._translator = translator
        self._reports = reports
        self._turns = turns
        self._confirmations = confirmations
        self._silence = silence

    def ask(self, params: Any) -> Awaitable[Mapping[str, Any]]:
        """Take in a `session/request_permission`. What it returns gives the protocol's answer when awaited.

        That waits for as long as a person does; cancelling it means that the agent took the request back,
        or is gone. Raises RpcError (-32602 for parameters that name no call, -32603 when too
        many wait already), JournalError.
        """
        request = parse_permission(params)
        if self._turns.current is None or self._turns.cancelling:
            return _at_once(permissions.CANCELLED)
        if not permissions.asks_a_person(self._record.confirmation_policy):
            self._recorder.emit(self._translator.allowed(request.tool_call.raw))
            allowed = permissions.allow(request.options)
            if allowed is not None:
                return _at_once(allowed)
            key, outs = self._translator.ask(request.tool_call.raw)
            self._recorder.emit(
                [*outs, *self._translator.reject(key, "The agent offered no way to allow this call once.")]
            )
            return _at_once(permissions.reject(request.options))
        if len(self._confirmations) >= WAITING_MAX:
            raise RpcError(TOO_MANY, f"{WAITING_MAX} requests wait for a person already")
        key, outs = self._translator.ask(request.tool_call.raw)
        pending = self._confirmations.add(key, request.options)
        self._recorder.emit(outs)
        self._reports.waiting()
        self._silence.touch()
        return self._confirmations.wait(pending, self._waited)

    def _waited(self) -> None:
        if self._confirmations:
            return
        self._silence.touch()
        if self._record.execution_status == "waiting_for_confirmation" and self._turns.current is not None:
            self._reports.status("running")

    def decide(self, accept: bool, reason: str) -> bool:
        """A person's answer to everything that waits. False when nothing waits. Raises JournalError."""
        if not self._confirmations:
            return False
        if accept:
            self._confirmations.accept()
        else:
            for key in self._confirmations.reject():
                self._recorder.emit(self._translator.reject(key, reason))
        self._reports.status("running")
        return True

    def policy_changed(self) -> None:
        """The record's policy is another one now; it counts from the next request on."""
        self._translator.confirming = permissions.asks_a_person(self._record.confirmation_policy)


async def _at_once(answer: Mapping[str, Any]) -> Mapping[str, Any]:
    return answer
