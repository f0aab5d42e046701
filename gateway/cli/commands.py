"""The commands besides `serve`: adds their arguments to the parser, and runs one of them."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import Final

from gateway.cli import client_arguments, operator_arguments
from gateway.cli.arguments import Add
from gateway.cli.mcp.arguments import add_mcp

INTERRUPTED: Final = 130
"""128 and the number of SIGINT, as shells have it."""

PIPE_CLOSED: Final = 141
"""128 and the number of SIGPIPE."""

ON_THEIR_OWN: Final = frozenset({"run", "chat", "agents", "doctor", "completion", "mcp"})
"""Commands that find, start or do without a server themselves. The others are given one."""


ROOMS: Final = {
    "agents": ("agents",),
    "doctor": ("doctor",),
    "follow": ("attach", "events", "export"),
    "mcp": ("mcp",),
    "operate": ("conversations", "logs", "ps", "restart", "secrets", "settings", "status", "stop"),
    "talk": ("chat", "run"),
}
"""The commands of each room, whose modules have their names. Others are modules of this package."""


def module_of(command: str) -> str:
    """The name of the module that runs a command."""
    for room, commands in ROOMS.items():
        if command in commands:
            return f"gateway.cli.{room}.{command}"
    return f"gateway.cli.{command}"


def add_commands(add: Add) -> None:
    """Add the commands; `add` is `add_parser` of the `ostler` command's subparsers."""
    client_arguments.add_commands(add)
    operator_arguments.add_commands(add)
    add_mcp(add)


def run(arguments: argparse.Namespace) -> int:
    """Run the command that was parsed; the exit status."""
    # Imported here, so that parsing stays quick.
    from gateway.cli.client import Server
    from gateway.cli.failures import BadInput, Failure
    from gateway.configuration.parsing import ConfigError

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character is not a reason to fail
    status: int | None = 0
    try:
        module = importlib.import_module(module_of(arguments.command))
        if arguments.command in ON_THEIR_OWN:
            status = module.run(arguments)
        else:
            status = module.run(Server.of(arguments.url, os.environ), arguments)
        sys.stdout.flush()
    except Failure as error:
        print(f"ostler: {' '.join(str(error).split())}", file=sys.stderr)
        return error.status
    except ConfigError as error:
        print(f"ostler: {error}", file=sys.stderr)
        return BadInput.status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has closed the pipe. Write nothing more, not even when the exit flushes.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    return status or 0
