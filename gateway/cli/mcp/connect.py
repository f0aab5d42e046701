"""`ostler mcp test|login|logout`: connect to an MCP server, with or without a running Ostler."""

from __future__ import annotations

import os
import sys
import webbrowser
from argparse import Namespace
from functools import partial
from typing import Final

import trio

from gateway.cli.failures import Failure, leaves
from gateway.cli.locations import with_server_keys
from gateway.cli.mcp.servers import IN_SETTINGS, Server, file_of, found, missing, state_of
from gateway.cli.present import print_json, print_table, warn
from gateway.cli.text import clean, one_line
from gateway.configuration.parsing import keyring_allowed
from gateway.serving import logs
from supervisor.mcp.entry import settings_entry, uses_oauth
from supervisor.offline.mcp import FAILURES, CannotRenew, Login, McpServer, NotLoggedIn, open_server

COLUMNS: Final = ("TOOL", "DESCRIPTION")

PASTE_BYTES: Final = 16 * 1024
"""Longest pasted address."""


def run(arguments: Namespace) -> None:
    """Do what `arguments.action` says. Raises Failure."""
    logs.configure()
    action = {"test": _test, "login": _login, "logout": _logout}[arguments.action]
    failure: Exception | None = None
    try:
        trio.run(action, arguments)
    except* FAILURES as group:
        failure = Failure("; ".join(str(error) for error in leaves(group)))
    except* Failure as group:
        failure = leaves(group)[0]
    if failure is not None:
        raise failure


async def _find_target(arguments: Namespace) -> tuple[Server, McpServer]:
    """The named server, with the secrets of this machine. Raises Failure."""
    state = state_of(arguments)
    file = file_of(state)
    servers, problems = found(file)
    for problem in problems:
        warn(problem)
    named = [each for each in servers if each.name == arguments.name and not each.hidden]
    if not named:
        raise missing(arguments.name, servers)
    server = named[0]
    if server.problem is not None:
        raise Failure(f"{server.name} is not used: {server.problem}")
    environ = dict(os.environ)
    return server, await open_server(
        state,
        server.name,
        settings_entry(server.entry),
        environ,
        partial(with_server_keys, environ),
        sealed=server.source == IN_SETTINGS,
        keyring=keyring_allowed(environ),
        documents=file.documents,
    )


async def _test(arguments: Namespace) -> None:
    """Connect, and list the tools."""
    server, target = await _find_target(arguments)
    if not server.enabled:
        raise Failure(f"{server.name} is disabled; `ostler mcp enable {server.name}` enables it")
    answer = await target.test(arguments.timeout)
    if arguments.json:
        answer.pop("event", None)
        print_json(answer)
    if not answer["ok"]:
        raise Failure(f"{server.name}: {answer['error']}")
    if not arguments.json:
        tools = answer["tools"]
        print(f"{clean(server.name)} works and has {_count(len(tools))}")
        rows = [(tool["name"], one_line(tool["description"])) for tool in tools]
        if rows:
            print_table(COLUMNS, rows)


async def _login(arguments: Namespace) -> None:
    """Complete a login, in the browser or with a pasted address."""
    server, target = await _find_target(arguments)
    if not uses_oauth(target.entry):
        raise Failure(f"{server.name} is not configured for a login; remove it, and add it with --auth oauth")
    async with (
        target.login() as login,
        trio.open_nursery() as nursery,
    ):
        while (event := await login.event())["event"] != "done":
            if event["event"] == "authorize":
                url = event["url"]
                _say(f"Open this address in a browser to log in to {server.name}:\n\n    {clean(url)}\n")
                what = (
                    "whole address that it ended at"
                    if event["whole"]
                    else "address that it ended at, or the code"
                )
                _say(f"If the browser then shows an error, paste the {what}:")
                if not arguments.no_browser and sys.stderr.isatty():
                    await trio.to_thread.run_sync(partial(webbrowser.open, url), abandon_on_cancel=True)
                nursery.start_soon(_pasted, login)
            else:
                what = "the whole address" if event["whole"] else "it"
                _say(f"That is not the answer to this login. Paste {what} again:")
        nursery.cancel_scope.cancel()
    event.pop("event")
    if not event["ok"]:
        raise Failure(f"{server.name}: {event['error']}")
    tools = [tool["name"] for tool in event["tools"]]
    if arguments.json:
        print_json({"name": server.name, "logged_in": bool(event["renewed"]), "tools": tools})
    elif event["renewed"]:
        print(f"logged in to {clean(server.name)}, which has {_count(len(tools))}")
    else:
        print(f"{clean(server.name)} requires no login; it has {_count(len(tools))}")


async def _logout(arguments: Namespace) -> None:
    """Forget a login."""
    server, target = await _find_target(arguments)
    try:
        problem = await target.logout()
    except CannotRenew as error:
        raise Failure(f"{server.name}: {error}") from None
    except NotLoggedIn:
        raise Failure(f"there is no login to {server.name}") from None
    if arguments.json:
        print_json({"name": server.name, "logged_in": False, "revoked": problem is None})
    else:
        print(f"logged out of {clean(server.name)}")
    if problem is not None:
        warn(f"could not revoke the tokens: {problem}. They expire by themselves")


async def _pasted(login: Login) -> None:
    """Pass standard input on, line by line, until it ends."""
    number = sys.stdin.fileno()
    buffer = b""
    while True:
        try:
            await trio.lowlevel.wait_readable(number)
        except OSError:
            await trio.lowlevel.checkpoint()  # a file: it is always readable
        data = os.read(number, PASTE_BYTES)
        if not data or len(buffer) > PASTE_BYTES:
            return
        buffer += data
        *lines, buffer = buffer.split(b"\n")
        for line in lines:
            text = line.decode("utf-8", "replace").strip()
            if "://" in text:
                await login.answer(callback_url=text)
            elif text:
                await login.answer(code=text)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _count(tools: int) -> str:
    return "1 tool" if tools == 1 else f"{tools} tools"
