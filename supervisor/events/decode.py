"""From JSON to the types: strict, with every error of a document located.

Nothing is coerced: a string is no number, `true` is no 1. Decoders are compiled once per type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from supervisor.events.errors import Errors, Location
from supervisor.events.model import Model, Variant
from supervisor.events.parts import Message
from supervisor.events.shapes import (
    Choice,
    Family,
    Fixed,
    Free,
    ListOf,
    MapOf,
    OneOf,
    Property,
    Record,
    Scalar,
    Shape,
    constant_of,
    members_of,
    once_per_type,
    properties_of,
    shape_of,
)
from supervisor.events.types import Event

M = TypeVar("M", bound=Model)

_Decode = Callable[[Any, Location, Errors], Any]
"""Reads a value found at a place. On an error it notes it and returns anything."""

_TYPE_ERRORS: Final[dict[type, tuple[str, str]]] = {
    str: ("string_type", "Input should be a string"),
    int: ("int_type", "Input should be an integer"),
    float: ("float_type", "Input should be a number"),
    bool: ("bool_type", "Input should be true or false"),
}
_ACCEPTED: Final[dict[type, tuple[type, ...]]] = {float: (float, int)}
"""What Python reads a JSON value of a type into, where it is more than the type."""


def decode(model: type[M], obj: Any) -> M:
    """Read `obj`, parsed JSON, as a `model`; a family is read as whichever of its kinds `obj` says it is.

    Raises EventValidationError with every error found.
    """
    errors = Errors()
    result = _decoder(shape_of(model))(obj, (), errors)
    errors.raise_if_any()
    return result  # type: ignore[no-any-return]


def decode_event(obj: Any) -> Event:
    """Read an event of either vocabulary. Raises EventValidationError."""
    return decode(Event, obj)


def decode_message(obj: Any) -> Message:
    """Read a message as clients send it; a missing `role` is `user`, as in their request to send one.

    Unknown properties (clients add `run`) are ignored. Raises EventValidationError.
    """
    return decode(Message, {"role": "user", **obj} if isinstance(obj, Mapping) else obj)


def _decoder(shape: Shape) -> _Decode:
    match shape:
        case Free():
            return _free
        case Scalar(types):
            return _scalar(types)
        case Choice():
            return _choice(shape)
        case ListOf(item):
            return _list(_decoder(item))
        case Fixed(items):
            return _fixed(tuple(map(_decoder, items)))
        case MapOf(item):
            return _map(_decoder(item))
        case Record(model):
            return _record(model)
        case OneOf(models):
            return _one_of(models)
        case Family(base):
            return _family(base)


def _free(value: Any, loc: Location, errors: Errors) -> Any:
    return value


def _scalar(types: tuple[type, ...]) -> _Decode:
    accepted = tuple({each for type_ in types for each in _ACCEPTED.get(type_, (type_,))})
    kind, message = _TYPE_ERRORS[types[0]]
    if len(types) > 1:
        message = " or ".join(_TYPE_ERRORS[type_][1] for type_ in types)

    def read(value: Any, loc: Location, errors: Errors) -> Any:
        if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in types):
            errors.add(loc, kind, message)
        elif isinstance(value, float) and not math.isfinite(value):
            errors.add(loc, "finite_number", "Input should be a finite number")
        return value

    return read


def _choice(choice: Choice) -> _Decode:
    into: dict[Any, Any] = {value: choice.enum(value) if choice.enum else value for value in choice.values}
    kind = "enum" if choice.enum else "literal_error"
    message = f"Input should be one of: {', '.join(choice.values)}"

    def read(value: Any, loc: Location, errors: Errors) -> Any:
        if not isinstance(value, str) or value not in into:
            errors.add(loc, kind, message)
            return None
        return into[value]

    return read


def _is_array(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _list(item: _Decode) -> _Decode:
    def read(value: Any, loc: Location, errors: Errors) -> Any:
        if not _is_array(value):
            errors.add(loc, "list_type", "Input should be an array")
            return ()
        if item is _free:
            return tuple(value)
        return tuple([item(each, (*loc, index), errors) for index, each in enumerate(value)])

    return read


def _fixed(items: tuple[_Decode, ...]) -> _Decode:
    def read(value: Any, loc: Location, errors: Errors) -> Any:
        if not _is_array(value):
            errors.add(loc, "tuple_type", "Input should be an array")
            return ()
        if len(value) != len(items):
            kind = "too_short" if len(value) < len(items) else "too_long"
            errors.add(loc, kind, f"Input should have {len(items)} items")
            return ()
        return tuple([items[index](each, (*loc, index), errors) for index, each in enumerate(value)])

    return read


def _map(item: _Decode) -> _Decode:
    def read(value: Any, loc: Location, errors: Errors) -> Any:
        if not isinstance(value, Mapping):
            errors.add(loc, "dict_type", "Input should be an object")
            return {}
        if item is _free:
            return dict(value)
        return {name: item(each, (*loc, name), errors) for name, each in value.items()}

    return read


def _property(each: Property) -> _Decode:
    inner = _decoder(each.shape)
    nullable = each.nullable
    limit = each.limit

    def read(value: Any, loc: Location, errors: Errors) -> Any:
        if value is None and nullable:
            return None
        before = len(errors)
        result = inner(value, loc, errors)
        if limit is not None and len(errors) == before:
            broken = limit.broken_by(result)
            if broken is not None:
                errors.add(loc, *broken)
        return result

    return read


@once_per_type
def _record(model: type[Model]) -> _Decode:
    plan = [(each.name, each.attribute, each.required, _property(each)) for each in properties_of(model)]
    known = {name for name, *_ in plan}
    constant = constant_of(model)
    if constant is not None:
        known.add(constant[0])

    def read(value: Any, loc: Location, errors: Errors) -> Any:
        if not isinstance(value, Mapping):
            errors.add(loc, "dict_type", "Input should be an object")
            return None
        before = len(errors)
        arguments = {}
        for name, attribute, required, property_ in plan:
            if name in value:
                arguments[attribute] = property_(value[name], (*loc, name), errors)
            elif required:
                errors.add((*loc, name), "missing", "Field required")
        if constant is not None:
            _check_constant(model, constant, value, loc, errors)
        if model.FORBID:
            for name in value:
                if name not in known:
                    errors.add((*loc, str(name)), "extra_forbidden", "Unknown properties are not permitted")
        return model(**arguments) if len(errors) == before else None

    return read


def _check_constant(
    model: type[Model], constant: tuple[str, str], value: Mapping[str, Any], loc: Location, errors: Errors
) -> None:
    name, expected = constant
    if name not in value:
        if model.TAG_REQUIRED:
            errors.add((*loc, name), "missing", "Field required")
    elif value[name] != expected:
        errors.add((*loc, name), "literal_error", f"Input should be {expected!r}")


@once_per_type
def _family(base: type[Variant]) -> _Decode:
    members = members_of(base)

    def read(value: Any, loc: Location, errors: Errors) -> Any:
        if not isinstance(value, Mapping):
            errors.add(loc, "dict_type", "Input should be an object")
            return None
        if "kind" not in value:
            errors.add((*loc, "kind"), "missing", "Field required")
            return None
        kind = value["kind"]
        member = members.get(kind) if isinstance(kind, str) else None
        if member is None:
            errors.add((*loc, "kind"), "union_tag_invalid", f"Input should be a kind of {base.NAME}")
            return None
        return _record(member)(value, loc, errors)

    return read


def _one_of(models: tuple[type[Model], ...]) -> _Decode:
    tagged = {constant: model for model in models if (constant := constant_of(model))}
    tag = next(iter(tagged))[0]
    by_value = {value: model for (_, value), model in tagged.items()}
    telling = [
        ({each.name for each in properties_of(model) if each.required}, _record(model)) for model in models
    ]
    message = f"Input should be one of: {', '.join(by_value)}"

    def read(value: Any, loc: Location, errors: Errors) -> Any:
        if not isinstance(value, Mapping):
            errors.add(loc, "dict_type", "Input should be an object")
            return None
        if tag not in value:
            reader = next((each for names, each in telling if not names.isdisjoint(value)), telling[0][1])
            return reader(value, loc, errors)
        found = value[tag]
        model = by_value.get(found) if isinstance(found, str) else None
        if model is None:
            errors.add((*loc, tag), "union_tag_invalid", message)
            return None
        return _record(model)(value, loc, errors)

    return read
