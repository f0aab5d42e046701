"""The configured MCP servers, of `mcp.json` and of the settings, as the commands show them."""

from __future__ import annotations

import difflib
import json
import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any, Final

import attrs

from gateway.cli.failures import Failure, Missing
from gateway.cli.locations import state_directory
from gateway.cli.mcp.show import masked
from gateway.cli.text import clean
from supervisor.mcp import MCPServerError
from supervisor.mcp.entry import is_enabled, settings_entry, transport_of
from supervisor.mcp.file import MAX_BYTES, McpFile, odd_name

SETTINGS: Final = "settings.json"

FILE, IN_SETTINGS = "file", "settings"


@attrs.frozen
class Server:
    """A configured server. `entry` is as it is written; `problem` says why agents do not get it at all;
    `hidden` that another one of its name goes before it."""

    name: str
    source: str
    entry: Any = attrs.field(repr=False)
    problem: str | None
    transport: str | None
    hidden: bool = False

    @property
    def enabled(self) -> bool:
        """Whether it is switched on."""
        return is_enabled(self.entry)

    @property
    def state(self) -> str:
        """One word."""
        if self.problem is not None:
            return "broken"
        if self.hidden:
            return "hidden"
        return "enabled" if self.enabled else "disabled"

    def dump(self, *, secrets: bool) -> dict[str, Any]:
        """Its JSON. Of the settings, values are encrypted on the disk and never shown."""
        entry = self.entry if secrets and self.source == FILE else masked(self.entry)
        return {
            "name": self.name,
            "source": self.source,
            "enabled": self.enabled,
            "transport": self.transport,
            "hidden": self.hidden,
            "problem": self.problem,
            "entry": entry,
        }


def state_of(arguments: Namespace) -> Path:
    """The state directory that an argument or the environment names. Raises BadInput."""
    return state_directory(arguments.state, os.environ)


def found(file: McpFile) -> tuple[list[Server], list[str]]:
    """Every server, those of the settings first, and lines about what is wrong elsewhere.

    Raises McpFileError for a broken `mcp.json`: what is said of it should be true.
    """
    problems = [problem for problem in (file.old_configuration(),) if problem is not None]
    try:
        settings = [server_of(name, IN_SETTINGS, entry) for name, entry in _of_settings(file.state).items()]
    except ValueError as error:
        settings = []
        problems.append(str(error))
    names = {each.name for each in settings}
    servers = [
        server_of(name, FILE, entry, hidden=name in names) for name, entry in file.read().servers.items()
    ]
    return [*settings, *servers], problems


def missing(name: str, servers: list[Server]) -> Failure:
    """What to say of a server that is not in the file."""
    if any(each.name == name and each.source == IN_SETTINGS for each in servers):
        return Failure(
            f"{name} is in the settings, not in mcp.json; change it with `ostler settings set mcp_config`"
        )
    near = difflib.get_close_matches(name, [each.name for each in servers if each.source == FILE], 1)
    return Missing(f"no server {name}" + (f"; did you mean {near[0]}?" if near else ""))


def tell(text: str) -> None:
    """One line on standard error."""
    print(f"ostler: {' '.join(clean(text).split())}", file=sys.stderr)


def _of_settings(state: Path) -> dict[str, Any]:
    """The servers in the settings' file; none where there is no file. Raises ValueError, in one line."""
    path = state / SETTINGS
    try:
        with path.open("rb") as file:
            document = json.loads(file.read(4 * MAX_BYTES))
        servers = document["agent_settings"].get("mcp_config") or {}
        return dict(servers)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise ValueError(f"cannot read {path}; servers of the settings are not shown") from None


def server_of(name: str, source: str, entry: Any, *, hidden: bool = False) -> Server:
    """The server of an entry."""
    try:
        settings = settings_entry(entry)
    except MCPServerError as error:
        return Server(name, source, entry, str(error), None, hidden)
    return Server(name, source, entry, odd_name(name), transport_of(settings), hidden)
