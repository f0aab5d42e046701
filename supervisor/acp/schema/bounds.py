"""Limits on the parts of an agent's answers that are not prose: ids, names, lists. Pure.

They bound what is kept of an answer for the life of a session, or shown to clients with a conversation. Prose
and payloads are bounded where events are made of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

ID_CHARS: Final = 200
"""Longest id of a tool call or a message, characters. Real ones have 10 to 100."""

EXACT_CHARS: Final = 1_000
"""Longest id that is sent back to the agent unchanged (a session, a model, a permission option), characters.
It cannot be shortened, so an object with a longer id is unusable."""

NAME_CHARS: Final = 200
"""Longest name, kind or status: a line."""

WORDS_CHARS: Final = 1_000
"""Longest description, hint or link: a paragraph."""

ITEMS_MAX: Final = 1_000
"""The most items of a list, or members of an object, that are read: more models, commands or plan entries
than a person would read."""

STRING_CHARS: Final = 4_000
"""Longest string kept of an answer, characters. Longer than EXACT_CHARS, so that a cut id is still recognised
as too long."""

MEMBER_BYTES: Final = 256 * 1024
"""About how much of one member of an answer is kept, bytes. A thousand models with their descriptions."""

_DEPTH: Final = 16
"""Deepest nesting that is kept of an answer: far more than the protocol has."""

_ITEM_BYTES: Final = 8
"""Overhead counted for each item of a list or an object, bytes."""


def short_id(text: str, limit: int = ID_CHARS) -> str:
    """Shorten an id to at most `limit` characters: a longer one is cut, and ends with a digest of the whole
    id.

    The result is deterministic, and distinct ids stay distinct.
    """
    if len(text) <= limit:
        return text
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
    return f"{text[: limit - len(digest) - 1]}…{digest}"


def cut(text: str, limit: int) -> str:
    """Return the first `limit` characters of a text, and a note of how many were cut."""
    return text if len(text) <= limit else f"{text[:limit]}… [{len(text) - limit} characters cut]"


def bounded(value: Any, limit: int) -> Any:
    """About the first `limit` bytes of a JSON value, each string within its bounds."""
    return Kept(limit)._value(value, _DEPTH)


@attrs.define
class Members:
    """Merges successive objects: the latest value of each member, about `left` bytes in all.

    Merging takes time proportional to the new object, not to what is kept.
    """

    left: int
    values: dict[str, Any] = attrs.field(factory=dict)
    _sizes: dict[str, int] = attrs.field(factory=dict)

    def take(self, given: Mapping[str, Any]) -> None:
        """Merge the members of an object, as far as the limit allows."""
        for name, value in given.items():
            key = short_id(name)
            kept = Kept(self.left + self._sizes.get(key, 0))
            if kept.left > 0:
                room = kept.left
                self.values |= kept._object({name: value}, _DEPTH)
                self._sizes[key] = room - kept.left
                self.left = kept.left


@attrs.define
class Kept:
    """Bounds an answer. `lost_items` and `lost_chars` count what is dropped."""

    left: int = MEMBER_BYTES
    lost_items: int = 0
    lost_chars: int = 0

    @property
    def lost(self) -> str | None:
        """A description of what was dropped; None if nothing was."""
        parts = []
        if self.lost_items:
            parts.append(f"{self.lost_items} items")
        if self.lost_chars:
            parts.append(f"{self.lost_chars} characters")
        return f"{' and '.join(parts)} left out: the answer is over the limit" if parts else None

    def members(self, obj: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
        """The object with each member bounded. The `known` members come first, each with a separate limit, so
        that unknown ones cannot displace them."""
        kept: dict[str, Any] = {}
        for key in known:
            if key in obj:
                self.left = MEMBER_BYTES
                kept[key] = self._value(obj[key], _DEPTH)
        self.left = MEMBER_BYTES
        rest = {key: value for key, value in obj.items() if key not in kept} if len(obj) > len(kept) else {}
        return kept | self._object(rest, _DEPTH)

    def _value(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._string(value)
        if isinstance(value, dict):
            return self._object(value, depth - 1)
        if isinstance(value, list):
            return self._list(value, depth - 1)
        return value

    def _string(self, value: str) -> str:
        short = cut(value, STRING_CHARS)
        if short is not value:
            self.lost_chars += len(value) - STRING_CHARS
        self.left -= len(short)
        return short

    def _object(self, value: dict[str, Any], depth: int) -> dict[str, Any]:
        kept: dict[str, Any] = {}
        for key, item in value.items():
            if self.left <= 0 or depth < 0 or len(kept) >= ITEMS_MAX:
                self.lost_items += len(value) - len(kept)
                break
            self.left -= len(key) + _ITEM_BYTES
            kept[short_id(key)] = self._value(item, depth)
        return kept

    def _list(self, value: list[Any], depth: int) -> list[Any]:
        kept: list[Any] = []
        for item in value:
            if self.left <= 0 or depth < 0 or len(kept) >= ITEMS_MAX:
                self.lost_items += len(value) - len(kept)
                break
            self.left -= _ITEM_BYTES
            kept.append(self._value(item, depth))
        return kept
