"""Times as clients write them, turned into the form that the journal stores and compares."""

from __future__ import annotations

import re
from datetime import UTC, datetime

# A "+" that a client did not escape arrives as a space.
LOST_PLUS = re.compile(r"(T.*) (\d\d:?\d\d)$")


def parse_timestamp(text: str) -> str:
    """ISO 8601, naive (server-local) or with a zone, as UTC with six fractional digits and `Z`.

    Strings of that form compare in time order. Raises ValueError for anything else.
    """
    try:
        moment = datetime.fromisoformat(LOST_PLUS.sub(r"\1+\2", text.strip()))
        return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    except (ValueError, OverflowError):
        raise ValueError(f"{text!r} is no ISO 8601 date and time") from None
