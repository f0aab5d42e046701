"""Reading typed fields out of JSON objects, gathering everything that is wrong."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import islice
from typing import Any, Final

from supervisor.reading import ErrorDetail
from supervisor.settings.errors import Location, SettingsError

#: A check takes a value and its place, and gives what is wrong with it.
Check = Callable[[object, Location], list[ErrorDetail]]

#: How an MCP server entry is checked: that knowledge is the mcp room's, so it is handed in.
ServerCheck = Check


#: Errors that one value may have: megabytes of hostile input would otherwise become gigabytes of them.
MAX_ERRORS: Final = 100


def detail(loc: Location, msg: str, kind: str) -> list[ErrorDetail]:
    """One error, as a check gives it."""
    return [ErrorDetail(loc=loc, msg=msg, type=kind)]


def string(value: object, loc: Location) -> list[ErrorDetail]:
    """A string."""
    if not isinstance(value, str):
        return detail(loc, "Input should be a valid string", "string_type")
    # No argument, path or variable of a process can hold it.
    return detail(loc, "String must not contain a NUL character", "value_error") if "\0" in value else []


def filled(value: object, loc: Location) -> list[ErrorDetail]:
    """A string of at least one character."""
    if value == "":
        return detail(loc, "String should have at least 1 character", "string_too_short")
    return string(value, loc)


def boolean(value: object, loc: Location) -> list[ErrorDetail]:
    """True or false."""
    return [] if isinstance(value, bool) else detail(loc, "Input should be a valid boolean", "bool_type")


def mapping(value: object, loc: Location) -> list[ErrorDetail]:
    """An object of any content."""
    if isinstance(value, Mapping):
        return []
    return detail(loc, "Input should be a valid dictionary", "dict_type")


def positive(value: object, loc: Location) -> list[ErrorDetail]:
    """A finite number greater than 0."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return detail(loc, "Input should be a valid number", "float_type")
    if not math.isfinite(value):
        return detail(loc, "Input should be a finite number", "finite_number")
    return [] if value > 0 else detail(loc, "Input should be greater than 0", "greater_than")


def at_least(minimum: int) -> Check:
    """An integer not below ``minimum``."""

    def check(value: object, loc: Location) -> list[ErrorDetail]:
        if isinstance(value, bool) or not isinstance(value, int):
            return detail(loc, "Input should be a valid integer", "int_type")
        if value < minimum:
            return detail(loc, f"Input should be greater than or equal to {minimum}", "greater_than_equal")
        return []

    return check


def one_of(choices: Collection[str]) -> Check:
    """One of some strings."""

    def check(value: object, loc: Location) -> list[ErrorDetail]:
        if isinstance(value, str) and value in choices:
            return []
        allowed = ", ".join(f"'{choice}'" for choice in choices)
        return detail(loc, f"Input should be one of {allowed}", "enum")

    return check


def nullable(check: Check) -> Check:
    """Null, or what ``check`` takes."""
    return lambda value, loc: [] if value is None else check(value, loc)


def _each(check: Check, values: Iterable[tuple[str | int, object]], loc: Location) -> list[ErrorDetail]:
    return list(islice((error for key, item in values for error in check(item, (*loc, key))), MAX_ERRORS))


def items(check: Check) -> Check:
    """A list of what ``check`` takes."""

    def check_items(value: object, loc: Location) -> list[ErrorDetail]:
        if not isinstance(value, list | tuple):
            return detail(loc, "Input should be a valid list", "list_type")
        return _each(check, enumerate(value), loc)

    return check_items


#: A list of strings. A bare string is no list.
strings: Final = items(string)


def entries(check: Check) -> Check:
    """An object whose every value ``check`` takes."""

    def check_entries(value: object, loc: Location) -> list[ErrorDetail]:
        if not isinstance(value, Mapping):
            return mapping(value, loc)
        return _each(check, value.items(), loc)

    return check_entries


def read(
    obj: object,
    loc: Location,
    checks: Mapping[str, Check],
    *,
    required: Collection[str] = (),
    refused: Collection[str] | None = (),
) -> dict[str, Any]:
    """The keys of ``checks`` that ``obj`` has, checked. Raises SettingsError with every error.

    Other keys are ignored, but those in ``refused`` are errors; None refuses every other key.
    """
    if not isinstance(obj, Mapping):
        raise SettingsError(tuple(mapping(obj, loc)))
    errors: list[ErrorDetail] = []
    for key, value in obj.items():
        if len(errors) >= MAX_ERRORS:
            break
        if key in checks:
            errors += checks[key](value, (*loc, key))
        elif refused is None or key in refused:
            errors += detail((*loc, key), "Extra inputs are not permitted", "extra_forbidden")
    for key in required:
        if key not in obj:
            errors += detail((*loc, key), "Field required", "missing")
    if errors:
        raise SettingsError(tuple(errors))
    return {key: obj[key] for key in checks if key in obj}
