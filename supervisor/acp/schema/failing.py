"""What an agent says of a call of its model that failed, and that it makes again.

The protocol has no place for it: agents write it into `_meta`, updates and notifications of their own,
thoughts, and on standard error. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

import attrs

from supervisor.acp.schema.bounds import NAME_CHARS, WORDS_CHARS, cut
from supervisor.acp.schema.read import as_object
from supervisor.acp.schema.updates import AgentThoughtChunk, UnknownUpdate, Update

FAILING: Final = re.compile(
    r"re-?(?:try|tries|connect)|try(?:ing)? again|transient|overload|high demand|rate.?limit"
    r"|too many requests|api.{0,5}error|provider error|stream (?:error|disconnected)|fetch failed"
    r"|(?:cannot|unable to|failed to) (?:connect|lookup|resolve)"
    r"|connection (?:error|failed|refused|reset|lost)|time(?:d |-)?out"
    r"|\bE(?:CONN\w+|NOTFOUND|AI_AGAIN|TIMEDOUT)\b",
    re.IGNORECASE,
)
"""Words of a call that failed for a reason that may pass."""

CAUSE: Final = re.compile(
    r"transient (?:failure|error)|overloaded|high demand|rate.?limit|quota"
    r"|too many requests|\b(?:429|5\d\d)\b"
    r"|api.{0,5}error|provider error|stream (?:error|disconnected)|fetch failed|failed to (?:connect|lookup)"
    r"|connection (?:error|failed|refused|reset|lost)|attempt \d+ failed"
    r"|\bE(?:CONN\w+|NOTFOUND|AI_AGAIN|TIMEDOUT)\b",
    re.IGNORECASE,
)
AGAIN: Final = re.compile(r"re-?(?:try|tries|connect)|try(?:ing)? again", re.IGNORECASE)
"""A thought that reports a failed call has both: models think about the failures of other programs, too."""

NOTICE_CHARS: Final = 160
"""The most characters of such a thought: those of programs are one line."""

SEARCHED_MAX: Final = 64
"""The most members of a message that are searched: those that were seen have some ten."""

DEPTH_MAX: Final = 6
"""How deep their objects are searched: those that were seen have four."""

COUNT_MAX: Final = 1e9
"""Attempts, and milliseconds until the next, beyond which a number is none of them: a billion is ten days."""

_WORDS: Final = frozenset(
    {"title", "message", "detail", "details", "additionaldetails", "description", "error", "category"}
)
_NO_WORDS: Final = frozenset({"", "unknown"})
_KINDS: Final = frozenset({"type", "subtype"})
_STATUS: Final = frozenset({"errorstatus", "httpstatuscode"})


@attrs.frozen
class CallFailure:
    """A failed call of the model: the agent's words, and, where it says so, which attempt of how many it
    was, and the seconds until the next."""

    words: str
    attempt: int | None = None
    attempts: int | None = None
    next_seconds: float | None = None


def failure_in_update(update: Update) -> CallFailure | None:
    """The failed call that an update reports: in its `_meta`, as a thought, or anywhere in one that the
    protocol does not have."""
    if type(update) is AgentThoughtChunk and (failure := _failure_in_thought(update.text or "")):
        return failure
    raw = as_object(update.raw)
    said = raw if type(update) is UnknownUpdate else raw.get("_meta")
    return failure_in("", said) if said else None


def _failure_in_thought(text: str) -> CallFailure | None:
    words = text.strip() if len(text) <= NOTICE_CHARS else ""
    if "\n" in words or not (AGAIN.search(words) and CAUSE.search(words)):
        return None
    return CallFailure(words)


def failure_in(name: str, value: Any) -> CallFailure | None:
    """What a message says of a failed call. `name`: that of a notification."""
    words: list[str] = []
    kinds = [name[:NAME_CHARS]]
    numbers: dict[str, float] = {}
    unanswered = False
    for key, member in _members(value):
        folded = key.replace("_", "").lower()
        if isinstance(member, str):
            if folded in _WORDS and member not in _NO_WORDS:
                words.append(" ".join(member[:WORDS_CHARS].split()))
            elif folded in _KINDS:
                kinds.append(member[:NAME_CHARS])
        elif folded in _STATUS and member is None:
            unanswered = True
        elif type(member) in (int, float) and 0 <= member < COUNT_MAX:
            numbers.setdefault("status" if folded in _STATUS else folded, member)
    if not FAILING.search(" ".join((*kinds, *words))):
        return None
    said = ": ".join(dict.fromkeys(words)) or ("no HTTP answer" if unanswered else kinds[-1])
    status = numbers.get("status")
    if status is not None and f"{status:.0f}" not in said:
        said += f" (HTTP {status:.0f})"
    delay = numbers.get("retrydelayms")
    return CallFailure(
        cut(said, WORDS_CHARS),
        _count(numbers.get("attempt")),
        _count(numbers.get("maxretries", numbers.get("maxattempts"))),
        None if delay is None else round(delay / 1000, 1),
    )


def _count(number: float | None) -> int | None:
    return None if number is None else int(number)


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """The members of a message's objects, in the order in which they stand, the first SEARCHED_MAX."""
    left = SEARCHED_MAX
    stack: list[Iterator[tuple[str, Any]]] = [_items("", value)]
    while stack and left:
        for key, member in stack[-1]:
            left -= 1
            yield key, member
            if isinstance(member, dict | list) and len(stack) < DEPTH_MAX:
                stack.append(_items(key, member))
                break
            if not left:
                break
        else:
            stack.pop()


def _items(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        return ((str(name), member) for name, member in value.items())
    return ((key, member) for member in value) if isinstance(value, list) else iter(())
