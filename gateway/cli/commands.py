"""The operators' commands: their arguments, and running one of them against a server."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable
from typing import Final

from gateway.cli.mcp_arguments import add_mcp

INTERRUPTED: Final = 130
"""128 and the number of SIGINT, as shells have it."""

PIPE_CLOSED: Final = 141
"""128 and the number of SIGPIPE."""

WATCH_SECONDS: Final = 2.0
SHORTEST_WATCH_SECONDS: Final = 0.1

SECRETS: Final = "secrets"
"""The command whose arguments are not repeated in what is said about them: one may be a value."""

EPILOG: Final = (
    "The server is the one at --url, else at OSTLER_URL, else that of the state directory (OSTLER_STATE), "
    "else at OSTLER_HOST and OSTLER_PORT; the key for it is OSTLER_API_KEY, else a session key of the "
    "server's own variables. "
    "An ID may be cut to its first characters. "
    "Exit status: 0 done, 1 failed, 2 called wrongly, 3 no server."
)


def add_commands(
    add: Callable[..., argparse.ArgumentParser],
) -> None:
    """Add the commands; `add` is `add_parser` of the `ostler` command's subparsers."""

    def command(
        name: str, summary: str, add: Callable[..., argparse.ArgumentParser] = add
    ) -> argparse.ArgumentParser:
        parser = add(name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", epilog=EPILOG)
        parser.add_argument("--url", help="of the server (OSTLER_URL; default http://127.0.0.1:8000)")
        parser.add_argument("--json", action="store_true", help="print JSON, for programs")
        return parser

    def watched(parser: argparse.ArgumentParser) -> None:
        parser.add_argument(
            "-w",
            "--watch",
            metavar="SECONDS",
            nargs="?",
            type=_interval,
            const=WATCH_SECONDS,
            help=f"again and again, every {WATCH_SECONDS:g} s unless told otherwise",
        )

    def one(parser: argparse.ArgumentParser, **more: str) -> None:
        parser.add_argument("id", metavar="ID", help="of the conversation", **more)  # type: ignore[arg-type]

    watched(command("ps", "list the agents"))
    watched(command("status", "tell how the server is"))

    restart = command("restart", "restart an agent and go on with its session")
    one(restart)
    restart.add_argument("--force", action="store_true", help="at once, without letting its turn end")

    one(command("stop", "stop an agent; its conversation stays and can go on with the next message"))

    logs = command("logs", "print what an agent wrote to standard error")
    one(logs)
    logs.add_argument("-f", "--follow", action="store_true", help="go on with what is added")
    logs.add_argument("-n", "--lines", metavar="N", type=_count, help="only the last N lines")
    logs.add_argument("--trace", action="store_true", help="the frames between agent and server instead")

    attach = command("attach", "print what happens in a conversation, as it happens")
    one(attach, nargs="?")
    attach.add_argument("--all", action="store_true", help="from the first event on")

    summary = "store, list and remove what agents are given: keys and tokens, by the name of a variable"
    secrets = add(SECRETS, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", epilog=EPILOG)
    actions = secrets.add_subparsers(dest="action", metavar="ACTION", required=True).add_parser
    setting = command("set", "store a secret; its value is asked for, or read from standard input", actions)
    setting.add_argument("name", metavar="NAME", help="of the variable that the agent reads")
    setting.add_argument("--description", metavar="TEXT", help="for people")
    unset = command("unset", "remove a secret from the store", actions)
    unset.add_argument("name", metavar="NAME", help="of the secret")
    command("list", "list names and where each secret comes from", actions)
    check = command("check", "tell which credential an agent would use, never its value", actions)
    check.add_argument("agent", metavar="AGENT", nargs="?", help="its key, such as codex; all without it")
    command("rotate", "encrypt everything that is stored under a new master key", actions)
    add_mcp(add)


def run(arguments: argparse.Namespace) -> int:
    """Run the command that was parsed; the exit status."""
    # Imported here, so that parsing stays quick.
    from gateway.cli.client import Failure, Server

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character is no reason to fail
    try:
        server = Server.of(arguments.url, os.environ) if hasattr(arguments, "url") else None
        importlib.import_module(f"gateway.cli.{arguments.command}").run(server, arguments)
        sys.stdout.flush()
    except Failure as error:
        print(f"ostler: {' '.join(str(error).split())}", file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Who read our output has seen enough. Nothing more must be written, not even at the exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    return 0


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not SHORTEST_WATCH_SECONDS <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return seconds


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no count of lines")
    return int(text)
