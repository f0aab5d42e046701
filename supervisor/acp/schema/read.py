"""Reads members of JSON objects; a member of the wrong type counts as absent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final

from supervisor.acp.schema.bounds import EXACT_CHARS, ITEMS_MAX, cut, short_id

Json = Mapping[str, Any]
"""A JSON object as the parser gives it."""

EMPTY: Final[Json] = {}

MAX_NUMBER: Final = 2**53 - 1
"""The largest integer that all clients read exactly; JSON encoders refuse much larger ones."""


def as_object(value: Any) -> Json:
    """`value` if it is an object, else an empty one."""
    return value if isinstance(value, dict) else EMPTY


def text(obj: Json, key: str) -> str | None:
    """A string member."""
    value = obj.get(key)
    return value if isinstance(value, str) else None


def identifier(obj: Json, key: str) -> str | None:
    """A non-empty string member; an integer, which some agents use as an id, becomes its digits."""
    value = obj.get(key)
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    return value if isinstance(value, str) and value else None


def exact_id(obj: Json, key: str) -> str | None:
    """An identifier that is sent back to the agent unchanged; None also for one over EXACT_CHARS."""
    value = identifier(obj, key)
    return None if value is None or len(value) > EXACT_CHARS else value


def label_id(obj: Json, key: str) -> str | None:
    """An identifier that only distinguishes things: a long one is shortened."""
    value = identifier(obj, key)
    return None if value is None else short_id(value)


def integer(obj: Json, key: str) -> int | None:
    """An integer member, also when written as `1.0`; clamped to MAX_NUMBER."""
    value = number(obj, key)
    return int(value) if value is not None and value.is_integer() else None


def number(obj: Json, key: str) -> float | None:
    """A numeric member, clamped to MAX_NUMBER: sums of larger ones might not fit the store."""
    value = obj.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    if isinstance(value, float) and math.isnan(value):
        return None
    return float(max(-MAX_NUMBER, min(value, MAX_NUMBER)))


def member(obj: Json, key: str) -> Json:
    """An object member; an empty object when absent."""
    return as_object(obj.get(key))


def objects(obj: Json, key: str) -> tuple[Json, ...] | None:
    """An array member: the objects among its first ITEMS_MAX items. None when there is no array."""
    value = obj.get(key)
    if not isinstance(value, list):
        return None
    return tuple(item for item in value[:ITEMS_MAX] if isinstance(item, dict))


def line(obj: Json, key: str, limit: int) -> str | None:
    """A string member that is cut to about `limit` characters."""
    value = text(obj, key)
    return None if value is None else cut(value, limit)


def marked(obj: Json, key: str) -> bool:
    """Whether a capability is offered: a marker object, even an empty one, or true."""
    value = obj.get(key)
    return value is True or isinstance(value, dict)
