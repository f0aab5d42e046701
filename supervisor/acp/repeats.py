"""Rate limit for reports: the first occurrences are reported, later ones counted. No I/O.

An agent can cause any report a million times.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

REPORTED_MAX: Final = 10
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
    """Limits the reports of one kind, named `what`; `report` gets the sums of what is only counted.

    Times are in seconds, of any monotonic clock.
    """

    what: str
    report: Callable[[Repeats], None]
    _reported: int = 0
    _count: int = 0
    _size: int = 0
    _pause: float = FIRST_PAUSE
    _due: float | None = None

    def should_report(self, size: int, now: float) -> bool:
        """Note an occurrence of `size` bytes. Returns whether to report it; otherwise it is counted, and the
        sum reported when it is time."""
        if self._reported < REPORTED_MAX:
            self._reported += 1
            return True
        self._count += 1
        self._size += size
        if self._due is None:
            self._due = now + self._pause
        elif now >= self._due:
            self._pause = min(2 * self._pause, LONGEST_PAUSE)
            self.flush()
        return False

    def flush(self) -> None:
        """Report the sum that is not reported yet."""
        if self._count:
            counted = Repeats(self.what, self._count, self._size)
            self._count = self._size = 0
            self._due = None
            self.report(counted)
