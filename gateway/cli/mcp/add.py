"""The entry of `mcp.json` that `ostler mcp add` writes, from its arguments. Pure."""

from __future__ import annotations

import re
from argparse import Namespace
from typing import Any, Final
from urllib.parse import urlsplit

from gateway.cli.failures import BadInput
from supervisor.mcp.entry import OAUTH, settings_entry
from supervisor.mcp.file import check_name
from supervisor.mcp.server import MCPServerError

REMOTE: Final = ("http", "sse")
TRANSPORTS: Final = (*REMOTE, "stdio")

METHODS: Final = (OAUTH, "none")
"""Values of `--auth`."""

HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
"""A token of HTTP."""

VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


SCHEMES: Final = frozenset({"basic", "bearer", "digest", "token"})
"""Words before a credential, in lower case."""

QUOTES: Final = (
    "the shell has perhaps put nothing in the place of ${NAME}: in single quotes it stays, and means the "
    "secret of that name"
)


def entry_of(arguments: Namespace) -> dict[str, Any]:
    """The entry. Raises BadInput, which says which argument is wrong and why; no value is quoted."""
    try:
        check_name(arguments.name)
    except ValueError as error:
        raise BadInput(f"NAME: {error}") from None
    transport = arguments.transport
    if transport is None:
        raise BadInput(f"--transport is required: one of {', '.join(TRANSPORTS)}")
    if transport not in TRANSPORTS:
        raise BadInput(f"--transport: {transport!r} is not one of {', '.join(TRANSPORTS)}")
    if arguments.enabled and arguments.disabled:
        raise BadInput("--enabled and --disabled exclude each other; give one, or none to enable the server")
    if not arguments.target or not arguments.target.strip():
        what = "the URL of the server" if transport in REMOTE else "the command that starts the server"
        raise BadInput(f"TARGET is required with --transport {transport}: {what}")
    entry = _remote(arguments) if transport in REMOTE else _stdio(arguments)
    entry["enabled"] = not arguments.disabled
    try:
        settings_entry(entry)
    except MCPServerError as error:
        raise BadInput(str(error)) from None
    return entry


def _remote(arguments: Namespace) -> dict[str, Any]:
    transport = arguments.transport
    if arguments.env:
        raise BadInput(
            f"--env applies to --transport stdio only: Ostler does not start a {transport} server; "
            "use --header"
        )
    if arguments.command_args is not None:
        raise BadInput(f"-- applies to --transport stdio only: a {transport} server takes no arguments")
    entry: dict[str, Any] = {"transport": transport, "url": _url(arguments.target, transport)}
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


def _stdio(arguments: Namespace) -> dict[str, Any]:
    if arguments.header:
        raise BadInput(
            "--header applies to --transport http and sse only: a stdio server gets no headers; use --env"
        )
    if arguments.auth is not None:
        raise BadInput(
            "--auth applies to --transport http and sse only: a stdio server gets its credentials with --env"
        )
    if re.match(r"https?://", arguments.target, re.IGNORECASE):
        raise BadInput("TARGET is a URL, but --transport stdio starts a command; use --transport http or sse")
    args = arguments.command_args or []
    for text in (arguments.target, *args):
        if "\0" in text:
            raise BadInput("commands and arguments must not contain a NUL character")
    entry: dict[str, Any] = {"command": arguments.target, "args": args}
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
    return text


def _headers(given: list[str]) -> dict[str, str]:
    headers: dict[str, str] = {}
    for text in given:
        name, colon, value = text.partition(":")
        name, value = name.strip(), value.strip()
        if not colon or not HEADER_NAME.fullmatch(name):
            raise BadInput("--header must have the form 'Key: Value', with a name that HTTP allows")
        if any(ord(character) < 32 and character != "\t" for character in value):
            raise BadInput(f"--header {name}: the value must not contain control characters")
        if not value or value.lower() in SCHEMES:
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
        if not value.strip():
            raise BadInput(f"--env {name}: the value is empty; {QUOTES}")
        if name in env:
            raise BadInput(f"--env {name} is given twice")
        env[name] = value
    return env
