"""The MCP servers of a conversation: those of the file and its own, merged by name. Pure.

A conversation's own servers take precedence over those of `mcp.json` with the same name, also when they are
disabled. They are those of its start request and, below these, those that the settings had at its start.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

import attrs

from supervisor.mcp.entry import settings_entry, transport_of
from supervisor.mcp.file import odd_name
from supervisor.mcp.server import MCPServerError, server_errors

FROM_FILE: Final = "file"
FROM_CONVERSATION: Final = "conversation"

REFERENCE: Final = re.compile(r"\$(\$?)\{([A-Za-z_][A-Za-z0-9_]*)\}")
"""`${NAME}` stands for a secret, `$${NAME}` for itself without the first dollar."""


@attrs.frozen
class Server:
    """One server to mount; `entry` is in the form of the settings, with secrets by name."""

    name: str
    source: str
    entry: Mapping[str, Any] = attrs.field(repr=False)

    @property
    def transport(self) -> str:
        """stdio, http or sse."""
        return transport_of(self.entry)


@attrs.frozen
class Configured:
    """The servers that are enabled, and (name, reason) of those that cannot be used, without values."""

    servers: tuple[Server, ...] = ()
    dropped: tuple[tuple[str, str], ...] = ()


def configured(
    file: Mapping[str, Any], own: Mapping[str, Any], *, only: Collection[str] | None = None
) -> Configured:
    """Merge the entries of the file with the conversation's own. `only`: the names allowed from the file."""
    servers: list[Server] = []
    dropped: list[tuple[str, str]] = []
    for name, entry in own.items():
        if errors := server_errors(entry):
            dropped.append((name, f"the entry is not valid: {MCPServerError(tuple(errors))}"))
        elif entry.get("enabled", True):
            servers.append(Server(name, FROM_CONVERSATION, entry))
    for name, entry in file.items():
        if name in own or (only is not None and name not in only):
            continue
        try:
            settings = settings_entry(entry)
        except MCPServerError as error:
            dropped.append((_shown(name), f"the entry in mcp.json is not valid: {error}"))
            continue
        if not settings.get("enabled", True):
            continue
        if reason := odd_name(name):
            dropped.append((_shown(name), reason))
        else:
            servers.append(Server(name, FROM_FILE, settings))
    return Configured(tuple(servers), tuple(dropped))


def resolve(server: Server, secrets: Mapping[str, str]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The entry with the secrets that its values name, and the names of missing ones."""
    missing: list[str] = []

    def expand(text: str) -> str:
        def one(match: re.Match[str]) -> str:
            escaped, name = match.groups()
            if escaped:
                return f"${{{name}}}"
            if not secrets.get(name):
                missing.append(name)
                return ""
            return secrets[name]

        return REFERENCE.sub(one, text)

    entry = {key: changed(value, expand) if key in VALUES else value for key, value in server.entry.items()}
    return entry, tuple(dict.fromkeys(missing))


VALUES: Final = frozenset({"env", "headers", "auth", "args", "url"})
"""The properties whose values may name secrets."""


def without_secrets(reasons: Iterable[str]) -> str:
    """The reason for dropping a server whose secrets are missing."""
    names = list(reasons)
    what = "the secret" if len(names) == 1 else "the secrets"
    return f"there is no value for {what} {', '.join(names)}; store it with `ostler secrets set`"


def changed(value: Any, change: Callable[[str], str]) -> Any:
    """A copy of a JSON value with each of its texts changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {key: changed(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [changed(item, change) for item in value]
    return value


def _shown(name: str) -> str:
    """A name from a file, in printable form."""
    return "".join(character for character in name if character.isprintable())[:64] or "(no name)"
