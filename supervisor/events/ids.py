"""The two values that every event gets from us: an id and a timestamp."""

from __future__ import annotations

import os
import time
import uuid
from datetime import UTC, datetime
from typing import Final

_VERSION_7: Final = 7 << 76
_VARIANT: Final = 2 << 62
_RANDOM_A: Final = (1 << 12) - 1
_RANDOM_B: Final = (1 << 62) - 1


def new_event_id() -> str:
    """A fresh event id: a UUID of version 7 (RFC 9562) in its dashed form.

    It begins with the time in milliseconds, so ids grow, and the journal's index is written at its end
    instead of at random places; the other 74 bits are random.
    """
    random = int.from_bytes(os.urandom(10))
    value = (time.time_ns() // 1_000_000) << 80 | _VERSION_7 | (random >> 64 & _RANDOM_A) << 64 | _VARIANT
    return str(uuid.UUID(int=value | random & _RANDOM_B))


def timestamp_now() -> str:
    """The present, UTC, in ISO 8601 with always six fractional digits and the suffix `Z`.

    The width is fixed, so strings compare as the times do.
    """
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
