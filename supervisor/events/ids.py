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
    global _millisecond
    now = time.time_ns() // 1_000_000
    if _millisecond[0] != now:
        _millisecond = (now, f"{now >> 16:08x}-{now & 0xFFFF:04x}-7")
    digits = f"{random.getrandbits(76) & _RANDOM | _VARIANT:019x}"
    return f"{_millisecond[1]}{digits[:3]}-{digits[3:7]}-{digits[7:]}"


_VARIANT = 0x000_8000_0000_0000_0000
_RANDOM = 0xFFF_3FFF_FFFF_FFFF_FFFF

_millisecond = (0, "")
"""The last millisecond, written out as the beginning of an id."""

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
