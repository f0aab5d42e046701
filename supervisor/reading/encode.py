"""From the types to JSON as it is stored and shown: every property present, null where there is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from supervisor.reading.model import Model
from supervisor.reading.shapes import constant_of, properties_of


def as_json(obj: Model) -> dict[str, Any]:
    """The JSON object of `obj`. What nobody types is shared with it, not copied."""
    constant = constant_of(type(obj))
    out: dict[str, Any] = {} if constant is None else {constant[0]: constant[1]}
    for each in properties_of(type(obj)):
        out[each.name] = _plain(getattr(obj, each.attribute))
    return out


def _plain(value: Any) -> Any:
    if isinstance(value, Model):
        return as_json(value)
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, Mapping) and any(isinstance(each, Model | tuple) for each in value.values()):
        return {name: _plain(each) for name, each in value.items()}
    return value
