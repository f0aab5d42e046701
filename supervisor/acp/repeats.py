"""Reports an occurrence a few times, and then counts it. No I/O.

An agent can cause any report a million times.
"""

from __future__ import annotations

from typing import Final

import attrs

TOLD: Final = 10
"""The number of occurrences that are reported one by one."""

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 600.0
"""Seconds after the first counted occurrence until the first sum is reported.

Each later pause is twice as long, up to the second figure.
"""


@attrs.frozen
class Repeats:
    """A number of occurrences, and their bytes, since the last report."""

    what: str
    count: int
    size: int


@attrs.define
class RepeatLimiter:
    """Limits the reports of one kind, named `what`. Times are in seconds, of any monotonic clock."""

    what: str
    _told: int = 0
    _count: int = 0
    _size: int = 0
    _pause: float = FIRST_PAUSE
    _due: float | None = None

    def note(self, size: int, now: float) -> bool:
        """Note one of `size` bytes. Returns whether it is to be reported by itself; if not, it is counted."""
        if self._told < TOLD:
            self._told += 1
            return True
        self._count += 1
        self._size += size
        if self._due is None:
            self._due = now + self._pause
        return False

    def due(self, now: float) -> Repeats | None:
        """The sum, when it is time to report it."""
        if self._due is None or now < self._due:
            return None
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return self.rest()

    def rest(self) -> Repeats | None:
        """What was counted and not reported yet; None for nothing."""
        if not self._count:
            return None
        told = Repeats(self.what, self._count, self._size)
        self._count = self._size = 0
        self._due = None
        return told
