"""Records a terminal as SVG: a real server, `ostler chat` on a pseudo-terminal, and somebody who types.

The picture is the last screen. Each of its lines appears at the time at which it was there; where an SVG does
not move, all of them are there from the beginning.
"""

from __future__ import annotations

import argparse
import io
import itertools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pyte.screens import Char
from rich.console import Console
from rich.style import Style
from rich.terminal_theme import MONOKAI
from rich.text import Text

from tests.support.terminal import CTRL_D, Terminal

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "first-conversation.svg"
OSTLER = Path(sysconfig.get_path("scripts")) / "ostler"
WORKSPACE = Path(tempfile.gettempdir()) / "ostler-first"
COLUMNS, ROWS = 96, 60

LONGEST_PAUSE_S = 1.0  # of the recording; waits are no fun to watch
KEY_S = 0.04

INDENT = Style(dim=True)
"""Makes a run of its own of spaces: at the beginning of one, an SVG drops them."""

COLOURS = {"brown": "yellow"}  # pyte's names that Rich has others for


class Recording:
    """What was on the screen when."""

    def __init__(self, terminal: Terminal) -> None:
        self.terminal = terminal
        self.shots: list[tuple[float, list[str]]] = []
        self._clock = 0.0
        self._last = time.monotonic()

    def look(self) -> None:
        now = time.monotonic()
        self._clock += min(now - self._last, LONGEST_PAUSE_S)
        self._last = now
        self.shots.append((self._clock, list(self.terminal.screen.display)))

    def until(self, holds: Callable[[str], bool], seconds: float = 60) -> None:
        until = time.monotonic() + seconds
        while not holds(self.terminal.text):
            if time.monotonic() > until:
                sys.exit(f"the recording does not go on:\n{self.terminal.text}")
            self.terminal.read(0.05)
            self.look()

    def type(self, text: str) -> None:
        for key in text:
            self.terminal.type(key)
            until = time.monotonic() + KEY_S
            while time.monotonic() < until:
                self.terminal.read(KEY_S / 4)
            self.look()

    def since(self) -> list[float]:
        """When each line of the last screen came to be what it is, in seconds."""
        last = self.shots[-1][1]
        found = []
        for row, line in enumerate(last):
            moment = 0.0
            for clock, lines in reversed(self.shots):
                if lines[row] != line:
                    break
                moment = clock
            found.append(moment)
        return found


def prompt(text: str) -> bool:
    return text.endswith("\n>")


def converse(recording: Recording) -> None:
    recording.until(prompt)
    recording.type("Hello! Please write a file.\r")
    recording.until(lambda text: "Allow it?" in text)
    recording.type("y\r")
    recording.until(prompt)
    recording.type("And now slowly, so that I can interrupt you.\r")
    recording.until(
        lambda text: text.count("You said: ") == 2 and "demo agent" in text.rpartition("You said")[2]
    )
    recording.type("\x03")
    recording.until(lambda text: "interrupted" in text and prompt(text))
    recording.type("/exit\r")
    recording.until(lambda text: "go on: ostler chat --resume" in text)


def style_of(cell: Char) -> Style:
    colour = None if cell.fg == "default" else COLOURS.get(cell.fg, cell.fg)
    if colour is not None and re.fullmatch("[0-9a-f]{6}", colour):
        colour = f"#{colour}"
    if cell.italics and colour is None:
        colour = "bright_black"  # dimmed, which a pyte cell does not say
    return Style(color=colour, bold=cell.bold, italic=cell.italics, reverse=cell.reverse)


def drawn(terminal: Terminal) -> tuple[Text, int]:
    """The screen with its colours, and how many lines of it are used."""
    screen = terminal.screen
    used = max(row for row, line in enumerate(screen.display) if line.strip()) + 1
    text = Text()
    for row in range(used):
        cells = [screen.buffer[row][column] for column in range(screen.columns)]
        line = "".join(cell.data for cell in cells).rstrip()
        indent = len(line) - len(line.lstrip())
        text.append(" " * indent, INDENT)
        for style, run in itertools.groupby(cells[indent:], style_of):
            text.append("".join(cell.data for cell in run), style)
        text.append("\n")
    return text, used


def svg(recording: Recording, title: str) -> str:
    text, used = drawn(recording.terminal)
    console = Console(record=True, width=COLUMNS, height=used, file=io.StringIO(), force_terminal=True)
    console.print(text, end="")
    picture = console.export_svg(title=title, theme=MONOKAI, unique_id="ostler")
    since = recording.since()

    def timed(match: re.Match[str]) -> str:
        return f'{match[0]} style="animation: come 1ms {since[int(match[1])]:.2f}s backwards"'

    picture = re.sub(r'clip-path="url\(#ostler-line-(\d+)\)"', timed, picture)
    # The reader's own font will do; nothing is fetched for a picture.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.S)
    return picture.replace("<style>", "<style>\n    @keyframes come { from { visibility: hidden } }", 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=TARGET)
    output = parser.parse_args().output
    with tempfile.TemporaryDirectory(prefix="ostler-record-") as directory:
        shutil.rmtree(WORKSPACE, ignore_errors=True)
        WORKSPACE.mkdir()
        env = {"PATH": os.environ["PATH"], "HOME": directory, "OSTLER_PORT": "0"}
        server = subprocess.Popen(
            [OSTLER, "serve", "--port", "0"],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert server.stdout is not None
            env["OSTLER_URL"] = server.stdout.readline().split()[-1]
            with Terminal([str(OSTLER), "chat"], env, WORKSPACE, COLUMNS, ROWS) as terminal:
                recording = Recording(terminal)
                converse(recording)
                terminal.type(CTRL_D)
                terminal.end()
                recording.look()
                output.write_text(svg(recording, "scripts/ostler chat"))
        finally:
            server.terminate()
            server.wait()
            shutil.rmtree(WORKSPACE, ignore_errors=True)
    print(output)


if __name__ == "__main__":
    main()
