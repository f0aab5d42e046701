"""The types as JSON Schema components, for the OpenAPI document."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from supervisor.events.errors import HTTPValidationError
from supervisor.events.model import Model, Variant, Vocabulary
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
    properties_of,
)
from supervisor.events.types import Event

_PREFIX: Final = "#/components/schemas/"
_TYPE_NAMES: Final[Mapping[type, str]] = {str: "string", int: "integer", float: "number", bool: "boolean"}


def json_schema(vocabulary: Vocabulary = Vocabulary.EXTENDED) -> dict[str, Any]:
    """The schema of every type by name, with `Event`, `Action`, `Observation` and `ToolDefinition` as unions.

    References point into `#/components/schemas/`. A fresh object each time.
    """
    components = _Components(vocabulary)
    components.of(Family(Event))
    components.of(Record(HTTPValidationError))
    return dict(sorted(components.found.items()))


@attrs.define
class _Components:
    """Collects the components that are referred to while schemas are written."""

    vocabulary: Vocabulary
    found: dict[str, Any] = attrs.field(factory=dict)

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

    def _choice(self, values: tuple[str, ...], enum_type: type[enum.StrEnum] | None) -> dict[str, Any]:
        schema = {"type": "string", "enum": list(values)}
        if enum_type is None:
            return schema
        return self._named(enum_type.__name__, schema)

    def _named(self, name: str, schema: dict[str, Any]) -> dict[str, Any]:
        self.found[name] = schema
        return _reference(name)

    def _family(self, base: type[Variant]) -> dict[str, Any]:
        if base.NAME not in self.found:
            members = members_of(base, self.vocabulary)
            schema = {
                "oneOf": [self._record(each) for each in members.values()],
                "discriminator": {
                    "propertyName": "kind",
                    "mapping": {kind: _PREFIX + each.NAME for kind, each in members.items()},
                },
            }
            return self._named(base.NAME, schema)
        return _reference(base.NAME)

    def _record(self, model: type[Model]) -> dict[str, Any]:
        if model.NAME in self.found:
            return _reference(model.NAME)
        properties = [each for each in properties_of(model) if each.within(self.vocabulary)]
        required = [each.name for each in properties if each.required]
        schema: dict[str, Any] = {
            "title": model.NAME,
            "type": "object",
            "properties": {each.name: self._property(each) for each in properties},
        }
        constant = constant_of(model)
        if constant is not None:
            name, value = constant
            schema["properties"][name] = {"type": "string", "const": value}
            if model.TAG_REQUIRED:
                required.append(name)
            else:
                schema["properties"][name]["default"] = value
        if required:
            schema["required"] = required
        if model.FORBID:
            schema["additionalProperties"] = False
        return self._named(model.NAME, schema)

    def _property(self, each: Property) -> dict[str, Any]:
        schema = self.of(each.shape)
        if each.limit is not None:
            schema |= each.limit.schema()
        if each.nullable and schema:
            schema = {"anyOf": [schema, {"type": "null"}]}
        # A null default says nothing beyond the property not being required.
        if each.default is not attrs.NOTHING and each.default is not None and each.default != ():
            schema["default"] = each.default
        return schema


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": _PREFIX + name}


def _any_of(schemas: Iterable[dict[str, Any]]) -> dict[str, Any]:
    found = list(schemas)
    return found[0] if len(found) == 1 else {"anyOf": found}
