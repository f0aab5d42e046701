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
    digits = f"{time.time_ns() // 1_000_000:012x}"
    rest = f"{random.getrandbits(74):019x}"
    variant = "89ab"[int(rest[3], 16) & 3]
    return f"{digits[:8]}-{digits[8:]}-7{rest[:3]}-{variant}{rest[4:7]}-{rest[7:]}"


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
