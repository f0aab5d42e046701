"""The types as JSON Schema components, for the OpenAPI document."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import attrs

from supervisor.reading.model import Model, Variant
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
    members_of,
    properties_of,
    shape_of,
)

_PREFIX: Final = "#/components/schemas/"
_TYPE_NAMES: Final[Mapping[type, str]] = {str: "string", int: "integer", float: "number", bool: "boolean"}


def _everything(_: Any) -> bool:
    return True


@attrs.define
class Components:
    """Collects the components that are referred to while schemas are written, into `found`. Raises ValueError
    where two of them have one name.

    `named` are the schemas of what the descriptions leave to others (`Named`).
    `keeps` and `keeps_property` say what to leave out.
    """

    named: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    keeps: Callable[[type[Model]], bool] = _everything
    keeps_property: Callable[[Property], bool] = _everything
    found: dict[str, Any] = attrs.field(factory=dict)
    _models: dict[str, type[Model]] = attrs.field(factory=dict, init=False)

    def add(self, *types: Any) -> dict[str, Any]:
        """Add the schemas of these types and of all that they refer to. Returns all schemas added so far."""
        for each in types:
            self.of(shape_of(each))
        return self.found

    def of(self, shape: Shape) -> dict[str, Any]:
        """The schema of a value of this shape."""
        match shape:
            case Free():
                return {}
            case Scalar(types):
                return _any_of({"type": _TYPE_NAMES[each]} for each in types)
            case Choice(values, enum_type):
                return self._choice(values, enum_type)
            case ListOf(item):
                return {"type": "array", "items": self.of(item)}
            case Fixed(items):
                prefix = [self.of(each) for each in items]
                return {
                    "type": "array",
                    "prefixItems": prefix,
                    "minItems": len(items),
                    "maxItems": len(items),
                }
            case MapOf(item):
                return {"type": "object", "additionalProperties": self.of(item) or True}
            case Record(model):
                return self._record(model)
            case OneOf(models):
                return _any_of(self._record(each) for each in models)
            case Family(base):
                return self._family(base)
            case Narrowed(inner, rules):
                schema = dict(self.of(inner))
                for rule in rules:
                    schema = _both(schema, rule.schema())
                return schema
            case Kept(inner):
                return self.of(inner)
            case Elsewhere(name, otherwise):
                return dict(self.named[name]) if name in self.named else self.of(otherwise)

    def _choice(self, values: tuple[str, ...], enum_type: type[enum.StrEnum] | None) -> dict[str, Any]:
        schema = {"type": "string", "enum": list(values)}
        if enum_type is None:
            return schema
        return self._named(enum_type.__name__, schema)

    def _named(self, name: str, schema: dict[str, Any]) -> dict[str, Any]:
        self.found[name] = schema
        return reference(name)

    def _family(self, base: type[Variant]) -> dict[str, Any]:
        if base.NAME not in self.found:
            self.found[base.NAME] = {}  # in case that it is part of itself
            members = {kind: each for kind, each in members_of(base).items() if self.keeps(each)}
            schema = {
                "oneOf": [self._record(each) for each in members.values()],
                "discriminator": {
                    "propertyName": "kind",
                    "mapping": {kind: _PREFIX + each.NAME for kind, each in members.items()},
                },
            }
            return self._named(base.NAME, schema)
        return reference(base.NAME)

    def _record(self, model: type[Model]) -> dict[str, Any]:
        if self._models.setdefault(model.NAME, model) is not model:
            raise ValueError(f"two types are called {model.NAME}")
        if model.NAME in self.found:
            return reference(model.NAME)
        self.found[model.NAME] = {}
        properties = [each for each in properties_of(model) if self.keeps_property(each)]
        required = [each.name for each in properties if each.required]
        schema: dict[str, Any] = {
            "title": model.NAME,
            "type": "object",
            "properties": {each.name: self._property(each) for each in properties},
        }
        schema["properties"] |= {name: {"not": {}} for name in model.REFUSED}
        constant = constant_of(model)
        if constant is not None:
            name, value = constant
            only: dict[str, Any] = {"type": "string", "const": value}
            if model.TAG_REQUIRED:
                required.append(name)
            elif model.NULL_IS_ABSENT:
                only = {"anyOf": [only, {"type": "null"}], "default": value}
            else:
                only["default"] = value
            schema["properties"][name] = only
        if required:
            schema["required"] = required
        if model.FORBID:
            schema["additionalProperties"] = False
        return self._named(model.NAME, {**schema, **model.SCHEMA})

    def value_of(self, each: Property) -> dict[str, Any]:
        """The schema of a property's value that is not null."""
        schema = self.of(each.shape)
        return schema if each.limit is None else _both(schema, each.limit.schema())

    def _property(self, each: Property) -> dict[str, Any]:
        schema = self.value_of(each)
        may_be_null = each.nullable or (each.null_is_absent and not each.required)
        if may_be_null and schema:
            schema = {"anyOf": [schema, {"type": "null"}]}
        # A null default says nothing beyond the property not being required.
        if each.default is not attrs.NOTHING and each.default not in (None, (), ""):
            schema["default"] = each.default
        return {**schema, **each.metadata.get("schema", {})}


def reference(name: str) -> dict[str, Any]:
    """A reference to a component."""
    return {"$ref": _PREFIX + name}


def _both(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of what fits both."""
    if one.keys() & other.keys():
        return {**one, "allOf": [*one.get("allOf", ()), dict(other)]}
    return {**one, **other}


def _any_of(schemas: Iterable[dict[str, Any]]) -> dict[str, Any]:
    found = list(schemas)
    return found[0] if len(found) == 1 else {"anyOf": found}
