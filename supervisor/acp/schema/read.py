"""Reading members of JSON objects that may be missing or wrong: what has the wrong type counts as absent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

Json = Mapping[str, Any]
"""A JSON object as the parser gives it."""

EMPTY: Final[Json] = {}


def as_object(value: Any) -> Json:
    """`value` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else EMPTY


def text(obj: Json, key: str) -> str | None:
    """A string member."""
    value = obj.get(key)
    return value if isinstance(value, str) else None


def identifier(obj: Json, key: str) -> str | None:
    """A non-empty string member; integers, which some agents use as ids, as their digits."""
    value = obj.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) and value else None


def integer(obj: Json, key: str) -> int | None:
    """An integer member, also when it was written with a fraction of zero."""
    value = obj.get(key)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def number(obj: Json, key: str) -> float | None:
    """A numeric member."""
    value = obj.get(key)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def member(obj: Json, key: str) -> Json:
    """An object member; an empty object when absent."""
    return as_object(obj.get(key))


def objects(obj: Json, key: str) -> tuple[Json, ...] | None:
    """An array member, of which only the objects are kept. None when there is no array."""
    value = obj.get(key)
    return tuple(item for item in value if isinstance(item, dict)) if isinstance(value, list) else None


def marked(obj: Json, key: str) -> bool:
    """Whether a capability is offered: a marker object, even an empty one, or true."""
    value = obj.get(key)
    return value is True or isinstance(value, dict)
