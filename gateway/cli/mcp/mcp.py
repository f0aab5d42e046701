"""`ostler mcp`: manage the MCP servers of `mcp.json`, and show those of the settings.

The command reads both files of the state directory itself, so that it shows the same with and without a
running server. It writes only `mcp.json`: the settings belong to the running server.
"""

from __future__ import annotations

import difflib
import importlib
import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from gateway.cli.failures import Failure, Missing
from gateway.cli.locations import state_directory
from gateway.cli.mcp.add import entry_of
from gateway.cli.mcp.show import details, masked, target_of
from gateway.cli.present import print_json
from gateway.cli.text import clean, table, terminal_width
from supervisor.mcp import MCPServerError
from supervisor.mcp.entry import is_enabled, settings_entry, switch, transport_of
from supervisor.mcp.file import MAX_BYTES, McpFile, McpFileError, odd_name

SETTINGS: Final = "settings.json"

FILE, IN_SETTINGS = "file", "settings"

COLUMNS: Final = ("NAME", "STATE", "TRANSPORT", "SOURCE", "TARGET")

LATER: Final = "agents see the change at their next start"


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


def run(arguments: Namespace) -> None:
    """Do what `arguments.action` says. Raises Failure."""
    try:
        if arguments.action in CONNECTING:
            importlib.import_module("gateway.cli.mcp.connect").run(arguments)
        else:
            ACTIONS[arguments.action](arguments)
    except McpFileError as error:
        raise Failure(clean(str(error))) from None
    except Failure as error:
        raise type(error)(clean(str(error))) from None  # names and addresses are anybody's text


def state_of(arguments: Namespace) -> Path:
    """The state directory that an argument or the environment names. Raises BadInput."""
    return state_directory(arguments.state, os.environ)


def list_servers(arguments: Namespace) -> None:
    """List the servers of the file and of the settings; on standard error, what does not count and why."""
    file = McpFile(state_of(arguments))
    servers, problems = found(file)
    if arguments.json:
        dumped = [each.dump(secrets=arguments.show_secrets) for each in servers]
        print_json({"path": str(file.path), "servers": dumped, "problems": problems})
    else:
        rows = [_row(each, secrets=arguments.show_secrets) for each in servers]
        print("\n".join(table(COLUMNS, rows, terminal_width()) if rows else ["no MCP servers"]))
        if arguments.show_secrets:
            for each in servers:
                _details(each, secrets=True, indent=f"{each.name}  ")
    sys.stdout.flush()
    for each in servers:
        if each.problem is not None:
            tell(f"{each.name} ({each.source}) is not used: {each.problem}")
        elif each.hidden:
            tell(f"{each.name} of mcp.json is not used: the settings have a server of the same name")
    for problem in problems:
        tell(problem)


def get(arguments: Namespace) -> None:
    """Show one server: the one that counts where there are two of that name."""
    file = McpFile(state_of(arguments))
    servers, problems = found(file)
    named = [each for each in servers if each.name == arguments.name]
    if not named:
        raise missing(arguments.name, servers)
    server = next((each for each in named if not each.hidden), named[0])
    if arguments.json:
        print_json(server.dump(secrets=arguments.show_secrets))
    else:
        print(f"name       {clean(server.name)}")
        print(f"state      {server.state}")
        print(f"source     {server.source}" + (f" ({file.path})" if server.source == FILE else ""))
        print(f"transport  {server.transport or '-'}")
        shown = server.entry if arguments.show_secrets and server.source == FILE else masked(server.entry)
        print(f"target     {clean(target_of(shown)) if isinstance(shown, Mapping) else '-'}")
        _details(server, secrets=arguments.show_secrets)
    sys.stdout.flush()
    if server.problem is not None:
        tell(f"{server.name} is not used: {server.problem}")
    for problem in problems:
        tell(problem)


def remove(arguments: Namespace) -> None:
    """Remove a server from the file."""

    def edit(servers: dict[str, Any]) -> None:
        if arguments.name not in servers:
            raise missing(arguments.name, found(file)[0])
        del servers[arguments.name]

    file = McpFile(state_of(arguments))
    file.change(edit)
    _done(arguments, {"name": arguments.name, "removed": True}, f"removed {arguments.name}")


