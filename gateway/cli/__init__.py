"""The `ostler` command."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from gateway.cli import commands, suggest
from gateway.cli.arguments import help_end
from supervisor.version import __version__

EXAMPLES = (
    "ostler chat                                  talk with an agent",
    'ostler run "What is in this directory?"      one answer, for people and scripts',
    "ostler agents list                           which agents there are",
    "ostler doctor                                what is wrong on this machine",
)

BAD_INPUT = 2
FAILED = 1


class Parser(suggest.Suggesting):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        self.exit(BAD_INPUT, f"{self.prog}: {message} (see {self.prog} --help)\n")


def build_parser() -> Parser:
    """The command's arguments. Values are checked later, together with those of the environment."""
    parser = Parser(
        prog="ostler",
        description="Runs ACP coding agents behind a REST and WebSocket server.",
        epilog=help_end(EXAMPLES, "`ostler COMMAND --help` has the options and more examples."),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ostler {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    serve = subparsers.add_parser(
        "serve",
        help="run the server",
        description="Run the server.",
        epilog=help_end(
            ("ostler serve", "ostler serve --port 9000 --state ~/other"),
            "docs/operations.md has its variables.",
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    serve.add_argument("--host", help="address to listen on (OSTLER_HOST; default 127.0.0.1)")
    serve.add_argument("--port", help="port, 0 for any free one (OSTLER_PORT; default 8000)")
    serve.add_argument(
        "--state", metavar="DIR", help="where everything is kept (OSTLER_STATE; default ~/.ostler)"
    )
    serve.add_argument(
        "--containment",
        metavar="LEVEL",
        help="how agents are kept together: auto, tree, warden, cgroup, pidns (OSTLER_CONTAINMENT)",
    )
    serve.add_argument(
        "--no-warden",
        action="store_true",
        help="no parent process that restarts the server (OSTLER_NO_WARDEN)",
    )
    commands.add_commands(subparsers.add_parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status: 0 done, 1 failed, 2 bad input, 3 no server."""
    parser = build_parser()
    arguments, more = parser.parse_known_args(argv)
    if more:
        hidden = arguments.command == commands.SECRETS
        parser.error(
            "values are not given as arguments"
            if hidden
            else suggest.unknown_options(parser, arguments, more)
        )
    if arguments.command != "serve":
        return commands.run(arguments)
    # Imported here, so that --version and --help stay quick.
    from supervisor.agents.lifeline import Lifeline, WardenGone

    if argv is None and _wants_warden(arguments):
        _become_warden()
    try:
        lifeline = Lifeline.take(os.environ)
    except WardenGone as error:
        print(f"ostler: {error}", file=sys.stderr)
        return FAILED
    if argv is None:
        _hide_from_peers()

    import attrs

    from gateway.config import load_config
    from gateway.parsing import ConfigError
    from supervisor.agents.levels import LevelUnavailable, choose

    try:
        config = load_config(
            os.environ,
            host=arguments.host,
            port=arguments.port,
            state=arguments.state,
            containment=arguments.containment,
        )
        level = choose(config.containment, warden=lifeline is not None)
    except (ConfigError, LevelUnavailable) as error:
        print(f"ostler: {error}", file=sys.stderr)
        return BAD_INPUT

    from gateway.server import StartupError, run

    try:
        run(attrs.evolve(config, containment=level), lifeline)
    except StartupError as error:
        print(f"ostler: {error}", file=sys.stderr)
        return FAILED
    return 0


def _wants_warden(arguments: argparse.Namespace) -> bool:
    from supervisor.agents.lifeline import NO_WARDEN_VARIABLE, warden_possible
    from supervisor.agents.warden import VARIABLE

    if arguments.no_warden or os.environ.get(NO_WARDEN_VARIABLE) or VARIABLE in os.environ:
        return False
    containment = arguments.containment or os.environ.get("OSTLER_CONTAINMENT")
    return containment != "tree" and warden_possible()


def _hide_from_peers() -> None:
    """The keys are in this process's environment and memory, and agents are processes of the same user."""
    from supervisor.agents.prctl import hide_from_peers
    from supervisor.agents.warden import attachable

    if not attachable():
        hide_from_peers()


def _become_warden() -> None:
    """Go on as the warden of a server that runs this very command; returns only where that cannot be."""
    from supervisor.agents.lifeline import become_warden

    with contextlib.suppress(OSError):
        become_warden([sys.executable, *sys.orig_argv[1:]])
