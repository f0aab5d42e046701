"""The entry of `mcp.json` that `ostler mcp add` and `add-json` write, from their arguments. Pure."""

from __future__ import annotations

import json
import re
from argparse import Namespace
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from gateway.cli.failures import BadInput
from gateway.cli.mcp.blank import QUOTES, blank_in, blank_in_header, blank_in_url
from gateway.cli.mcp.foreign import Converted, Surroundings, converted, inferred_transport
from supervisor.mcp.entry import OAUTH, SPELLINGS, settings_entry
from supervisor.mcp.file import SERVERS, check_name
from supervisor.mcp.server import MCPServerError

REMOTE: Final = ("http", "sse")
TRANSPORTS: Final = (*REMOTE, "stdio")

METHODS: Final = (OAUTH, "none")
"""Values of `--auth`."""

USER: Final = "user"
SCOPES: Final[Mapping[str, str]] = {
    "local": "mcp.json holds for all directories, as scope user does; leave --scope out",
    "project": "a project's .mcp.json is read with `ostler mcp import`; leave --scope out",
}
"""Scopes of `claude mcp add` that mean nothing here, and what to do."""

HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""A token of HTTP."""

VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

URL: Final = re.compile(r"https?://", re.IGNORECASE)


def entry_of(arguments: Namespace) -> dict[str, Any]:
    """The entry. Raises BadInput, which says which argument is wrong and why; no value is quoted."""
    _check_name(arguments.name)
    if arguments.scope not in (None, USER):
        meaning = SCOPES.get(arguments.scope)
        raise BadInput(
            f"--scope {arguments.scope}: {meaning}" if meaning else "--scope: only user is possible"
        )
    if arguments.enabled and arguments.disabled:
        raise BadInput("--enabled and --disabled exclude each other; give one, or none to enable the server")
    target, args = arguments.target, arguments.command_args
    if target is None and args:
        target, args = args[0], args[1:] or None
    if not target or not target.strip():
        raise BadInput(
            "TARGET is required: the URL of the server, or -- and the command that starts it, as in "
            f"`ostler mcp add {arguments.name} -- npx -y server`"
        )
    transport = _transport(arguments.transport, target)
    if transport in REMOTE:
        entry = _remote(arguments, transport, target, args)
    else:
        entry = _stdio(arguments, target, args or [])
    entry["enabled"] = not arguments.disabled
    _check(entry)
    return entry


def json_entry(name: str, text: str, surroundings: Surroundings) -> Converted:
    """The entry that a JSON text is, as other clients write it. Raises BadInput; no value is quoted."""
    _check_name(name)
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        raise BadInput(
            "JSON: it is not valid; put it into single quotes, with double quotes around keys and values"
        ) from None
    if isinstance(given, Mapping) and SERVERS in given:
        raise BadInput(f"JSON: give the object of one server, not the one of {SERVERS}")
    try:
        found = converted(given, surroundings)
    except ValueError as error:
        raise BadInput(f"JSON: {error}") from None
    for key in ("url", "args", "env", "headers"):
        value = found.entry.get(key, ())
        items = value.items() if isinstance(value, Mapping) else enumerate([value] if key == "url" else value)
        for inside, item in items:
            blank = blank_in(str(item))
            if key == "headers" and blank is None and blank_in_header(str(inside), str(item)):
                blank = "a value is missing at the end"
            if blank is not None:
                where = f"{key}.{inside}" if isinstance(value, Mapping) else key
                raise BadInput(f"JSON: {where}: {blank}; {QUOTES}")
    return found


def _check_name(name: str) -> None:
    try:
        check_name(name)
    except ValueError as error:
        hint = ""
        if "=" in name:
            hint = "; --env takes one KEY=value, and is repeated for more"
        elif "://" in name:
            hint = "; a name stands before the URL"
        raise BadInput(f"NAME: {error}{hint}") from None


def _check(entry: Mapping[str, Any]) -> None:
    try:
        settings_entry(entry)
    except MCPServerError as error:
        raise BadInput(str(error)) from None


def _transport(given: str | None, target: str) -> str:
    """The transport that is named, or the one that the target implies."""
    if given is None:
        if URL.match(target):
            return inferred_transport(target)
        if "://" in target.split()[0]:
            raise BadInput("TARGET: the URL of an MCP server begins with https:// or http://")
        return "stdio"
    transport = SPELLINGS.get(given.lower().replace("-", "").replace("_", ""))
    if transport is None:
        raise BadInput(f"--transport: {given!r} is not one of {', '.join(TRANSPORTS)}")
    return transport


def _remote(arguments: Namespace, transport: str, target: str, args: list[str] | None) -> dict[str, Any]:
    if arguments.env:
        raise BadInput(
            f"--env applies to --transport stdio only: Ostler does not start a {transport} server; "
            "use --header"
        )
    if args is not None:
        raise BadInput(f"-- applies to --transport stdio only: a {transport} server takes no arguments")
    entry: dict[str, Any] = {"transport": transport, "url": _url(target, transport)}
    headers = _headers(arguments.header)
    if headers:
        entry["headers"] = headers
    if arguments.auth is not None:
        method = arguments.auth.lower()
        if method not in METHODS:
            raise BadInput(f"--auth: {arguments.auth!r} is not one of {', '.join(METHODS)}")
        if method == OAUTH:
            if any(name.lower() == "authorization" for name in headers):
                raise BadInput(
                    "--auth oauth and --header Authorization exclude each other, since "
                    "the login is sent in that header; give one of them"
                )
            entry["auth"] = OAUTH
    return entry


def _stdio(arguments: Namespace, target: str, args: list[str]) -> dict[str, Any]:
    if arguments.header:
        raise BadInput(
            "--header applies to --transport http and sse only: a stdio server gets no headers; use --env"
        )
    if arguments.auth is not None:
        raise BadInput(
            "--auth applies to --transport http and sse only: a stdio server gets its credentials with --env"
        )
    if URL.match(target):
        raise BadInput("TARGET is a URL, but --transport stdio starts a command; use --transport http or sse")
    for number, text in enumerate((target, *args)):
        if "\0" in text:
            raise BadInput("commands and arguments must not contain a NUL character")
        if (blank := blank_in(text)) is not None:
            raise BadInput(f"argument {number} of the command: {blank}; {QUOTES}")
    entry: dict[str, Any] = {"command": target, "args": args}
    env = _env(arguments.env)
    if env:
        entry["env"] = env
    return entry


def _url(text: str, transport: str) -> str:
    required = f"TARGET must be a URL with --transport {transport}, such as https://mcp.example/mcp"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise BadInput(required) from None
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or not text.isprintable():
        raise BadInput(required)
    if any(character.isspace() for character in text):
        raise BadInput(f"{required}, without white space")
    if (blank := blank_in_url(text)) is not None:
        raise BadInput(f"TARGET: {blank}; {QUOTES}")
    return text


def _headers(given: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for text in given:
        name, colon, value = text.partition(":")
        name, raw, value = name.strip(), value, value.strip()
        if not colon or not HEADER_NAME.fullmatch(name):
            raise BadInput("--header must have the form 'Key: Value', with a name that HTTP allows")
        if any(ord(character) < 32 and character != "\t" for character in value):
            raise BadInput(f"--header {name}: the value must not contain control characters")
        if blank_in_header(name, raw):
            raise BadInput(f"--header {name}: a value is missing at the end; {QUOTES}")
        if any(name.lower() == other.lower() for other in headers):
            raise BadInput(f"--header {name} is given twice")
        headers[name] = value
    return headers


def _env(given: list[str]) -> dict[str, str]:
    env: dict[str, str] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not VARIABLE.fullmatch(name):
            raise BadInput(
                "--env must have the form KEY=value, with a name of letters, digits and underscores"
            )
        if "\0" in value:
            raise BadInput(f"--env {name}: the value must not contain a NUL character")
        if (blank := blank_in(value)) is not None:
            raise BadInput(f"--env {name}: {blank}; {QUOTES}")
        if name in env:
            raise BadInput(f"--env {name} is given twice")
        env[name] = value
    return env
