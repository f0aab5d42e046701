"""`ostler mcp`: manage the MCP servers of `mcp.json`, and show those of the settings.

The command reads both files of the state directory itself, so that it shows the same with and without a
running server. It writes only `mcp.json`: the settings belong to the running server.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

from gateway.cli.failures import Failure
from gateway.cli.mcp.add import entry_of, json_entry
from gateway.cli.mcp.foreign import Surroundings
from gateway.cli.mcp.servers import (
    FILE,
    Server,
    details,
    file_of,
    found,
    missing,
    server_of,
    state_of,
    target_of,
)
from gateway.cli.present import print_json, print_table, warn
from gateway.cli.text import clean
from supervisor.mcp.entry import is_enabled, settings_entry, switch, uses_oauth
from supervisor.mcp.file import McpFile, McpFileError

COLUMNS: Final = ("NAME", "STATE", "TRANSPORT", "SOURCE", "TARGET")

T = TypeVar("T")

LATER: Final = "agents see the change at their next start"


def do_list(arguments: Namespace) -> None:
    """List the servers of the file and of the settings; on standard error, the unused ones with reasons."""
    file = file_of(state_of(arguments))
    servers, problems = found(file)
    if arguments.json:
        dumped = [each.dump(secrets=arguments.show_secrets) for each in servers]
        print_json({"path": file.shown, "servers": dumped, "problems": problems})
    else:
        rows = []
        for each in servers:
            entry = each.shown(secrets=arguments.show_secrets)
            target = target_of(entry) if isinstance(entry, Mapping) else "-"
            rows.append((each.name, each.state, each.transport or "-", each.source, target))
        print_table(COLUMNS, rows) if rows else print("no MCP servers")
        if arguments.show_secrets:
            for each in servers:
                _details(each, secrets=True, indent=f"{each.name}  ")
    sys.stdout.flush()
    for each in servers:
        if each.problem is not None:
            warn(f"{each.name} ({each.source}) is not used: {each.problem}")
        elif each.hidden:
            warn(f"{each.name} of mcp.json is not used: the settings have a server of the same name")
    for problem in problems:
        warn(problem)


def do_get(arguments: Namespace) -> None:
    """Show one server; of two with that name, the one in use."""
    file = file_of(state_of(arguments))
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
        print(f"source     {server.source}" + (f" ({file.shown})" if server.source == FILE else ""))
        print(f"transport  {server.transport or '-'}")
        shown = server.shown(secrets=arguments.show_secrets)
        print(f"target     {clean(target_of(shown)) if isinstance(shown, Mapping) else '-'}")
        _details(server, secrets=arguments.show_secrets)
    sys.stdout.flush()
    if server.problem is not None:
        warn(f"{server.name} is not used: {server.problem}")
    for problem in problems:
        warn(problem)


def do_remove(arguments: Namespace) -> None:
    """Remove a server from the file."""

    def edit(servers: dict[str, Any]) -> None:
        if arguments.name not in servers:
            raise missing(arguments.name, found(file)[0])
        del servers[arguments.name]

    file = file_of(state_of(arguments))
    change(file, edit)
    _done(arguments, {"name": arguments.name, "removed": True}, f"removed {arguments.name}")


def switch_server(arguments: Namespace) -> None:
    """Switch a server of the file on or off."""
    enabled = arguments.action == "enable"

    def edit(servers: dict[str, Any]) -> bool:
        if arguments.name not in servers:
            raise missing(arguments.name, found(file)[0])
        entry = servers[arguments.name]
        if not isinstance(entry, dict):
            raise Failure(f"{arguments.name} in {file.shown} is not an object; remove it and add it again")
        before = is_enabled(entry) is enabled
        switch(entry, enabled)
        return before

    file = file_of(state_of(arguments))
    already = change(file, edit)
    word = "enabled" if enabled else "disabled"
    text = f"{arguments.name} is {word} already" if already else f"{word} {arguments.name}; {LATER}"
    _done(arguments, {"name": arguments.name, "enabled": enabled}, text)


def do_add(arguments: Namespace) -> None:
    """Add a server to the file. An existing one of that name is left alone."""
    _add(arguments, entry_of(arguments))


def add_json(arguments: Namespace) -> None:
    """Add a server that is written as other clients do. An existing one of that name is left alone."""
    found = json_entry(arguments.name, arguments.text, Surroundings(Path.cwd(), Path.home()))
    _add(arguments, found.entry)
    for note in found.notes:
        warn(f"{arguments.name}: {note}")


def _add(arguments: Namespace, entry: dict[str, Any]) -> None:
    def edit(servers: dict[str, Any]) -> None:
        if arguments.name in servers:
            raise Failure(
                f"a server {arguments.name} exists already; remove it first with `ostler mcp remove`"
            )
        servers[arguments.name] = entry

    file = file_of(state_of(arguments))
    change(file, edit)
    server = server_of(arguments.name, FILE, entry)
    text = f"added {arguments.name} ({server.transport}, {server.state})"
    _done(arguments, server.dump(secrets=False), f"{text}; {LATER}" if server.enabled else text)
    if not arguments.json and uses_oauth(settings_entry(entry)):
        warn(f"log in to it with `ostler mcp login {arguments.name}`")


def change(file: McpFile, edit: Callable[[dict[str, Any]], T]) -> T:
    """Edit the file. Raises Failure."""
    try:
        return file.change(edit)
    except McpFileError as error:
        raise Failure(str(error)) from None


def _details(server: Server, *, secrets: bool, indent: str = "") -> None:
    shown = server.shown(secrets=secrets)
    if isinstance(shown, Mapping):
        for label, text in details(shown):
            print(clean(f"{indent}{label:<9}  {text}"))


def _done(arguments: Namespace, answer: Mapping[str, Any], text: str) -> None:
    print_json(dict(answer)) if arguments.json else print(clean(text))
