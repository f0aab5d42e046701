"""Reports an occurrence a few times, and then counts it. No I/O.

An agent can cause any report a million times.
"""

from __future__ import annotations

from typing import Final

import attrs

TOLD: Final = 10
"""How many of a kind are told one by one: enough to see what it is."""

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 600.0
"""When the first sum is told, in seconds after the first that was counted; each later pause is twice as long,
up to this."""


@attrs.frozen
class Repeats:
    """So many of a kind, of so many bytes together, since the last that was told."""

    what: str
    count: int
    size: int


@attrs.define
class RepeatLimiter:
    """Of one kind of thing, named `what`. Times are in seconds, of any clock that does not go back."""

    what: str
    _told: int = 0
    _count: int = 0
    _size: int = 0
    _pause: float = FIRST_PAUSE
    _due: float | None = None

    def note(self, size: int, now: float) -> bool:
        """One of `size` bytes; whether it is to be told by itself. If not, it is counted."""
        if self._told < TOLD:
            self._told += 1
            return True
        self._count += 1
        self._size += size
        if self._due is None:
            self._due = now + self._pause
        return False

    def due(self, now: float) -> Repeats | None:
        """The sum, when it is time to tell it."""
        if self._due is None or now < self._due:
            return None
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return self.rest()

    def rest(self) -> Repeats | None:
        """What was counted and not told yet; None for nothing."""
        if not self._count:
            return None
        told = Repeats(self.what, self._count, self._size)
        self._count = self._size = 0
        self._due = None
        return told
