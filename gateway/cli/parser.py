"""The parser of the `ostler` command: the options of `serve`, and how the other commands are added."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from gateway.cli import commands, suggest
from gateway.cli.arguments import SECRETS, help_end
from supervisor.version import __version__

SERVE: Final = "serve"
COMPLETION: Final = "completion"

EXAMPLES: Final = (
    "ostler chat                                  talk with an agent",
    'ostler run "What is in this directory?"      one answer, for people and scripts',
    "ostler agents list                           the agents of the catalogue",
    "ostler doctor                                check this machine",
)


def build_parser() -> argparse.ArgumentParser:
    """The command's arguments. Values are checked later, together with those of the environment."""
    parser = suggest.Suggesting(
        prog="ostler",
        description="Run ACP coding agents behind a REST and WebSocket server.",
        epilog=help_end(EXAMPLES, "`ostler COMMAND --help` shows the options and more examples."),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ostler {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    serve = subparsers.add_parser(
        SERVE,
        help="run the server",
        description="Run the server.",
        epilog=help_end(
            ("ostler serve", "ostler serve --port 9000 --state ~/other", "ostler serve --keys-file keys.env"),
            "docs/configuration.md lists its variables.",
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    serve.add_argument("--host", help="address to listen on (OSTLER_HOST; default 127.0.0.1)")
    serve.add_argument("--port", help="port, 0 for any free one (OSTLER_PORT; default 8000)")
    serve.add_argument("--state", metavar="DIR", help="the state directory (OSTLER_STATE; default ~/.ostler)")
    serve.add_argument(
        "--containment",
        metavar="LEVEL",
        help="containment of agents: auto, tree, warden, cgroup, pidns (OSTLER_CONTAINMENT)",
    )
    serve.add_argument(
        "--no-warden",
        action="store_true",
        help="run without the parent process that restarts the server (OSTLER_NO_WARDEN)",
    )
    serve.add_argument(
        "--keys-file",
        metavar="PATH",
        help="file of session keys, master key and secrets as lines NAME=value (OSTLER_KEYS_FILE)",
    )
    serve.add_argument("--keys-fd", metavar="N", help="read the same from an open descriptor, such as a pipe")
    commands.add_commands(subparsers.add_parser)
    return parser


def parse(argv: list[str] | None) -> argparse.Namespace:
    """The arguments of a call. Exits with status 2 for wrong ones."""
    parser = build_parser()
    given = sys.argv[1:] if argv is None else argv
    words: list[str] = []
    if given[:1] == [COMPLETION] and "--" in given:
        # Set the words to be completed aside: argparse would remove a second `--` from them.
        given, words = given[: given.index("--")], given[given.index("--") + 1 :]
    arguments, more = parser.parse_known_args(given)
    if words:
        arguments.words = words
    if more:
        hidden = arguments.command == SECRETS
        parser.error(
            "values are not given as arguments"
            if hidden
            else suggest.unknown_options(parser, arguments, more)
        )
    return arguments
