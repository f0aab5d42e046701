"""The parser of the `ostler` command."""

from __future__ import annotations

import argparse
import re
import sys
from typing import Final

from gateway.cli import suggest
from gateway.cli.arguments import SECRETS, Commands, expanded, help_end
from gateway.cli.client_arguments import add_clients
from gateway.cli.mcp.arguments import add_mcp
from gateway.cli.operator_arguments import add_operators, add_serve
from supervisor.version import __version__

VARIABLE: Final = re.compile(r"[A-Z][A-Z0-9_]*")
"""A name that can be repeated: few values look like one."""

EXAMPLES: Final = (
    "ostler chat                                  talk with an agent",
    'ostler run "What is in this directory?"      one answer, for people and scripts',
    "ostler agents list                           the agents of the catalogue",
    "ostler doctor                                check this machine",
)


def build_parser() -> suggest.Suggesting:
    """All commands with their arguments."""
    parser = suggest.Suggesting(
        prog="ostler",
        description="Run ACP coding agents behind a REST and WebSocket server.",
        epilog=help_end(EXAMPLES, "`ostler COMMAND --help` shows the options and more examples."),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("-V", "--version", action="version", version=f"ostler {__version__}")
    commands = Commands(parser, "command")
    add_serve(commands)
    add_clients(commands)
    add_operators(commands)
    add_mcp(commands)
    return parser


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The arguments of a call. Exits with status 2 for wrong ones."""
    parser = build_parser()
    given = expanded(sys.argv[1:] if argv is None else argv)
    first = next(iter(given), "")
    if first.startswith("-") and first not in suggest.options_of(parser):
        parser.error(f"there is no option {first}{suggest.did_you_mean(first, suggest.options_of(parser))}")
    words: list[str] = []
    if given[:1] == ["completion"] and "--" in given:
        # Set the words to be completed aside: argparse would remove a second `--` from them.
        given, words = given[: given.index("--")], given[given.index("--") + 1 :]
    arguments, more = parser.parse_known_args(given)
    if given[:1] == ["completion"]:
        arguments.parser = parser
    if words:
        arguments.words = words
    if more:
        if arguments.command == SECRETS:
            # Never what was given: it may be the value.
            name = (
                getattr(arguments, "name", None)
                if arguments.action == "set" and not more[0].startswith("-")
                else None
            )
            problem = (
                f"the value is typed at the prompt, or piped: echo VALUE | ostler secrets set {name}; "
                "as an argument it would stay in the shell's history"
                if name and VARIABLE.fullmatch(name)
                else "values are not given as arguments"
            )
        else:
            problem = suggest.unknown_options(parser, arguments, more)
        parser.error(problem, suggest.chain(parser, arguments)[-1].prog)
    return arguments
