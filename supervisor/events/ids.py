"""The two values that Ostler gives every event: an id and a timestamp."""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable
from datetime import UTC, datetime


def new_event_id() -> str:
    """A fresh event id: a UUID of version 7 (RFC 9562) in its dashed form.

    It begins with the time in milliseconds, and counts up within one from a random number of 73 bits (section
    6.2, method 2). So ids increase, and the journal appends to its index instead of writing at random
    positions. Not a secret: an id is not a credential. Hand-written for speed, since every event has one.
    """
    now = time.time_ns() // 1_000_000
    millisecond, beginning, count = _current
    if now != millisecond:
        beginning, count = _begin(now)
    return f"{beginning}{count():012x}"


def _begin(now: int) -> tuple[str, Callable[[], int]]:
    """Begin a millisecond. Threads may do so concurrently: each gets a separate random beginning."""
    global _current
    bits = random.getrandbits(26)
    variant = 0x8000 | bits & 0x3FFF
    beginning = f"{now >> 16:08x}-{now & 0xFFFF:04x}-7{bits >> 14:03x}-{variant:04x}-"
    count = itertools.count(random.getrandbits(47)).__next__
    _current = (now, beginning, count)
    return beginning, count


def _forget() -> None:
    """Reset in a forked process, which must not continue the ids of its parent."""
    global _current
    _current = (0, *_current[1:])


os.register_at_fork(after_in_child=_forget)

_current: tuple[int, str, Callable[[], int]] = (0, "", itertools.count().__next__)
"""The millisecond of the last id, what ids of it begin with, and what counts them."""

_second: tuple[int, str] = (0, "")
"""The last second, and how it is written: a busy server writes thousands of times within one. Threads replace
it as a whole."""


def timestamp_now() -> str:
    """The present, UTC, in ISO 8601 with always six fractional digits and the suffix `Z`.

    The width is fixed, so strings compare as the times do.
    """
    global _second
    now = time.time_ns() // 1000
    second, written = _second
    if now // 1_000_000 != second:
        second = now // 1_000_000
        written = datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S.")
        _second = second, written
    return f"{written}{now - second * 1_000_000:06d}Z"
