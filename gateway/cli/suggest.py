"""Suggestions for mistyped commands, options and names."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from typing import Any, Final, NoReturn

BAD_INPUT: Final = 2

LIKENESS: Final = 0.6
"""Least similarity of a suggestion, 0 to 1: permits a letter missing, doubled or exchanged, but no other
word."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?` if a similar word is known, else the empty string."""
    import difflib  # here, so that a command that is spelled well starts quickly

    found = difflib.get_close_matches(word, list(known), n=1, cutoff=LIKENESS)
    return f"; did you mean {found[0]}?" if found else ""


class Suggesting(argparse.ArgumentParser):
    """A parser that reports an error in one line, with a suggestion, and takes no shortened options: `--mode`
    is not `--model`."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **more})

    def error(self, message: str) -> NoReturn:
        """Exit with status 2."""
        self.exit(BAD_INPUT, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # Overridden since argparse has no other hook for the message about a wrong choice.
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        hint = did_you_mean(str(value), choices) or f" (choose from {', '.join(choices)})"
        raise argparse.ArgumentError(action, f"there is no {value!r}{hint}")


def unknown_options(parser: argparse.ArgumentParser, chosen: argparse.Namespace, more: Sequence[str]) -> str:
    """The message about unrecognized arguments; `parser` is the top-level one."""
    known = [option for each in chain(parser, chosen) for option in options_of(each)]
    first = next((word for word in more if word.startswith("-")), "")
    return f"unrecognized arguments: {' '.join(more)}{did_you_mean(first.split('=')[0], known)}"


def chain(parser: argparse.ArgumentParser, chosen: argparse.Namespace) -> list[argparse.ArgumentParser]:
    """The parser and those of the command and the action that were chosen."""
    found = [parser]
    while (below := subparsers_of(found[-1])) is not None:
        name = getattr(chosen, below.dest, None) if below.dest else None
        if not isinstance(name, str) or name not in below.choices:
            break
        found.append(below.choices[name])
    return found


def subparsers_of(
    parser: argparse.ArgumentParser,
) -> argparse._SubParsersAction[argparse.ArgumentParser] | None:
    """Where a parser has its commands; None when it has none."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return action
    return None


def options_of(parser: argparse.ArgumentParser) -> list[str]:
    """The spellings of a parser's options, in their order."""
    return [spelling for action in parser._actions for spelling in action.option_strings]
