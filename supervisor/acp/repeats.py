"""Rate limit for reports: the first occurrences are reported, later ones counted. No I/O.

An agent can cause any report a million times.
"""

from __future__ import annotations

from typing import Final

import attrs

TOLD: Final = 10
"""The number of occurrences that are reported one by one."""

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 600.0
"""FIRST_PAUSE: seconds from the first counted occurrence to the first reported sum.

Each later pause is twice as long, up to LONGEST_PAUSE.
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
        """Note an occurrence of `size` bytes. Returns whether to report it; otherwise it is counted."""
        if self._told < TOLD:
            self._told += 1
            return True
        self._count += 1
        self._size += size
        if self._due is None:
            self._due = now + self._pause
        return False

    def due(self, now: float) -> Repeats | None:
        """The sum since the last report, if a report is due; else None."""
        if self._due is None or now < self._due:
            return None
        self._pause = min(2 * self._pause, LONGEST_PAUSE)
        return self.rest()

    def rest(self) -> Repeats | None:
        """The sum that is not reported yet; None if there is none."""
        if not self._count:
            return None
        told = Repeats(self.what, self._count, self._size)
        self._count = self._size = 0
        self._due = None
        return told
