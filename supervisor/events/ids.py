"""The two values that every event gets from us: an id and a timestamp."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime


def new_event_id() -> str:
    """A fresh event id: a random UUID in its dashed form."""
    return str(uuid.uuid4())


def timestamp_now() -> str:
    """The present, UTC, in ISO 8601 with always six fractional digits and the suffix `Z`.

    The width is fixed, so strings compare as the times do.
    """
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
