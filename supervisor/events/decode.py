"""Events and messages from JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from supervisor.events.parts import Message
from supervisor.events.types import Event
from supervisor.reading.decode import decode


def decode_event(obj: Any) -> Event:
    """Read an event of either vocabulary. Raises Invalid."""
    return decode(Event, obj)


def decode_message(obj: Any) -> Message:
    """Read a message as clients send it; a missing `role` is `user`, as in their request to send one.

    Unknown properties (clients add `run`) are ignored. Raises Invalid.
    """
    return decode(Message, {"role": "user", **obj} if isinstance(obj, Mapping) else obj)
