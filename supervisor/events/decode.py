"""Events and messages from JSON, and their JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from supervisor.events.parts import Message
from supervisor.events.types import Event
from supervisor.events.vocabulary import Vocabulary, has_property, is_within
from supervisor.reading.decode import decode
from supervisor.reading.model import HTTPValidationError
from supervisor.reading.schema import Components


def decode_event(obj: Any) -> Event:
    """Read an event of either vocabulary. Raises Invalid."""
    return decode(Event, obj)


def decode_message(obj: Any) -> Message:
    """Read a message as clients send it; a missing `role` is `user`, as in their request to send one.

    Unknown properties (clients add `run`) are ignored. Raises Invalid.
    """
    return decode(Message, {"role": "user", **obj} if isinstance(obj, Mapping) else obj)


def json_schema(vocabulary: Vocabulary = Vocabulary.EXTENDED) -> dict[str, Any]:
    """The schema of every type by name, with `Event`, `Action`, `Observation` and `ToolDefinition` as unions.

    References point into `#/components/schemas/`. A fresh object each time.
    """
    components = Components(
        keeps=partial(is_within, vocabulary=vocabulary),
        keeps_property=partial(has_property, vocabulary=vocabulary),
    )
    return dict(sorted(components.add(Event, HTTPValidationError).items()))
