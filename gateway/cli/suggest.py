"""Suggestions for mistyped commands, options and names."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

BAD_INPUT: Final = 2

LIKENESS: Final = 0.6
"""Least similarity of a suggestion, 0 to 1: permits a letter missing, doubled or exchanged, but no other
word."""


REMOVING: Final = ("delete", "remove", "rm", "unset")
"""Words for one action: a command that knows one of them knows them all."""

SAME: Final = (("set", "add"), ("get", "show", "list"), ("list", "ls", "show"), ("agents", "agent"))
"""Words of which a command may know another one."""

UNSUGGESTED: Final = frozenset(
    {*REMOVING, "disable", "logout", "restart", "rotate", "stop", "--force", "--yes"}
)
"""What ends, removes or allows something is no guess at another word."""

MEANT: Final[Mapping[str, str]] = {
    **dict.fromkeys(
        REMOVING,
        "`ostler conversations`, `ostler mcp`, `ostler secrets` and `ostler settings` have that action",
    ),
    **dict.fromkeys(
        ("list", "ls"),
        "there are `list` of `ostler agents`, `conversations`, `mcp` and `secrets`",
    ),
    "show": "there are `ostler conversations show ID` and `ostler settings get`",
    "get": "there are `ostler settings get` and `ostler mcp get`",
    "set": "there are `ostler secrets set` and `ostler settings set`",
    "add": "there is `ostler mcp add`",
    "kill": "`ostler stop ID` ends an agent",
    "login": "agents take keys from `ostler secrets set` (`ostler agents list` shows which); "
    "`ostler mcp login` is for MCP servers",
    "logout": "`ostler mcp logout` is for MCP servers",
    "install": "there is `ostler agents install`",
    "uninstall": "an installed agent is a directory below `agents` in the state directory; delete that",
    "start": "`ostler serve` starts a server, `ostler chat` and `ostler run` start an agent",
    "resume": "there are `ostler chat --resume ID` and `ostler run --resume ID`",
    "continue": "there are `ostler chat --continue` and `ostler run --continue`",
    "config": "there are `ostler settings` and the variables in docs/configuration.md",
}
"""What to say of words that are commands elsewhere."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean X?` if a similar word is known, else the empty string; nothing of UNSUGGESTED."""
    import difflib  # here, so that a command that is spelled well starts quickly

    bare = {each.lstrip("-"): each for each in known if each not in UNSUGGESTED}
    found = difflib.get_close_matches(word.lstrip("-"), bare, n=1, cutoff=LIKENESS)
    return f"; did you mean {bare[found[0]]}?" if found else ""


def instead(word: str, known: Sequence[str]) -> str:
    """What to say of an unknown command: another word for it, what it is elsewhere, a similar one, or all."""
    for words in SAME:
        if word in words and (same := [each for each in words if each in known]):
            return f"; did you mean {same[0]}?"
    if word in MEANT:
        return f"; {MEANT[word]}"
    return _similar_or_all(word, main_names(known))


def _similar_or_all(word: str, known: Sequence[str]) -> str:
    return did_you_mean(word, known) or f" (choose from {', '.join(known)})"


def main_names(known: Sequence[str]) -> list[str]:
    """Those of a command's names that its help lists: of the words for removing the first."""
    removing = [each for each in known if each in REMOVING]
    return [each for each in known if each not in removing[1:]]


class Suggesting(argparse.ArgumentParser):
    """A parser that reports an error in one line, with a suggestion, and takes no shortened options: `--mode`
    is not `--model`."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **{"allow_abbrev": False, **more})

    def error(self, message: str, see: str | None = None) -> NoReturn:
        """Exit with status 2. `see`: the command whose help says more."""
        # Late: a command that is spelled well does not need it.
        from gateway.cli.text import folded

        line = f"{self.prog}: {message} (see {see or self.prog} --help)"
        self.exit(BAD_INPUT, f"{folded(line, sys.stderr)}\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        # Overridden since argparse has no other hook for the message about a wrong choice.
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        is_command = isinstance(action, argparse._SubParsersAction)
        hint = instead(str(value), choices) if is_command else _similar_or_all(str(value), choices)
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
