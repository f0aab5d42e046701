"""The ids of tool calls that an agent has used in its session: which are over, which are used again. Pure.

Calls that did not end by themselves are remembered, to be known when they are announced again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Any, Final

import attrs

from supervisor.acp.schema import NAME_CHARS
from supervisor.conversations.recording.bounds.truncation import Packed, dump
from supervisor.conversations.recording.tool_calls.calls import TITLE_CHARS, ToolCallState
from supervisor.conversations.recording.tool_calls.consent import result_of, shows_work

STOPPED_MAX: Final = 1_000
"""Calls per session that are known again when they are announced again after their end."""


@attrs.frozen
class Stopped:
    """A call that did not end by itself, to be known again. `titles` are hashes of those that it had, `given`
    is a digest of its input. `rejected`: the answer was no, and not that none was given. `guessed`: the
    question named no call."""

    titles: frozenset[int]
    title: str
    kind: str | None
    name: str | None
    given: bytes | None
    call_id: str = ""
    rejected: bool = False
    guessed: bool = False

    @classmethod
    def of(cls, call: ToolCallState) -> Stopped:
        """What is remembered of a call."""
        titles = frozenset(map(hash, (call.title, call.first_title)))
        return cls(
            titles,
            call.title[:NAME_CHARS],
            call.kind,
            call.name,
            _digest(call.raw_input),
            call.call_id,
            call.rejection is not None,
            call.guessed,
        )

    def again(self, raw: Mapping[str, Any], *, at_once: bool) -> bool:
        """Whether an update under the same id is about this call. `at_once`: it is no new announcement, and
        comes in the turn in which the call was stopped.

        Some agents do so to say that it failed, or that they wait for an answer that they have had. With
        another input, or another title where there is none, it is another call; and an interrupted one that
        completed was carried out.
        """
        if at_once:
            return True
        if raw.get("status") == "completed" and not self.rejected:
            return False
        given = raw.get("rawInput")
        if given is not None and self.given is not None:
            return _digest(given) == self.given
        title = raw.get("title")
        return not isinstance(title, str) or not title or hash(title[:TITLE_CHARS]) in self.titles


@attrs.frozen
class LateWord:
    """What an agent said of a call that is over: what came of it, and whether that shows that it ran."""

    said: str = ""
    works: bool = False


def _digest(value: Any) -> bytes | None:
    if value is None:
        return None
    body = value.body if isinstance(value, Packed) else dump(value)
    return hashlib.blake2b(body, digest_size=16).digest()


def remember(calls: dict[int, Stopped], number: int, call: ToolCallState) -> None:
    """Keep what is to be known of a call; the oldest are forgotten."""
    calls[number] = Stopped.of(call)
    if len(calls) > STOPPED_MAX:
        del calls[next(iter(calls))]


USED_IDS_MAX: Final = 50_000
"""Tool call ids kept per session to recognize a reused one; beyond it the oldest are forgotten.

They are kept as numbers, so that together they take some six megabytes, however long the ids are.
"""


LATE_MAX: Final = 100
"""Calls of one turn whose late words are kept: as many questions may wait at once."""


@attrs.define(eq=False)
class CallIds:
    """What is known of the ids of one session's calls."""

    _used: dict[int, int] = attrs.field(factory=dict)
    _stopped: dict[int, Stopped] = attrs.field(factory=dict)
    _presumed: dict[int, Stopped] = attrs.field(factory=dict)
    _now: dict[int, LateWord] = attrs.field(factory=dict)
    """Those that were stopped in this turn, and what the agent said of each since."""

    def clear(self) -> None:
        """Another session begins: its agent may use all of them."""
        self._used.clear()
        self._stopped.clear()
        self._presumed.clear()
        self._now.clear()

    def new_turn(self) -> None:
        """Another turn begins: what was stopped before may be tried again."""
        self._now.clear()

    def is_over(self, agent_id: str | None, raw: Mapping[str, Any], *, new: bool) -> bool:
        """Whether an update about no open call is about one that is over, and so begins no new one."""
        if new and not self._stopped:
            return False
        number = _number(agent_id)
        if number in self._presumed:
            return False
        stopped = self._stopped.get(number)
        if stopped is not None and stopped.again(raw, at_once=not new and number in self._now):
            return True
        # One that says that the call runs starts a new one under the same id.
        opens = raw.get("status") in ("pending", "in_progress") and raw.get("title") is not None
        return not new and number in self._used and not opens

    def carried_out(
        self, agent_id: str | None, raw: Mapping[str, Any], in_terminal: Callable[[], bool]
    ) -> tuple[Stopped, LateWord] | None:
        """A late update of a call: the call, and what the agent said of it since, where it was rejected in
        this turn and is reported as completed. `in_terminal`: whether the update names one of Ostler's
        terminals."""
        number = _number(agent_id)
        word = self._now.get(number)
        stopped = self._stopped.get(number)
        if word is None or stopped is None or not stopped.rejected:
            return None
        word = LateWord(
            result_of(raw.get("content"), raw.get("rawOutput")) or word.said,
            word.works or in_terminal() or shows_work(raw, whole=True),
        )
        self._now[number] = word
        if raw.get("status") != "completed":
            return None
        del self._now[number]
        return stopped, word

    def use(self, agent_id: str) -> tuple[int, Stopped | None]:
        """A call begins under an id: how often that is used now, and what was known of a call that was
        presumed to be over."""
        number = _number(agent_id)
        uses = self._used.pop(number, 0) + 1
        self._used[number] = uses
        if len(self._used) > USED_IDS_MAX:
            del self._used[next(iter(self._used))]
        before = None
        if self._stopped or self._presumed:
            self._stopped.pop(number, None)
            self._now.pop(number, None)
            before = self._presumed.pop(number, None)
        return uses, before

    def stop(self, call: ToolCallState) -> None:
        """A call did not end by itself."""
        number = _number(call.agent_call_id)
        remember(self._stopped, number, call)
        if len(self._now) < LATE_MAX:
            self._now[number] = LateWord()

    def presume(self, call: ToolCallState) -> None:
        """A call is presumed to be over, since its agent has continued."""
        remember(self._presumed, _number(call.agent_call_id), call)


def _number(agent_id: str | None) -> int:
    """What is remembered of a call's id."""
    return hash(agent_id)  # of 64 bits, and with a key of this process that no agent knows
