"""From the types to JSON as it is stored and shown, and back again without judging it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from supervisor.reading.model import Model
from supervisor.reading.shapes import (
    Family,
    ListOf,
    MapOf,
    Narrowed,
    OneOf,
    Record,
    Shape,
    constant_of,
    member_of,
    properties_of,
)

M = TypeVar("M", bound=Model)


def as_json(obj: Model) -> dict[str, Any]:
    """The JSON object of `obj`, every property present. What nobody types is shared with it, not copied."""
    constant = constant_of(type(obj))
    out: dict[str, Any] = {} if constant is None else {constant[0]: constant[1]}
    for each in properties_of(type(obj)):
        out[each.name] = _plain(getattr(obj, each.attribute))
    return out


def from_json(model: type[M], obj: Mapping[str, Any]) -> M:
    """What `as_json` made the JSON of, perhaps in an earlier release: absent properties have their defaults,
    unknown ones are dropped. Nothing is checked: a rule of today is none for what was accepted before."""
    return model(
        **{
            each.attribute: _typed(obj[each.name], each.shape)
            for each in properties_of(model)
            if each.name in obj
        }
    )


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


def _typed(value: Any, shape: Shape) -> Any:
    if value is None:
        return None
    match shape:
        case Narrowed(inner):
            return _typed(value, inner)
        case ListOf(item):
            return tuple(_typed(each, item) for each in value)
        case MapOf(Record() | OneOf() | Family() as item):
            return {name: _typed(each, item) for name, each in value.items()}
        case Record(model):
            return from_json(model, value)
        case OneOf(models):
            return from_json(next(each for each in models if _is(each, value)), value)
        case Family(base):
            member = member_of(base, value["kind"])
            if member is None:
                raise KeyError(value["kind"])
            return from_json(member, value)
    return value


def _is(model: type[Model], value: Mapping[str, Any]) -> bool:
    constant = constant_of(model)
    return constant is not None and value.get(constant[0]) == constant[1]