def enable(arguments: Namespace) -> None:
    """Switch a server of the file on."""
    _switch(arguments, True)


def disable(arguments: Namespace) -> None:
    """Switch a server of the file off."""
    _switch(arguments, False)


def _switch(arguments: Namespace, enabled: bool) -> None:
    word = "enabled" if enabled else "disabled"

    def edit(servers: dict[str, Any]) -> bool:
        if arguments.name not in servers:
            raise missing(arguments.name, found(file)[0])
        entry = servers[arguments.name]
        if not isinstance(entry, dict):
            raise Failure(f"{arguments.name} in {file.path} is not an object; remove it and add it again")
        before = is_enabled(entry) is enabled
        switch(entry, enabled)
        return before

    file = McpFile(state_of(arguments))
    already = file.change(edit)
    text = f"{arguments.name} is {word} already" if already else f"{word} {arguments.name}; {LATER}"
    _done(arguments, {"name": arguments.name, "enabled": enabled}, text)


def add(arguments: Namespace) -> None:
    """Add a server to the file. One that is there already is left alone."""
    entry = entry_of(arguments)

    def edit(servers: dict[str, Any]) -> None:
        if arguments.name in servers:
            raise Failure(
                f"a server {arguments.name} exists already; remove it first with `ostler mcp remove`"
            )
        servers[arguments.name] = entry

    file = McpFile(state_of(arguments))
    file.change(edit)
    server = _server(arguments.name, FILE, entry)
    text = f"added {arguments.name} ({server.transport}, {server.state})"
    _done(arguments, server.dump(secrets=False), f"{text}; {LATER}" if server.enabled else text)
    if not arguments.json and entry.get("auth") == "oauth":
        tell(f"log in to it with `ostler mcp login {arguments.name}`")


ACTIONS: Final[Mapping[str, Callable[[Namespace], None]]] = {
    "list": list_servers,
    "get": get,
    "remove": remove,
    "enable": enable,
    "disable": disable,
    "add": add,
}
"""By the name on the command line; `mcp_arguments.py` has their arguments."""

CONNECTING: Final = frozenset({"test", "login", "logout"})
"""Those that speak to servers."""


def found(file: McpFile) -> tuple[list[Server], list[str]]:
    """Every server, those of the settings first, and lines about what is wrong elsewhere.

    Raises McpFileError for a broken `mcp.json`: what is said of it should be true.
    """
    problems = [problem for problem in (file.old_configuration(),) if problem is not None]
    try:
        settings = [_server(name, IN_SETTINGS, entry) for name, entry in _of_settings(file.state).items()]
    except ValueError as error:
        settings = []
        problems.append(str(error))
    names = {each.name for each in settings}
    servers = [
        _server(name, FILE, entry, hidden=name in names) for name, entry in file.read().servers.items()
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


def _server(name: str, source: str, entry: Any, *, hidden: bool = False) -> Server:
    try:
        settings = settings_entry(entry)
    except MCPServerError as error:
        return Server(name, source, entry, str(error), None, hidden)
    return Server(name, source, entry, odd_name(name), transport_of(settings), hidden)


def _row(server: Server, *, secrets: bool) -> tuple[str, ...]:
    entry = server.entry if secrets and server.source == FILE else masked(server.entry)
    target = target_of(entry) if isinstance(entry, Mapping) else "-"
    return (server.name, server.state, server.transport or "-", server.source, target)


def _details(server: Server, *, secrets: bool, indent: str = "") -> None:
    shown = server.entry if secrets and server.source == FILE else masked(server.entry)
    if isinstance(shown, Mapping):
        for label, text in details(shown):
            print(clean(f"{indent}{label:<9}  {text}"))


def _done(arguments: Namespace, answer: Mapping[str, Any], text: str) -> None:
    print_json(dict(answer)) if arguments.json else print(clean(text))
