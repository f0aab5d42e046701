"""The terminal that a command draws on and reads from. It imports rich, so import it late."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import TextIO

from rich.console import Console
from rich.theme import Theme

THEME = Theme({"thought": "dim italic", "quiet": "dim", "good": "green", "bad": "red", "asking": "yellow"})


def console(stream: TextIO, env: Mapping[str, str] = os.environ) -> Console:
    """A console on a stream. It has colours and moves only on a terminal, and never with NO_COLOR.

    With NO_COLOR (https://no-color.org) or TERM=dumb it writes no escape sequence at all.
    """
    plain = not stream.isatty() or bool(env.get("NO_COLOR")) or env.get("TERM") in (None, "", "dumb")
    return Console(
        file=stream,
        force_terminal=not plain,
        color_system=None if plain else "auto",
        no_color=plain,
        highlight=False,
        markup=False,
        emoji=False,
        soft_wrap=True,
        theme=THEME,
    )


def asks() -> bool:
    """Whether the user can be asked: standard input is a terminal."""
    try:
        return sys.stdin.isatty()
    except (ValueError, AttributeError):  # it is closed, or was from the beginning
        return False
