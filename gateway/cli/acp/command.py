"""`ostler acp`: the server's ACP agent on standard streams."""

from __future__ import annotations

import getpass
import os
import sys
from argparse import Namespace
from collections.abc import Mapping
from typing import Final
from urllib.parse import urlencode
from uuid import uuid4

from gateway.cli.acp.bridge import Bridge, say
from gateway.cli.acp.exchange import LINE_BYTES, Exchange
from gateway.cli.acp.messages import KEY_VARIABLE
from gateway.cli.client import Server
from gateway.cli.failures import BadInput
from gateway.cli.locations import keep_typed_key
from gateway.cli.talk.temporary import found_or_started
from gateway.cli.tasks import run_tasks
from supervisor.agents.remote.streams import Input, Output, taken

SOCKET: Final = "/sockets/acp"


def run(arguments: Namespace) -> int:
    """Serve one editor until it leaves. Raises Failure, BrokenPipeError."""
    env = os.environ
    if arguments.login:
        return _login(arguments, env)
    given, out = taken()
    exchange = Exchange()
    query = {"client": str(uuid4()), "agent": arguments.agent, "model": arguments.model}
    path = f"{SOCKET}?{urlencode({name: value for name, value in query.items() if value is not None})}"
    with found_or_started(arguments, env, say) as server:

        def address() -> tuple[Server, str]:
            if not server.temporary:
                # A person may have logged in meanwhile.
                server.key = Server.of(arguments.url, env).key or server.key
            return server, path

        async def serve() -> None:
            await Bridge(address, exchange, Input(given, LINE_BYTES), Output(out)).run()

        run_tasks(serve)
        _say_what_stays(server, exchange.prompts)
    return 0


def _say_what_stays(server: Server, prompts: list[str]) -> None:
    for session in dict.fromkeys(prompts):
        if server.temporary:
            say(f"the temporary server ends, and the turn of {session}; `ostler serve` starts one that stays")
        else:
            say(f"the turn continues on the server; `ostler attach {session}` shows it")


def _login(arguments: Namespace, env: Mapping[str, str]) -> int:
    """Ask for the key of the server, and keep it if the server knows it. Raises Failure."""
    if env.get(KEY_VARIABLE):
        raise BadInput(f"{KEY_VARIABLE} is set and takes precedence; change it, or unset it to log in")
    from gateway.cli.terminal import asks  # it imports rich, which a bridge does not need

    if not asks():
        raise BadInput(f"--login requires a terminal on standard input; or set {KEY_VARIABLE}")
    server = Server.of(arguments.url, env)
    address = server.url
    server.key = getpass.getpass(f"Session key of {address}: ").strip() or None
    server.get("/api/status")
    if server.key is None:
        print(f"ostler: {address} needs no key", file=sys.stderr)
        return 0
    path = keep_typed_key(address, server.key, env)
    print(f"ostler: the key is kept in {path}", file=sys.stderr)
    return 0
