"""Prints the answer of the server, once or repeatedly (`--watch`)."""

from __future__ import annotations

import json
import shutil
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from typing import Any, Final

from gateway.cli.client import Server
from gateway.cli.failures import Unreachable
from gateway.cli.text import folded, one_line, table, terminal_width

CLEAR_SCREEN: Final = "\x1b[2J"
HOME: Final = "\x1b[H"
CLEAR_LINE: Final = "\x1b[K"
CLEAR_BELOW: Final = "\x1b[J"


def present(server: Server, path: str, arguments: Namespace, lines: Callable[[Any], list[str]]) -> None:
    """Print the answer of a path: as JSON for programs, else as `lines` formats it. With `watch`, repeatedly.

    With `watch`, waits for a server that is unreachable for a while. Raises Failure.
    """
    answer = server.get(path)
    if arguments.watch is None:
        print_json(answer) if arguments.json else print("\n".join(lines(answer)))
        return
    screen = sys.stdout.isatty() and not arguments.json
    complaint = ""
    if screen:
        print(CLEAR_SCREEN, end="")
    while True:
        if arguments.json:
            print(json.dumps(answer), flush=True)
        else:
            _draw(lines(answer) if answer is not None else [complaint], screen)
        time.sleep(arguments.watch)
        try:
            answer = server.get(path)
        except Unreachable as error:
            complaint = f"{error}; waiting for the server"
            answer = None


def print_json(answer: Any) -> None:
    """For programs; with line breaks, since people look at it, too."""
    print(json.dumps(answer, indent=2, ensure_ascii=False), flush=True)


def print_table(header: Sequence[str], rows: Sequence[Sequence[str]], dropped: Sequence[str] = ()) -> None:
    """A table as wide as the terminal; columns in `dropped` go where that is narrow."""
    print("\n".join(table(header, rows, terminal_width(), dropped=dropped)))


def warn(text: str) -> None:
    """One line on standard error."""
    print(folded(f"ostler: {one_line(text)}", sys.stderr), file=sys.stderr)


def _draw(lines: Sequence[str], screen: bool) -> None:
    if not screen:
        print("\n".join(lines), end="\n\n", flush=True)
        return
    shown = lines[: shutil.get_terminal_size().lines - 1]
    text = "".join(f"{line}{CLEAR_LINE}\n" for line in shown)
    print(f"{HOME}{text}{CLEAR_BELOW}", end="", flush=True)
