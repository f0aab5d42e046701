"""Converts MCP servers to the form that `session/new` requires."""

from __future__ import annotations

import base64
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs

from supervisor.mcp.server import MCPServer, MCPServerError, decode_server
from supervisor.patience import KeyedLimiters, PathTimeout, in_time

#: Turns a command into the absolute path of its program, or None when there is none.
Resolve = Callable[[str], str | None]

#: Where an `api_key` goes that names no header of its own.
API_KEY_HEADER: Final = "X-API-Key"

#: ACP names of remote transports by ours. Each is also the capability that an agent must have.
REMOTE_TYPES: Final[Mapping[str | None, str]] = {
    None: "http",
    "http": "http",
    "streamable-http": "http",
    "sse": "sse",
}

#: What an entry may say that ACP has no field for.
MORE: Final = ("cwd", "timeout", "sse_read_timeout", "keep_alive")

NO_CWD: Final = "its cwd is ignored: ACP has no field for it, and the agent's own applies"

#: Looking up commands is a few stat calls; two conversations may do so at a time.
RESOLVE_THREADS: Final = 2

LOOKING: Final = KeyedLimiters(RESOLVE_THREADS)


@attrs.frozen
class Forwarded:
    """The outcome. Reasons name properties and servers, never values, so they may be shown.

    `servers` is what goes to the agent as `mcpServers`; `dropped` are (name, reason) of those
    that do not; `notes` are (name, reason) of servers that go, but without something.
    """

    servers: list[dict[str, Any]] = attrs.field(repr=False)
    dropped: list[tuple[str, str]]
    notes: list[tuple[str, str]]


class _DroppedError(Exception):
    """This server cannot be forwarded; the text is the reason."""


def resolver(workspace: Path, search_path: str | None = None) -> Resolve:
    """Resolve as the agent's own shell would: names on `search_path`, paths from `workspace`.

    `search_path` is a PATH value, by default the server's own. The function blocks on the disk.
    """

    def resolve(command: str) -> str | None:
        if "/" in command:
            command = str(workspace / command)
        found = shutil.which(command, path=search_path)
        return None if found is None else str(Path(found).absolute())

    return resolve


def to_acp_servers(
    mcp_config: Mapping[str, Any],
    mcp_capabilities: Mapping[str, Any],
    *,
    resolve: Resolve | None = None,
    whole: bool = False,
) -> Forwarded:
    """The enabled servers of `mcp_config` that the agent supports, in order.

    stdio always; `http` and `sse` only if the agent's `mcpCapabilities` say so. An invalid entry drops
    only that server. The only I/O is `resolve`, called for commands that are not absolute; by default they
    are looked up from the server's own directory and PATH.

    `whole`: what ACP has no field for goes as `_meta.ostler`, for an agent of Ostler's own.
    """
    resolve = resolve or resolver(Path.cwd())
    forwarded = Forwarded([], [], [])
    for name, entry in mcp_config.items():
        try:
            server = decode_server(entry)
            if not server.enabled:
                continue
            notes: list[str] = []
            if server.command is not None:
                converted = _stdio(name, server.command, server, resolve)
            else:
                converted = _remote(name, server, mcp_capabilities, notes)
            more = {key: value for key in MORE if (value := getattr(server, key)) is not None}
            if whole and more:
                converted["_meta"] = {"ostler": more}
            elif server.command is not None and server.cwd is not None:
                notes.append(NO_CWD)
        except MCPServerError as error:
            forwarded.dropped.append((name, f"the entry is not valid: {error}"))
        except _DroppedError as error:
            forwarded.dropped.append((name, str(error)))
        else:
            forwarded.servers.append(converted)
            forwarded.notes.extend((name, note) for note in notes)
    return forwarded


async def forward_servers(
    mcp_config: Mapping[str, Any],
    mcp_capabilities: Mapping[str, Any],
    *,
    workspace: Path,
    search_path: str | None = None,
    whole: bool = False,
) -> Forwarded:
    """`to_acp_servers` with the look-up of commands in a thread.

    If a directory does not answer within PATH_SECONDS, only servers with absolute commands are forwarded.

    Cancellation abandons the thread.
    """
    convert = partial(to_acp_servers, mcp_config, mcp_capabilities, whole=whole)
    resolve = resolver(workspace, search_path)
    try:
        return await in_time(
            partial(convert, resolve=resolve),
            "to look for the commands of MCP servers",
            limiter=LOOKING.of(str(workspace)),
        )
    except PathTimeout:
        return convert(resolve=lambda command: None)


def _stdio(name: str, command: str, server: MCPServer, resolve: Resolve) -> dict[str, Any]:
    if not Path(command).is_absolute():
        found = resolve(command)
        if found is None:
            raise _DroppedError("its command is not on PATH, or not executable")
        command = found
    # No "type": in ACP that means stdio, the one transport every agent must support.
    return {"name": name, "command": command, "args": list(server.args), "env": _pairs(server.env)}


def _remote(
    name: str, server: MCPServer, capabilities: Mapping[str, Any], notes: list[str]
) -> dict[str, Any]:
    kind = REMOTE_TYPES[server.transport]
    if capabilities.get(kind) is not True:
        raise _DroppedError(f"the agent does not offer MCP over {kind}")
    # A header given by hand comes first and stays; two of a name would leave the choice to the agent.
    headers: dict[str, tuple[str, str]] = {}
    for source in (server.headers, _auth_headers(server.auth or {}, notes)):
        for header, value in source.items():
            headers.setdefault(header.lower(), (header, value))
    return {"type": kind, "name": name, "url": server.url, "headers": _pairs(dict(headers.values()))}


def _auth_headers(auth: Mapping[str, Any], notes: list[str]) -> dict[str, str]:
    """The headers of an `auth` object; a note if there are none."""
    strategy = auth.get("strategy", "none")
    value = auth.get("value")
    if strategy == "bearer" and value:
        return {"Authorization": f"Bearer {value}"}
    if strategy == "api_key" and value:
        return {auth.get("header_name") or API_KEY_HEADER: value}
    if strategy == "basic":
        pair = f"{auth['username']}:{auth.get('password') or ''}"
        return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode('ascii')}"}
    if strategy == "header":
        return dict(auth.get("headers") or {})
    if strategy == "oauth2":
        notes.append("its oauth2 login is ignored: it does not fit in a fixed header")
    elif strategy != "none":
        notes.append(f"its {strategy} credential has no value")
    return {}


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"name": name, "value": value} for name, value in values.items()]
