"""Arguments that all commands share: the layout of help, the server, the id of a conversation."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Sequence
from typing import Final

Add = Callable[..., argparse.ArgumentParser]
"""`add_parser` of a parser's subparsers."""

SECRETS: Final = "secrets"
"""The command whose arguments are never repeated in messages: one may be a value."""

HELP_COLUMNS: Final = 78

EPILOG: Final = (
    "The command looks for the server at --url, then at OSTLER_URL, then in the state directory "
    "(OSTLER_STATE), then at OSTLER_HOST and OSTLER_PORT. It takes the session key from OSTLER_API_KEY, then "
    "from the server's own variables, then from OSTLER_KEYS_FILE. "
    "The first characters of an ID are enough. "
    "Exit status: 0 done, 1 failed, 2 usage error, 3 no server."
)

DONE_EPILOG: Final = "Exit status: 0 done, 1 failed, 2 usage error."
"""The epilog of commands without a server."""


def command(
    add: Add, name: str, summary: str, examples: Sequence[str], *, epilog: str = EPILOG, remote: bool = True
) -> argparse.ArgumentParser:
    """Add a command with its help. `remote`: it uses a server, so that it has --url."""
    parser = add(
        name,
        help=summary,
        description=textwrap.fill(f"{summary[0].upper()}{summary[1:]}.", HELP_COLUMNS),
        epilog=help_end(examples, epilog),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if remote:
        parser.add_argument("--url", help="URL of the server (OSTLER_URL; default http://127.0.0.1:8000)")
    return parser


def group(
    add: Add, name: str, summary: str, examples: Sequence[str], *, epilog: str = EPILOG
) -> argparse.ArgumentParser:
    """Add a command with actions; `actions_of` adds them."""
    return command(add, name, summary, examples, epilog=epilog, remote=False)


def actions_of(
    parser: argparse.ArgumentParser, parser_class: type[argparse.ArgumentParser] | None = None
) -> Add:
    """Return the function that adds an action to a command; the chosen one is `arguments.action`.

    `parser_class`: for actions that read their arguments differently.
    """
    kind = type(parser) if parser_class is None else parser_class
    add: Add = parser.add_subparsers(
        dest="action", metavar="ACTION", required=True, parser_class=kind
    ).add_parser
    return add


def json_option(parser: argparse.ArgumentParser, text: str = "print JSON") -> None:
    """`--json`."""
    parser.add_argument("--json", action="store_true", help=text)


def help_end(examples: Sequence[str], epilog: str) -> str:
    """The text below the options."""
    shown = "".join(f"  {example}\n" for example in examples)
    return f"examples:\n{shown}\n{textwrap.fill(epilog, HELP_COLUMNS)}\n"


def count(text: str) -> int:
    """The type of an argument that is a count, 0 included."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)
