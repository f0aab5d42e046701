"""The properties of a type, read once from its attrs class: what codec, schema and tests are derived from.
And the simplest of the codec: how an object is written."""

from __future__ import annotations

import enum
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Final, Literal, ParamSpec, TypeVar, Union, cast

import attrs

from supervisor.reading.model import Integral, Like, Model, Named, Variant, Written
from supervisor.reading.rows import define
from supervisor.reading.rules import Limit, Rule


@attrs.frozen
class Free:
    """Any JSON at all, passed on untouched."""


@attrs.frozen
class Scalar:
    """One of the JSON types behind these Python types (several only where a document may hold either).
    `integral`: a whole number may be spelled as 5.0."""

    types: tuple[type, ...]
    integral: bool = False


@attrs.frozen
class Choice:
    """One of these strings; `enum` is the class they are read into, if there is one, and `error` the type of
    the error for any other."""

    values: tuple[str, ...]
    enum: type[enum.StrEnum] | None = None
    error: str = "literal_error"


@attrs.frozen
class ListOf:
    """An array, read into a tuple."""

    item: Shape


@attrs.frozen
class Fixed:
    """An array of exactly these items."""

    items: tuple[Shape, ...]


@attrs.frozen
class MapOf:
    """An object with any property names."""

    item: Shape


@attrs.frozen
class Record:
    """An object of one type."""

    model: type[Model]


@attrs.frozen
class OneOf:
    """An object of one of a few types, distinguished by their constants, or else by their required
    properties."""

    models: tuple[type[Model], ...]


@attrs.frozen
class Family:
    """An object of any kind of a family."""

    base: type[Variant]


@attrs.frozen
class Narrowed:
    """A shape whose values keep to rules besides, in their order."""

    shape: Shape
    rules: tuple[Rule, ...]


@attrs.frozen
class Kept:
    """Checked as this shape, and kept as it came."""

    shape: Shape


@attrs.frozen
class Elsewhere:
    """Checked by what the decoder's caller has for this name, or else as this shape."""

    name: str
    shape: Shape


Shape = (
    Free | Scalar | Choice | ListOf | Fixed | MapOf | Record | OneOf | Family | Narrowed | Kept | Elsewhere
)

P = ParamSpec("P")
R = TypeVar("R")


def once_per_type(function: Callable[P, R]) -> Callable[P, R]:
    """Compute once for the same arguments, which are classes: functools.cache with its signature kept."""
    return cast(Callable[P, R], functools.cache(function))


_FACTORY: Final = cast(type, attrs.Factory)
"""The class of a default that is created for each object; the stubs of attrs call it a function."""
_SCALARS: Final[frozenset[Any]] = frozenset({str, int, float, bool})


@attrs.frozen(kw_only=True)
class Property:
    """One property: `name` in the input, `attribute` in Python."""

    name: str
    attribute: str
    shape: Shape
    nullable: bool
    required: bool
    limit: Limit | None
    default: Any
    """The constructor's default, or attrs.NOTHING if it is required or created for each object."""
    null_is_absent: bool
    metadata: Mapping[Any, Any]


@once_per_type
def properties_of(model: type[Model]) -> tuple[Property, ...]:
    """The properties of a type in the order in which they are written, but for its constant."""
    hints = typing.get_type_hints(model, include_extras=True)
    return tuple(
        _property(model, attribute, hints[attribute.name]) for attribute in attrs.fields(cast(Any, model))
    )


def constant_of(model: type[Model]) -> tuple[str, str] | None:
    """The name and the value of the constant property that identifies the type, if it has one."""
    return None if model.TAG is None else (model.TAG, getattr(model, model.TAG))


def members_of(base: type[Variant]) -> dict[str, type[Variant]]:
    """The kinds of a family, by name."""
    define(base)
    return dict(base.variants)


def member_of(base: type[Variant], kind: Any) -> type[Variant] | None:
    """The member of a family that is called so, if there is one.

    Imports more of the family only for a kind that is not there yet.
    """
    if not isinstance(kind, str):
        return None
    member = base.variants.get(kind)
    return members_of(base).get(kind) if member is None else member


def shape_of(cls: Any) -> Shape:
    """The shape of a type, a family, an enum or an annotation."""
    return _shape(cls, "literal_error")


def _property(model: type[Model], attribute: attrs.Attribute[Any], hint: Any) -> Property:
    hint, nullable = _without_none(hint)
    validator = attribute.validator
    default = attribute.default
    return Property(
        name=attribute.metadata.get("wire_name", attribute.name),
        attribute=attribute.name,
        shape=_shape(hint, model.CHOICE_ERROR),
        nullable=nullable,
        required=default is attrs.NOTHING,
        limit=validator if isinstance(validator, Limit) else None,
        default=attrs.NOTHING if isinstance(default, _FACTORY) else default,
        null_is_absent=model.NULL_IS_ABSENT and not attribute.metadata.get("never_null"),
        metadata=attribute.metadata,
    )


def _without_none(hint: Any) -> tuple[Any, bool]:
    if not _is_union(hint):
        return hint, False
    rest = tuple(part for part in typing.get_args(hint) if part is not types.NoneType)
    return Union[rest], len(rest) < len(typing.get_args(hint))  # noqa: UP007 (the parts are computed)


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (Union, types.UnionType)


def _shape(hint: Any, choice_error: str) -> Shape:
    if hint is Any:
        return Free()
    if hint in _SCALARS:
        return Scalar((hint,))
    arguments = typing.get_args(hint)
    if _is_union(hint):
        return Scalar(arguments) if _SCALARS.issuperset(arguments) else OneOf(arguments)
    origin = typing.get_origin(hint)
    if origin is Annotated:
        return _annotated(arguments[0], arguments[1:], choice_error)
    if origin is Literal:
        return Choice(arguments, None, choice_error)
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return ListOf(_shape(arguments[0], choice_error))
        return Fixed(tuple(_shape(each, choice_error) for each in arguments))
    if origin in (dict, Mapping):
        return MapOf(_shape(arguments[1], choice_error))
    if issubclass(hint, enum.StrEnum):
        return Choice(tuple(member.value for member in hint), hint, "enum")
    if issubclass(hint, Variant) and "variants" in hint.__dict__:
        return Family(hint)
    if issubclass(hint, Model):
        return Record(hint)
    raise TypeError(f"no shape for {hint!r}")


def _annotated(hint: Any, notes: tuple[Any, ...], choice_error: str) -> Shape:
    shape: Shape | None = None
    for note in notes:
        if isinstance(note, Like):
            shape = Kept(_shape(note.hint, choice_error))
        elif isinstance(note, Integral):
            shape = Scalar((int,), integral=True)
        elif isinstance(note, Written):
            shape = _shape(note.hint, choice_error)
        elif isinstance(note, Named):
            shape = Elsewhere(note.name, _shape(hint, choice_error))
    rules = tuple(note for note in notes if isinstance(note, Rule))
    found = _shape(hint, choice_error) if shape is None else shape
    return Narrowed(found, rules) if rules else found


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
