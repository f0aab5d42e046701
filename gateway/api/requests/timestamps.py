"""Times in the form that the journal stores and compares, from clients' text and from Trio's clock; and that
clock."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, tzinfo
from typing import Final

import trio

LOOK_SECONDS: Final = 1.0
"""The longest sleep of the loop, in seconds: a longer one could not be told from a pause."""

MOST_COUNTED_SECONDS: Final = 2.0
"""The most seconds that pass on the loop's clock from one look at it to the next.

More than a sleep and a busy pass take; less than any deadline by default, so that none ends by a pause alone.
"""

BEGINNING_SECONDS: Final = 100_000.0
"""What the loop's clock shows at first: to those who compare with 0, that is long ago."""

CHANGED_SECONDS: Final = 1.0
"""A wall clock that moved by more seconds than this was set, or the loop's clock stood still meanwhile."""

# A "+" that a client did not escape arrives as a space.
LOST_PLUS = re.compile(r"(T.*) (\d\d:?\d\d)$")


def parse_timestamp(text: str, naive: tzinfo | None = None) -> str:
    """ISO 8601, naive or with a zone, as UTC with six fractional digits and `Z`.

    `naive`: the zone of naive times; None is the server's.

    Strings of that form compare in time order. Raises ValueError for anything else.
    """
    try:
        moment = datetime.fromisoformat(LOST_PLUS.sub(r"\1+\2", text.strip()))
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=naive)
        return _written(moment.astimezone(UTC))
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is not an ISO 8601 date and time") from None


class Clock:
    """Moments of Trio's clock as dates. The difference is kept, so that a moment has one date, until the
    clocks were moved against each other: by a pause of the server, or a person."""

    def __init__(self) -> None:
        self._difference: float | None = None

    def date(self, moment: float) -> str:
        """ISO 8601, in UTC."""
        difference = time.time() - trio.current_time()
        if self._difference is None or abs(difference - self._difference) > CHANGED_SECONDS:
            self._difference = difference
        return _written(datetime.fromtimestamp(moment + self._difference, UTC))


class LoopClock(trio.abc.Clock):
    """Trio's clock for a server. It stands still while the whole process does (SIGSTOP, a machine that was
    suspended): a deadline counts the time in which the server could have seen what it waits for.

    With Trio's own, the first pass after a pause finds every deadline over, and what the pause held up
    fails: agents that start, calls of tools, connections.

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
        self._now += min(read - self._last, MOST_COUNTED_SECONDS)
        self._last = read
        return self._now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Seconds until the deadline, or until the clock must be looked at."""
        return min(deadline - self.current_time(), LOOK_SECONDS)


def iso(seconds: float) -> str:
    """ISO 8601, in UTC, of seconds since the epoch."""
    return _written(datetime.fromtimestamp(seconds, UTC))


def _written(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
