"""The two values that every event gets from us: an id and a timestamp."""

from __future__ import annotations

import random
import time
from datetime import UTC, datetime


def new_event_id() -> str:
    """A fresh event id: a UUID of version 7 (RFC 9562) in its dashed form.

    It begins with the time in milliseconds, so ids grow, and the journal's index is written at its end
    instead of at random places; 74 bits are random (no secret: an id is not a credential). Written out by
    hand because every streamed delta has one.
    """
    number = (time.time_ns() // 1_000_000 << 80) | (random.getrandbits(80) & _RANDOM) | _VERSION
    digits = f"{number:032x}"
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"


_VERSION = 0x7000_8000_0000_0000_0000
_RANDOM = 0x0FFF_3FFF_FFFF_FFFF_FFFF

_second = (0, "")
"""The last second that was written out: a busy server writes thousands of times within one."""


def timestamp_now() -> str:
    """The present, UTC, in ISO 8601 with always six fractional digits and the suffix `Z`.

    The width is fixed, so strings compare as the times do.
    """
    global _second
    second, fraction = divmod(time.time_ns() // 1000, 1_000_000)
    if _second[0] != second:
        _second = (second, datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S"))
    return f"{_second[1]}.{fraction:06d}Z"
