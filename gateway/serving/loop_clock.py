"""Trio's clock for a server, which counts no pause of the whole process."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import trio

LOOK_SECONDS: Final = 1.0
"""The longest sleep of the loop, in seconds: a longer one could not be distinguished from a pause."""

MOST_COUNTED_SECONDS: Final = 2.0
"""The most seconds that pass on the loop's clock from one look at it to the next.

More than a sleep and a busy pass take; less than any deadline by default, so that none ends by a pause alone.
"""

BEGINNING_SECONDS: Final = 100_000.0
"""What the loop's clock shows at first: to those who compare with 0, that is long ago."""


class LoopClock(trio.abc.Clock):
    """Trio's clock for a server. It stands still while the whole process does (SIGSTOP, a machine that was
    suspended): a deadline counts the time in which the server could have seen what it waits for.

    With Trio's own clock, the first pass after a pause finds every deadline over, and everything that the
    pause interrupted fails: agents that start, tool calls, connections.

    `read`: seconds of a clock that never goes back.
    """

    def __init__(self, read: Callable[[], float] = time.perf_counter) -> None:
        self._read = read
        self._last = read()
        self._now = BEGINNING_SECONDS

    def start_clock(self) -> None:
        """Begin to count."""
        self._last = self._read()

    def current_time(self) -> float:
        """Seconds that have been counted."""
        read = self._read()
        passed = read - self._last
        self._now += passed if passed < MOST_COUNTED_SECONDS else MOST_COUNTED_SECONDS
        self._last = read
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Seconds until the deadline, or until the clock must be looked at."""
        return min(deadline - self.current_time(), LOOK_SECONDS)
