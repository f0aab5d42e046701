"""Permission requests that wait for a person."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import trio

from supervisor.acp import PermissionOption

from . import permissions


@attrs.define(eq=False)
class Pending:
    """One request. `key` names its call; `answer` is None until somebody decides."""

    key: str
    options: Sequence[PermissionOption]
    decided: trio.Event = attrs.field(factory=trio.Event)
    answer: Mapping[str, Any] | None = None

    def decide(self, answer: Mapping[str, Any]) -> None:
        """Answer it; the first decision stays."""
        if self.answer is None:
            self.answer = answer
            self.decided.set()


class Confirmations:
    """All of a conversation's. A person's word goes for those that are open at the time."""

    def __init__(self) -> None:
        self._pending: list[Pending] = []

    def __len__(self) -> int:
        return len(self._pending)

    def add(self, key: str, options: Sequence[PermissionOption]) -> Pending:
        """Begin to wait."""
        pending = Pending(key, options)
        self._pending.append(pending)
        return pending

    async def wait(self, pending: Pending, done: Callable[[], None]) -> Mapping[str, Any]:
        """The answer for the agent, once there is one. `done` is called when the waiting is over.

        Cancelled when the agent takes its request back or is gone: nobody is asked any longer then.
        """
        try:
            await pending.decided.wait()
        finally:
            self._pending.remove(pending)
            done()
        return pending.answer or permissions.CANCELLED

    def accept(self) -> None:
        """A person allows what is asked: this once, or for good where the agent offers nothing less."""
        for pending in self._open():
            answer = permissions.allow(pending.options) or permissions.allow_standing(pending.options)
            pending.decide(answer or permissions.CANCELLED)

    def reject(self) -> list[str]:
        """A person rejects what is asked. Returns the keys of the calls."""
        rejected = self._open()
        for pending in rejected:
            pending.decide(permissions.reject(pending.options))
        return [pending.key for pending in rejected]

    def cancel(self) -> None:
        """Nobody will answer: the turn is over, or is being cancelled."""
        for pending in self._open():
            pending.decide(permissions.CANCELLED)

    def _open(self) -> list[Pending]:
        return [pending for pending in self._pending if pending.answer is None]
