"""From parsed JSON or TOML to the types: strict, with every error of a document located.

Nothing is coerced: a string is not a number, and `true` is not 1. Decoders are compiled once per type.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar, overload

from supervisor.reading.model import EXTRA, Check, Errors, Location, Model, Variant
from supervisor.reading.rules import Items, Properties, Rule
from supervisor.reading.shapes import (
    Choice,
    Elsewhere,
    Family,
    Fixed,
    Free,
    Kept,
    ListOf,
    MapOf,
    Narrowed,
    OneOf,
    Property,
    Record,
    Scalar,
    Shape,
    constant_of,
    member_of,
    members_of,
    once_per_type,
    properties_of,
    shape_of,
)

M = TypeVar("M", bound=Model)

_TYPE_ERRORS: Final[dict[type, tuple[str, str]]] = {
    str: ("string_type", "Input should be a valid string"),
    int: ("int_type", "Input should be a valid integer"),
    float: ("float_type", "Input should be a valid number"),
    bool: ("bool_type", "Input should be a valid boolean"),
}
_ACCEPTED: Final[dict[type, tuple[type, ...]]] = {float: (float, int)}
"""The Python types accepted for a JSON type, where these are more than the type itself."""

NOT_AN_OBJECT: Final = ("dict_type", "Input should be a valid dictionary")
NOT_AN_ARRAY: Final = ("list_type", "Input should be a valid list")
FEW: Final = 10
"""Most kinds of a family that an error lists."""

MISSING: Final = ("missing", "Field required")


@overload
def decode(model: type[M], obj: Any, loc: Location = (), named: Mapping[str, Check] | None = None) -> M: ...


@overload
def decode(model: Any, obj: Any, loc: Location = (), named: Mapping[str, Check] | None = None) -> Any: ...


def decode(model: Any, obj: Any, loc: Location = (), named: Mapping[str, Check] | None = None) -> Any:
    """Read `obj`, parsed JSON or TOML, as a `model` (a type or an annotation).

    A family is read as the kind that `obj` names. `loc` is the location of `obj`, `named` are the checks that
    the description leaves to the caller (`Named`).

    Raises Invalid with every error found.
    """
    errors = Errors(named)
    result = attempt(model, obj, loc, errors)
    errors.raise_if_any()
    return result


@overload
def attempt(model: type[M], obj: Any, loc: Location, errors: Errors) -> M | None: ...


@overload
def attempt(model: Any, obj: Any, loc: Location, errors: Errors) -> Any: ...


def attempt(model: Any, obj: Any, loc: Location, errors: Errors) -> Any:
    """As `decode`, for a part of a document: errors are added to `errors`; without any the result is a
    `model`."""
    return check_of(model)(obj, loc, errors)


@once_per_type
def check_of(model: Any) -> Check:
    """The check behind a type or an annotation."""
    return _decoder(shape_of(model))


def among(values: Iterable[str], error: str = "enum") -> Check:
    """A check for one of these strings, for a `Named` whose values only the caller knows."""
    return _choice(Choice(tuple(values), None, error))


def one_of(values: Iterable[str]) -> str:
    """The error message that lists the valid values."""
    *others, last = (f"'{value}'" for value in values)
    return f"Input should be {', '.join(others)} or {last}" if others else f"Input should be {last}"


def _decoder(shape: Shape) -> Check:
    match shape:
        case Free():
            return _free
        case Scalar(types, integral):
            return _integral(_scalar(types)) if integral else _scalar(types)
        case Choice():
            return _choice(shape)
        case ListOf(item):
            return _list(_decoder(item), of_strings=item == Scalar((str,)))
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
        case Narrowed(inner, rules):
            return _narrowed(_decoder(inner), rules)
        case Kept(inner):
            return _kept(_decoder(inner))
        case Elsewhere(name, otherwise):
            return _elsewhere(name, _decoder(otherwise))


def _free(value: Any, loc: Location, errors: Errors) -> Any:
    return value


def _scalar(types: tuple[type, ...]) -> Check:
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


def _integral(inner: Check) -> Check:
    def read(value: Any, loc: Location, errors: Errors) -> Any:
        whole = isinstance(value, float) and value.is_integer()
        return inner(int(value) if whole else value, loc, errors)

    return read


def _choice(choice: Choice) -> Check:
    into: dict[Any, Any] = {value: choice.enum(value) if choice.enum else value for value in choice.values}
    kind, message = choice.error, one_of(choice.values)

    def read(value: Any, loc: Location, errors: Errors) -> Any:
        if not isinstance(value, str) or value not in into:
            errors.add(loc, kind, message)
            return None
        return into[value]

    return read


_STRINGS: Final = frozenset({str})


def _is_array(value: Any) -> bool:
    return isinstance(value, (list, tuple))


def _list(item: Check, *, of_strings: bool) -> Check:
    def read(value: Any, loc: Location, errors: Errors) -> Any:
        if not _is_array(value):
            errors.add(loc, *NOT_AN_ARRAY)
            return ()
        if item is _free or (of_strings and set(map(type, value)) <= _STRINGS):
            return tuple(value)
        found = []
        for index, each in enumerate(value):
            found.append(item(each, (*loc, index), errors))
            if errors.more:
                break
        return tuple(found)

    return read


def _fixed(items: tuple[Check, ...]) -> Check:
    def read(value: Any, loc: Location, errors: Errors) -> Any:
        if not _is_array(value):
            errors.add(loc, "tuple_type", "Input should be a valid tuple")
            return ()
        if len(value) != len(items):
            kind = "too_short" if len(value) < len(items) else "too_long"
            errors.add(loc, kind, f"Input should have {len(items)} items")
            return ()
        return tuple([items[index](each, (*loc, index), errors) for index, each in enumerate(value)])

    return read


def _map(item: Check) -> Check:
    def read(value: Any, loc: Location, errors: Errors) -> Any:
        if not isinstance(value, Mapping):
            errors.add(loc, *NOT_AN_OBJECT)
            return {}
        if item is _free:
            return dict(value)
        found = {}
        for name, each in value.items():
            found[name] = item(each, (*loc, name), errors)
            if errors.more:
                break
        return found

    return read


def _narrowed(inner: Check, rules: tuple[Rule, ...]) -> Check:
    counts = [rule for rule in rules if isinstance(rule, Items | Properties)]

    def read(value: Any, loc: Location, errors: Errors) -> Any:
        before = len(errors)
        # How many there are goes before what they are.
        for count in counts:
            if isinstance(value, Mapping) if isinstance(count, Properties) else _is_array(value):
                count.read(value, loc, errors)
                if len(errors) > before:
                    return value
        value = inner(value, loc, errors)
        for rule in rules:
            if len(errors) > before:
                break
            value = rule.read(value, loc, errors)
        return value

    return read


def _kept(inner: Check) -> Check:
    def read(value: Any, loc: Location, errors: Errors) -> Any:
        inner(value, loc, errors)
        return value

    return read


def _elsewhere(name: str, otherwise: Check) -> Check:
    def read(value: Any, loc: Location, errors: Errors) -> Any:
        return errors.named.get(name, otherwise)(value, loc, errors)

    return read


def _property(each: Property) -> Check:
    inner = _decoder(each.shape)
    nullable = each.nullable
    limit = each.limit
    if limit is not None:
        inner = _narrowed(inner, (limit,))
    if not nullable:
        return inner

    def read(value: Any, loc: Location, errors: Errors) -> Any:
        return None if value is None else inner(value, loc, errors)

    return read


@once_per_type
def _record(model: type[Model]) -> Check:
    plan = [
        (each.name, each.attribute, each.required, each.null_is_absent, _property(each))
        for each in properties_of(model)
    ]
    known = {name for name, *_ in plan}
    constant = constant_of(model)
    if constant is not None:
        known.add(constant[0])
    refused = frozenset(model.REFUSED)
    judges = model.judge is not Model.judge

    def read(value: Any, loc: Location, errors: Errors) -> Any:
        if not isinstance(value, Mapping):
            errors.add(loc, *NOT_AN_OBJECT)
            return None
        before = len(errors)
        arguments = {}
        for name, attribute, required, null_is_absent, property_ in plan:
            if name in value and not (null_is_absent and value[name] is None):
                arguments[attribute] = property_(value[name], (*loc, name), errors)
            elif required:
                errors.add((*loc, name), *MISSING)
        if constant is not None:
            _check_constant(model, constant, value, loc, errors)
        if model.FORBID or refused:
            for name in value:
                if name in refused or (model.FORBID and name not in known):
                    why = model.REFUSED_WHY if name in refused else EXTRA
                    errors.add((*loc, str(name)), "extra_forbidden", why)
                    if errors.more:
                        break
        if len(errors) > before:
            return None
        found = model(**arguments)
        if judges:
            for place, kind, message in found.judge():
                errors.add((*loc, *place), kind, message)
        return found

    return read


def _check_constant(
    model: type[Model], constant: tuple[str, str], value: Mapping[str, Any], loc: Location, errors: Errors
) -> None:
    name, expected = constant
    if name not in value or (value[name] is None and model.NULL_IS_ABSENT):
        if model.TAG_REQUIRED:
            errors.add((*loc, name), *MISSING)
    elif value[name] != expected:
        errors.add((*loc, name), model.CHOICE_ERROR, f"Input should be {expected!r}")


@once_per_type
def _family(base: type[Variant]) -> Check:
    few = not base.ELSEWHERE and len(members_of(base)) <= FEW
    message = one_of(members_of(base)) if few else f"Input should be a kind of {base.NAME}"

    def read(value: Any, loc: Location, errors: Errors) -> Any:
        if not isinstance(value, Mapping):
            errors.add(loc, *NOT_AN_OBJECT)
            return None
        kind = value.get("kind")
        if "kind" not in value or (kind is None and base.NULL_IS_ABSENT):
            errors.add((*loc, "kind"), *MISSING)
            return None
        member = member_of(base, kind)
        if member is None:
            errors.add((*loc, "kind"), "union_tag_invalid", message)
            return None
        return _record(member)(value, loc, errors)

    return read


def _one_of(models: tuple[type[Model], ...]) -> Check:
    tagged = {constant: model for model in models if (constant := constant_of(model))}
    tag = next(iter(tagged))[0]
    by_value = {value: model for (_, value), model in tagged.items()}
    telling = [
        ({each.name for each in properties_of(model) if each.required}, _record(model)) for model in models
    ]
    needs_tag = all(model.TAG_REQUIRED for model in models)
    null_is_absent = all(model.NULL_IS_ABSENT for model in models)
    message = one_of(by_value)

    def read(value: Any, loc: Location, errors: Errors) -> Any:
        if not isinstance(value, Mapping):
            errors.add(loc, *NOT_AN_OBJECT)
            return None
        if (tag not in value or (null_is_absent and value[tag] is None)) and not needs_tag:
            reader = next((each for names, each in telling if not names.isdisjoint(value)), telling[0][1])
            return reader(value, loc, errors)
        found = value.get(tag)
        model = by_value.get(found) if isinstance(found, str) else None
        if model is None:
            errors.add((*loc, tag), "union_tag_invalid", message)
            return None
        return _record(model)(value, loc, errors)

    return read
