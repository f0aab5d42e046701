"""The event types as JSON Schema components, for the OpenAPI document."""

from __future__ import annotations

from functools import partial
from typing import Any

from supervisor.events.types import Event
from supervisor.events.vocabulary import Vocabulary, has_property, is_within
from supervisor.reading.model import HTTPValidationError
from supervisor.reading.schema import Components


def json_schema(vocabulary: Vocabulary = Vocabulary.EXTENDED) -> dict[str, Any]:
    """The schema of every type by name, with `Event`, `Action`, `Observation` and `ToolDefinition` as unions.

    References point into `#/components/schemas/`. A fresh object each time.
    """
    components = Components(
        keeps=partial(is_within, vocabulary=vocabulary),
        keeps_property=partial(has_property, vocabulary=vocabulary),
    )
    return dict(sorted(components.add(Event, HTTPValidationError).items()))
