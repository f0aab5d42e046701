"""Questions in the terminal, which go away when an answer is no longer needed."""

from __future__ import annotations

import os
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, Literal

import trio
from rich.console import Console
from rich.text import Text

Answer = Literal["yes", "no", "always"]

ANSWERS: Final[dict[str, Answer]] = {
    "y": "yes",
    "yes": "yes",
    "n": "no",
    "no": "no",
    "a": "always",
    "always": "always",
}

LINE_BYTES: Final = 4096
"""What a terminal holds of a line that is being typed."""


@contextmanager
def unseen_typing() -> Iterator[None]:
    """Suppress the echo of typed characters during the block; they stay in the input for the next read."""
    try:
        stdin = sys.stdin.fileno()
        before = termios.tcgetattr(stdin)
    except (termios.error, ValueError, OSError, AttributeError):  # no terminal
        yield
        return
    _set_typing(stdin, seen=False)
    try:
        yield
    finally:
        if _in_front(stdin):
            with suppress(termios.error):
                termios.tcsetattr(stdin, termios.TCSADRAIN, before)


def _in_front(terminal: int) -> bool:
    """Whether this process is in the foreground: a background process that changes the terminal is
    stopped."""
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False


def _set_typing(stdin: int, *, seen: bool) -> None:
    """Set line mode with echo; or raw keys without echo, so that Ctrl-D and Enter reach the next reader,
    too."""
    if not _in_front(stdin):
        return
    flags = termios.ECHO | termios.ICANON
    with suppress(termios.error):
        mode = termios.tcgetattr(stdin)
        mode[3] = mode[3] | flags if seen else mode[3] & ~flags
        termios.tcsetattr(stdin, termios.TCSADRAIN, mode)


class Question:
    """Whether something may be done. `show` it; it stays open until it is answered or closed.

    What was typed before it is thrown away: it was not an answer to it.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stdin = sys.stdin.fileno()
        with suppress(termios.error):
            termios.tcflush(self._stdin, termios.TCIFLUSH)
        _set_typing(self._stdin, seen=True)

    async def answer(self) -> Answer:
        """Wait for the answer; the end of the input is a no. Where the wait is cancelled, it stays open."""
        while True:
            await trio.lowlevel.wait_readable(self._stdin)
            typed = os.read(self._stdin, LINE_BYTES)
            if not typed:
                self.close()
                return "no"
            answer = ANSWERS.get(typed.decode(errors="replace").strip().lower())
            if answer is not None:
                _set_typing(self._stdin, seen=False)
                return answer
            self.show()

    def close(self) -> None:
        """End the line, without an answer."""
        self._console.print()
        _set_typing(self._stdin, seen=False)

    def show(self) -> None:
        """Write it, and stay on its line. After an interrupt it may be on the screen."""
        with self._console.capture() as shown:
            self._console.print(
                Text("  Allow it? [y]es, [n]o, [a]lways in this run: ", style="asking"), end=""
            )
        # The console itself would write it a second time if Ctrl-C comes at the end of the first.
        self._console.file.write(shown.get())
        self._console.file.flush()
