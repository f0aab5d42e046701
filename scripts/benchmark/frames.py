"""The events that the floors send, as the wire has them."""

from __future__ import annotations

import itertools
from typing import Any

import orjson

_numbers = itertools.count(1)


def event(kind: str, **fields: Any) -> bytes:
    """The JSON of an event; its id is the next number."""
    number = f"00000000-0000-7000-8000-{next(_numbers):012x}"
    return orjson.dumps(
        {"id": number, "timestamp": "2026-11-22T10:00:00.000000Z", "source": "agent", **fields, "kind": kind}
    )


def status(value: str) -> bytes:
    """What tells a client how its conversation stands."""
    return event("ConversationStateUpdateEvent", key="execution_status", value=value)
