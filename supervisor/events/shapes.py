"""The properties of a type, read once from its attrs class: what codec, schema and tests are derived from."""

from __future__ import annotations

import enum
import functools
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, ParamSpec, TypeVar, Union, cast

import attrs

from supervisor.events.model import Limit, Model, Variant, Vocabulary


@attrs.frozen
class Free:
    """Any JSON at all, passed on untouched."""


@attrs.frozen
class Scalar:
    """One of the JSON types behind these Python types (several only where a document may hold either)."""

    types: tuple[type, ...]


@attrs.frozen
class Choice:
    """One of these strings; `enum` is the class they are read into, if there is one."""

    values: tuple[str, ...]
    enum: type[enum.StrEnum] | None = None


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
    """An object of one of a few types, told apart by their constants, or else by what they require."""

    models: tuple[type[Model], ...]


@attrs.frozen
class Family:
    """An object of any kind of a family."""

    base: type[Variant]


Shape = Free | Scalar | Choice | ListOf | Fixed | MapOf | Record | OneOf | Family

P = ParamSpec("P")
R = TypeVar("R")


def once_per_type(function: Callable[P, R]) -> Callable[P, R]:
    """Compute once for the same arguments, which are classes: functools.cache with its signature kept."""
    return cast(Callable[P, R], functools.cache(function))


_FACTORY: Final = cast(type, attrs.Factory)
"""The class behind a default that is made anew; the stubs of attrs call it a function."""
_SCALARS: Final[frozenset[Any]] = frozenset({str, int, float, bool})


@attrs.frozen(kw_only=True)
class Property:
    """One property: `name` on the wire, `attribute` in Python."""

    name: str
    attribute: str
    shape: Shape
    nullable: bool
    required: bool
    extended: bool
    limit: Limit | None
    default: Any
    """The default as the constructor has it, or attrs.NOTHING where it is required or made anew each time."""

    def within(self, vocabulary: Vocabulary) -> bool:
        """Whether the vocabulary has this property."""
        return not (self.extended and vocabulary is Vocabulary.CORE)


@once_per_type
def properties_of(model: type[Model]) -> tuple[Property, ...]:
    """The properties of a type in the order in which they are written, but for its constant."""
    hints = typing.get_type_hints(model)
    return tuple(_property(attribute, hints[attribute.name]) for attribute in attrs.fields(cast(Any, model)))


def constant_of(model: type[Model]) -> tuple[str, str] | None:
    """The name and the value of the property that tells what an object is, if the type has one."""
    return None if model.TAG is None else (model.TAG, getattr(model, model.TAG))


def members_of(base: type[Variant], vocabulary: Vocabulary = Vocabulary.EXTENDED) -> dict[str, type[Variant]]:
    """The kinds of a family within a vocabulary, by name."""
    return {name: kind for name, kind in base.variants.items() if is_within(kind, vocabulary)}


def is_within(model: type[Model], vocabulary: Vocabulary) -> bool:
    """Whether the vocabulary has this type."""
    return model.CORE or vocabulary is Vocabulary.EXTENDED


def shape_of(cls: type[Any]) -> Shape:
    """The shape of a type, a family or an enum."""
    if issubclass(cls, enum.StrEnum):
        return Choice(tuple(member.value for member in cls), cls)
    if issubclass(cls, Variant) and "variants" in cls.__dict__:
        return Family(cls)
    if issubclass(cls, Model):
        return Record(cls)
    raise TypeError(f"no shape for {cls!r}")


def _property(attribute: attrs.Attribute[Any], hint: Any) -> Property:
    hint, nullable = _without_none(hint)
    validator = attribute.validator
    default = attribute.default
    return Property(
        name=attribute.metadata.get("wire_name", attribute.name),
        attribute=attribute.name,
        shape=_shape(hint),
        nullable=nullable,
        required=default is attrs.NOTHING,
        extended=attribute.metadata.get("extended", False),
        limit=validator if isinstance(validator, Limit) else None,
        default=attrs.NOTHING if isinstance(default, _FACTORY) else default,
    )


def _without_none(hint: Any) -> tuple[Any, bool]:
    if not _is_union(hint):
        return hint, False
    rest = tuple(part for part in typing.get_args(hint) if part is not types.NoneType)
    return Union[rest], len(rest) < len(typing.get_args(hint))  # noqa: UP007 (the parts are computed)


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (Union, types.UnionType)


def _shape(hint: Any) -> Shape:
    if hint is Any:
        return Free()
    if hint in _SCALARS:
        return Scalar((hint,))
    arguments = typing.get_args(hint)
    if _is_union(hint):
        return Scalar(arguments) if _SCALARS.issuperset(arguments) else OneOf(arguments)
    origin = typing.get_origin(hint)
    if origin is Literal:
        return Choice(arguments)
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return ListOf(_shape(arguments[0]))
        return Fixed(tuple(map(_shape, arguments)))
    if origin in (dict, Mapping):
        return MapOf(_shape(arguments[1]))
    return shape_of(hint)
