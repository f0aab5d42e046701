"""Arguments of the operators' commands: `ps`, `status`, `restart`, `stop`, `logs`, `attach`, `secrets`."""

from __future__ import annotations

import argparse
from typing import Final

from gateway.cli.arguments import SECRETS, Add, actions_of, command, count, group, json_option

WATCH_SECONDS: Final = 2.0
SHORTEST_WATCH_SECONDS: Final = 0.1


def add_commands(add: Add) -> None:
    """Add them; `add` is `add_parser` of the `ostler` command's subparsers."""
    ps = command(add, "ps", "list the agents", ["ostler ps", "ostler ps --watch"])
    json_option(ps)
    _watched(ps)

    status = command(add, "status", "show the state of the server", ["ostler status", "ostler status --json"])
    json_option(status)
    _watched(status)

    restart = command(
        add,
        "restart",
        "restart an agent and resume its session",
        ["ostler restart 0f8f", "ostler restart 0f8f --force"],
    )
    json_option(restart)
    _one(restart)
    restart.add_argument("--force", action="store_true", help="do not wait for the end of its turn")

    stop = command(
        add,
        "stop",
        "stop an agent; the next message to its conversation starts it again",
        ["ostler stop 0f8f"],
    )
    json_option(stop)
    _one(stop)

    logs = command(
        add,
        "logs",
        "print what an agent wrote to standard error",
        ["ostler logs 0f8f -n 20", "ostler logs 0f8f --follow", "ostler logs 0f8f --trace"],
    )
    json_option(logs)
    _one(logs)
    logs.add_argument("-f", "--follow", action="store_true", help="wait for new lines and print them")
    logs.add_argument("-n", "--lines", metavar="N", type=count, help="print only the last N lines")
    logs.add_argument(
        "--trace", action="store_true", help="print the frames between agent and server instead"
    )

    attach = command(
        add,
        "attach",
        "print the events of a conversation as they happen",
        ["ostler attach", "ostler attach 0f8f --all", "ostler attach 0f8f --json | jq .type"],
    )
    json_option(attach)
    _one(attach, nargs="?")
    attach.add_argument("--all", action="store_true", help="begin with the first event")
    _add_secrets(add)


def _add_secrets(add: Add) -> None:
    actions = actions_of(
        group(
            add,
            SECRETS,
            "store, list and remove the secrets of agents: keys and tokens, by the name of a variable",
            [
                "ostler secrets set ANTHROPIC_API_KEY",
                "ostler secrets set OPENAI_API_KEY < key.txt",
                "ostler secrets check codex",
            ],
        )
    )
    setting = command(
        actions,
        "set",
        "store a secret; the command asks for its value, or reads it from standard input",
        ["ostler secrets set ANTHROPIC_API_KEY", "pass show openai | ostler secrets set OPENAI_API_KEY"],
    )
    json_option(setting)
    setting.add_argument("name", metavar="NAME", help="name of the variable that the agent reads")
    setting.add_argument("--description", metavar="TEXT", help="note about the secret")
    unset = command(
        actions, "unset", "remove a secret from the store", ["ostler secrets unset OPENAI_API_KEY"]
    )
    json_option(unset)
    unset.add_argument("name", metavar="NAME", help="name of the secret")
    listing = command(actions, "list", "list names and where each secret comes from", ["ostler secrets list"])
    json_option(listing)
    check = command(
        actions,
        "check",
        "tell which credential an agent would use, never its value",
        ["ostler secrets check", "ostler secrets check codex"],
    )
    json_option(check)
    check.add_argument("agent", metavar="AGENT", nargs="?", help="agent, such as codex (default: all)")
    rotate = command(
        actions,
        "rotate",
        "encrypt all stored secrets with a new master key",
        ["ostler secrets rotate"],
    )
    json_option(rotate)


def _watched(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-w",
        "--watch",
        metavar="SECONDS",
        nargs="?",
        type=_interval,
        const=WATCH_SECONDS,
        help=f"repeat every SECONDS (default {WATCH_SECONDS:g})",
    )


def _one(parser: argparse.ArgumentParser, nargs: str | None = None) -> None:
    parser.add_argument("id", metavar="ID", help="id of the conversation", nargs=nargs)


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not SHORTEST_WATCH_SECONDS <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds
