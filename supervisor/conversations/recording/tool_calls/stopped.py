"""Calls that did not end by themselves, to be known when they are announced again. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, Final

import attrs

from supervisor.acp.schema import NAME_CHARS
from supervisor.conversations.recording.bounds.truncation import Packed, dump
from supervisor.conversations.recording.tool_calls.calls import TITLE_CHARS, ToolCallState

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
