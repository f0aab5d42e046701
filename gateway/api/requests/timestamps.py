"""Times in the form that the journal stores and compares, from clients' text and from Trio's clock."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime, tzinfo
from typing import Final

import trio

CHANGED_SECONDS: Final = 1.0
"""If the clocks drift apart by more seconds than this, the wall clock was set or the loop's clock paused."""

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
    """Converts times of Trio's clock to dates. The offset is cached, so that a time has one date, until the
    clocks drift apart: by a pause of the server, or by a change of the wall clock."""

    def __init__(self) -> None:
        self._difference: float | None = None

    def date(self, moment: float) -> str:
        """ISO 8601, in UTC."""
        difference = time.time() - trio.current_time()
        if self._difference is None or abs(difference - self._difference) > CHANGED_SECONDS:
            self._difference = difference
        return _written(datetime.fromtimestamp(moment + self._difference, UTC))


def iso(seconds: float) -> str:
    """ISO 8601, in UTC, of seconds since the epoch."""
    return _written(datetime.fromtimestamp(seconds, UTC))


def _written(moment: datetime) -> str:
    return moment.isoformat(timespec="microseconds").replace("+00:00", "Z")
