"""One MCP server entry, as settings and start requests hold it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Final

import attrs

from supervisor.events import ErrorDetail

Location = tuple[str | int, ...]

#: Values of ``transport``. Without it a command means stdio and a URL means streamable HTTP.
TRANSPORTS: Final = ("stdio", "http", "streamable-http", "sse")

#: Errors that one value may have: megabytes of hostile input would otherwise become gigabytes of them.
MAX_ERRORS: Final = 100


@attrs.frozen
class MCPServer:
    """An entry, decoded. What may carry a credential is kept out of repr, the URL included.

    Times are in seconds. `auth` is the entry's JSON: an object whose `strategy` is one of
    `AUTH_FIELDS`. Exactly one of `command` and `url` is set.
    """

    url: str | None = attrs.field(default=None, repr=False)
    transport: str | None = None
    command: str | None = None
    args: tuple[str, ...] = attrs.field(default=(), repr=False)
    env: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    cwd: str | None = None
    description: str | None = None
    icon: str | None = None
    timeout: float | None = None
    sse_read_timeout: float | None = None
    keep_alive: bool | None = None
    headers: Mapping[str, str] = attrs.field(factory=dict, repr=False)
    auth: Mapping[str, Any] | None = attrs.field(default=None, repr=False)
    enabled: bool = True


class MCPServerError(ValueError):
    """An entry is not shaped as it must be. No message quotes a value."""

    def __init__(self, errors: tuple[ErrorDetail, ...]) -> None:
        super().__init__("; ".join(f"{'.'.join(map(str, error.loc))}: {error.msg}" for error in errors))
        self.errors = errors


#: A check takes a value and its place, and gives what is wrong with it.
_Check = Callable[[object, Location], list[ErrorDetail]]


def _problem(loc: Location, msg: str, kind: str) -> list[ErrorDetail]:
    return [ErrorDetail(loc=loc, msg=msg, type=kind)]


def _string(value: object, loc: Location) -> list[ErrorDetail]:
    return [] if isinstance(value, str) else _problem(loc, "Input should be a valid string", "string_type")


def _filled(value: object, loc: Location) -> list[ErrorDetail]:
    if value == "":
        return _problem(loc, "String should have at least 1 character", "string_too_short")
    return _string(value, loc)


def _number(value: object, loc: Location) -> list[ErrorDetail]:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _problem(loc, "Input should be a valid number", "float_type")
    return [] if math.isfinite(value) else _problem(loc, "Input should be a finite number", "finite_number")


def _boolean(value: object, loc: Location) -> list[ErrorDetail]:
    return [] if isinstance(value, bool) else _problem(loc, "Input should be a valid boolean", "bool_type")


def _object(value: object, loc: Location) -> list[ErrorDetail]:
    if isinstance(value, Mapping):
        return []
    return _problem(loc, "Input should be a valid dictionary", "dict_type")


def _strings(value: object, loc: Location) -> list[ErrorDetail]:
    if not isinstance(value, list | tuple):
        return _problem(loc, "Input should be a valid list", "list_type")
    return _each(_string, enumerate(value), loc)


def _string_map(value: object, loc: Location) -> list[ErrorDetail]:
    if not isinstance(value, Mapping):
        return _object(value, loc)
    return _each(_string, value.items(), loc)


def _each(check: _Check, values: Iterable[tuple[str | int, object]], loc: Location) -> list[ErrorDetail]:
    return list(islice((error for key, item in values for error in check(item, (*loc, key))), MAX_ERRORS))


def _transport(value: object, loc: Location) -> list[ErrorDetail]:
    if value in TRANSPORTS:
        return []
    allowed = ", ".join(f"'{name}'" for name in TRANSPORTS)
    return _problem(loc, f"Input should be one of {allowed}", "literal_error")


def _auth(value: object, loc: Location) -> list[ErrorDetail]:
    if not isinstance(value, Mapping):
        return _object(value, loc)
    strategy = value.get("strategy")
    fields = AUTH_FIELDS.get(strategy) if isinstance(strategy, str) else None
    if fields is None:
        allowed = ", ".join(f"'{name}'" for name in AUTH_FIELDS)
        return _problem((*loc, "strategy"), f"Input should be one of {allowed}", "union_tag_invalid")
    errors = [
        error
        for key, check in fields.items()
        if value.get(key) is not None
        for error in check(value[key], (*loc, key))
    ]
    if strategy == "basic" and value.get("username") is None:
        errors += _problem((*loc, "username"), "Field required", "missing")
    return errors


#: Fields by authentication strategy. Every one may be null or absent, but the user name of ``basic``.
AUTH_FIELDS: Final[Mapping[str, Mapping[str, _Check]]] = {
    "none": {},
    "api_key": {"value": _string, "header_name": _filled},
    "bearer": {"value": _string},
    "basic": {"username": _string, "password": _string},
    "header": {"headers": _string_map},
    "oauth2": {"authentication": _object, "state": _object},
}

#: Every property of an entry; null means absent, but for ``enabled``. Others are refused.
_FIELDS: Final[Mapping[str, _Check]] = {
    "url": _filled,
    "transport": _transport,
    "command": _filled,
    "args": _strings,
    "env": _string_map,
    "cwd": _string,
    "description": _string,
    "icon": _string,
    "timeout": _number,
    "sse_read_timeout": _number,
    "keep_alive": _boolean,
    "headers": _string_map,
    "auth": _auth,
    "enabled": _boolean,
}


def server_errors(obj: object, loc: Location = ()) -> list[ErrorDetail]:
    """What is wrong with an entry, by place; `loc` is where the entry itself stands."""
    if not isinstance(obj, Mapping):
        return _object(obj, loc)
    errors: list[ErrorDetail] = []
    for key, value in obj.items():
        if len(errors) >= MAX_ERRORS:
            break
        check = _FIELDS.get(key)
        if check is None:
            errors += _problem((*loc, key), "Extra inputs are not permitted", "extra_forbidden")
        elif value is not None or key == "enabled":
            errors += check(value, (*loc, key))
    return errors or _target_errors(obj, loc)


def _target_errors(obj: Mapping[str, Any], loc: Location) -> list[ErrorDetail]:
    command, url, transport = obj.get("command"), obj.get("url"), obj.get("transport")
    if (command is None) == (url is None):
        return _problem(loc, "Value error, exactly one of command and url must be given", "value_error")
    if transport is not None and (transport == "stdio") != (url is None):
        needed = "command" if transport == "stdio" else "url"
        return _problem(
            (*loc, "transport"), f"Value error, transport {transport} needs a {needed}", "value_error"
        )
    return []


def decode_server(obj: object, loc: Location = ()) -> MCPServer:
    """An entry from its JSON. Raises MCPServerError with everything that is wrong."""
    if errors := server_errors(obj, loc):
        raise MCPServerError(tuple(errors))
    assert isinstance(obj, Mapping)
    given = {key: value for key, value in obj.items() if value is not None}
    given["args"] = tuple(given.get("args", ()))
    return MCPServer(**given)
