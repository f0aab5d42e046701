"""Names and ids of profiles."""

from __future__ import annotations

import re
from typing import Final

from supervisor.reading import ErrorDetail
from supervisor.settings.errors import Location
from supervisor.settings.fields import detail, string

#: Of LLM, agent and meta profiles alike.
PROFILE_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

#: The dashed form.
UUID: Final = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


def profile_name(value: object, loc: Location) -> list[ErrorDetail]:
    """Checks a profile's name."""
    return _matches(value, loc, PROFILE_NAME, "a name of letters, digits, dots, dashes and underscores")


def uuid_string(value: object, loc: Location) -> list[ErrorDetail]:
    """Checks a dashed UUID."""
    return _matches(value, loc, UUID, "a UUID")


def _matches(value: object, loc: Location, pattern: re.Pattern[str], what: str) -> list[ErrorDetail]:
    if not isinstance(value, str):
        return string(value, loc)
    if pattern.fullmatch(value):
        return []
    return detail(loc, f"String should be {what}, matching '^{pattern.pattern}$'", "string_pattern_mismatch")
