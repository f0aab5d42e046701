"""From the types to JSON as it is stored and shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from supervisor.reading.model import Model
from supervisor.reading.shapes import constant_of, properties_of


def as_json(obj: Model) -> dict[str, Any]:
    """The JSON object of `obj`, every property present. Untyped values are shared with it, not copied."""
    constant = constant_of(type(obj))
    out: dict[str, Any] = {} if constant is None else {constant[0]: constant[1]}
    for each in properties_of(type(obj)):
        out[each.name] = _plain(getattr(obj, each.attribute))
    return out


_LEAVES: Final = frozenset({str, int, float, bool, type(None)})


def _plain(value: Any) -> Any:
    if type(value) in _LEAVES:
        return value
    if isinstance(value, Model):
        return as_json(value)
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    if isinstance(value, dict | Mapping) and any(isinstance(each, Model) for each in value.values()):
        return {name: _plain(each) for name, each in value.items()}
    return value
