"""How a command and its arguments are added to the parser, and what several commands share.

The standard library alone: every `ostler --help` imports this module.
"""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Final, Protocol

from gateway.cli.suggest import REMOVING

Option = tuple[tuple[str, ...], dict[str, Any]]
"""What `add_argument` takes."""

SECRETS: Final = "secrets"
"""The command whose arguments are never repeated in messages: one may be a value."""

CLIENTS: Final = ("project", "claude-code", "claude-desktop", "cursor", "vscode")
"""Whose servers `ostler mcp import` reads; `project` is a `.mcp.json`."""

HELP_COLUMNS: Final = 78

EPILOG: Final = (
    "The command looks for the server at --url, then at OSTLER_URL, then in the state directory "
    "(OSTLER_STATE), then at OSTLER_HOST and OSTLER_PORT. It takes the session key from OSTLER_API_KEY, then "
    "from the server's own variables, then from OSTLER_KEYS_FILE. "
    "The first characters of an ID are enough. "
    "Exit status: 0 done, 1 failed, 2 usage error, 3 no server."
)

ALONE_EPILOG: Final = "Where no server answers, the command starts a temporary one on the state directory. "

DONE_EPILOG: Final = "Exit status: 0 done, 1 failed, 2 usage error."
"""The epilog of commands without a server."""


def option(spec: str, text: str, /, **settings: Any) -> Option:
    """An option or a positional argument, and its help. `spec` has its names, and then what its value is
    called, such as `-n --limit N`. An option whose value has no such name and no `choices` is a flag."""
    words = spec.split()
    names = [word for word in words if word.startswith("-")] or words[:1]
    if words[len(names) :]:
        settings["metavar"] = words[-1]
    elif names[0].startswith("-") and not settings.keys() & {"choices", "metavar"}:
        settings["action"] = "store_true"
    return tuple(names), {"help": text, **settings}


class TakesOptions(Protocol):
    """A parser, or a group of one."""

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:
        """Add an option."""


def give(parser: TakesOptions, *options: Option) -> None:
    """Add options to a parser or a group."""
    for names, settings in options:
        parser.add_argument(*names, **settings)


URL: Final = option("--url URL", "URL of the server (OSTLER_URL; default http://127.0.0.1:8000)")
STATE: Final = option("--state DIR", "the state directory (OSTLER_STATE; default ~/.ostler)")
ID: Final = option("id ID", "id of the conversation")
ONE: Final = option("id ID", "id of the conversation; not needed where only one is possible", nargs="?")

SHORT: Final = {"top": ("ps", "--watch"), "version": ("--version",)}
"""Words for commands with options."""

HELP: Final = "help"


class Commands:
    """Commands or actions of a parser, which are added one by one.

    `module` has the functions that run actions: `do_` and the name. None: each command names its own.
    `alone`: they need only the state directory, so where no server runs they start one for the time.
    """

    def __init__(
        self,
        parser: argparse.ArgumentParser,
        dest: str,
        module: str | None = None,
        parser_class: type[argparse.ArgumentParser] | None = None,
        *,
        alone: bool = False,
    ) -> None:
        self._module = module
        self._alone = alone
        self._subparsers = parser.add_subparsers(
            dest=dest, metavar=dest.upper(), required=True, parser_class=parser_class or type(parser)
        )

    def add(
        self,
        name: str,
        summary: str,
        examples: Sequence[str],
        *options: Option,
        run: str = "",
        epilog: str = EPILOG,
        remote: bool = True,
        alone: bool = False,
        json: str | None = "print JSON",
    ) -> argparse.ArgumentParser:
        """Add one, with its help.

        `run` is the function that runs it, `module:function` below this package. `remote`: it gets a server,
        so that the command has --url. `alone`: see `Commands`. `json`: the help of --json, None without that
        option.
        """
        alone = alone or self._alone
        parser = self._parser(name, summary, examples, (ALONE_EPILOG if alone else "") + epilog)
        parser.set_defaults(run=run or f"{self._module}:do_{name}", remote=remote, alone=alone)
        if alone:
            options = (*options, STATE)
        if json is not None:
            options = (option("--json", json), *options)
        give(parser, *((URL, *options) if remote else options))
        return parser

    def group(
        self,
        name: str,
        summary: str,
        examples: Sequence[str],
        module: str,
        *,
        epilog: str = EPILOG,
        parser_class: type[argparse.ArgumentParser] | None = None,
        alone: bool = False,
    ) -> Commands:
        """Add a command with actions. `parser_class`: for actions that read their arguments differently."""
        epilog = (ALONE_EPILOG if alone else "") + epilog
        parser = self._parser(name, summary, examples, epilog)
        return Commands(parser, "action", module, parser_class, alone=alone)

    def _parser(
        self, name: str, summary: str, examples: Sequence[str], epilog: str
    ) -> argparse.ArgumentParser:
        return self._subparsers.add_parser(
            name,
            aliases=[word for word in REMOVING if name in REMOVING and word != name],
            help=summary,
            description=textwrap.fill(f"{summary[0].upper()}{summary[1:]}.", HELP_COLUMNS),
            epilog=help_end(examples, epilog),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )


def help_end(examples: Sequence[str], epilog: str) -> str:
    """The text below the options."""
    shown = "".join(f"  {example}\n" for example in examples)
    return f"examples:\n{shown}\n{textwrap.fill(epilog, HELP_COLUMNS)}\n"


def expanded(given: list[str]) -> list[str]:
    """The words with those of SHORT written out; `help COMMAND` is `COMMAND --help`, and `settings list` and
    `show` are `settings get`."""
    if given[:1] == [HELP]:
        given = [*given[1:], "--help"]
    if given[:1] == ["settings"] and given[1:2] in (["list"], ["show"]):
        given = ["settings", "get", *given[2:]]
    return [*SHORT.get(given[0], given[:1]), *given[1:]] if given else given


def count(text: str) -> int:
    """The type of an argument that is a count, 0 included."""
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number")
    return int(text)


def seconds(least: float = 0.0, most: float = inf) -> Callable[[str], float]:
    """The type of an argument in seconds: above 0, and within these."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not (0 < value < inf and least <= value <= most):
            limit = f" up to {most:g}" if most < inf else ""
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds{limit}")
        return value

    return read
