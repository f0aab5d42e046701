"""The terminal that a command draws on and reads from, and the line on it that shows activity.

It imports rich, so import it late.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn
from rich.text import Text
from rich.theme import Theme

from gateway.cli.text import cut, duration

THEME = Theme({"thought": "dim italic", "quiet": "dim", "good": "green", "bad": "red", "asking": "yellow"})

MEASURE_SHARE: Final = 20
"""Measuring a directory again waits this many times as long as it took: it must not slow the install down."""

MEASURE_SECONDS: Final = 0.5

MEGABYTE: Final = 1_000_000

STAGING: Final = ".staging-*"
"""Directories in which an agent is being installed (`supervisor.agents.install.install`)."""

TITLE_COLUMNS: Final = 60


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


def installed(done: int, total: int | None) -> str:
    """Bytes of an installation, in the unit of the catalogue's sizes: `120 MB of about 391 MB`."""
    return f"{done / MEGABYTE:.0f} MB" + (f" of about {total / MEGABYTE:.0f} MB" if total else "")


class Bytes(ProgressColumn):
    """The bytes so far, and the expected total."""

    def render(self, task: Task) -> Text:
        """`120 MB of about 391 MB`."""
        if not task.completed:
            return Text("")
        total = None if task.total is None else int(task.total)
        return Text(installed(int(task.completed), total), style="quiet")


class Since(ProgressColumn):
    """The time since the start."""

    def render(self, task: Task) -> Text:
        """`12s`, from the first whole seconds on."""
        return Text(duration(task.elapsed) if (task.elapsed or 0) >= 1 else "", style="quiet")


class Bar(BarColumn):
    """A bar if the total is known."""

    def render(self, task: Task) -> Any:  # either of two renderables
        """The bar, or nothing."""
        return Text("") if task.total is None else super().render(task)


class Waiting:
    """A status line below all others, until the next output. Nothing without a terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._progress: Progress | None = None
        self._shown: tuple[str, float] | None = None

    def show(self, text: str, *, done: int | None = None, total: int | None = None) -> None:
        """Show activity. `done` and `total` are bytes. The time counts from the first call with a text."""
        if not self._console.is_terminal:
            return
        text = cut(text, TITLE_COLUMNS)
        if self._shown is None or self._shown[0] != text:
            self._shown = (text, time.monotonic())
        if self._progress is None:
            self._progress = Progress(
                SpinnerColumn(), TextColumn("{task.description}"), Bar(), Bytes(), Since(),
                console=self._console, transient=True, redirect_stdout=False, redirect_stderr=False,
            )  # fmt: skip
            self._progress.add_task(text, total=None)
            self._progress.start()
        task = self._progress.tasks[0]
        task.start_time = self._progress.get_time() - (time.monotonic() - self._shown[1])
        task.total = total  # `update` takes None for no change, and the bar of other work would stay
        self._progress.update(task.id, description=text, completed=done or 0)

    def hide(self) -> None:
        """Hide the display, so that other output can be shown. The clock keeps running."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


class Installing:
    """The progress of an agent's installation: the bytes on disk so far."""

    def __init__(self, prefix: Path, key: str) -> None:
        self._directory = prefix / key
        self._found = 0
        self._next = 0.0

    def measured(self) -> int:
        """Bytes, as they were a moment ago. Looks at the disk now and then."""
        now = time.monotonic()
        if now >= self._next:
            self._found = sum(
                file_size for staging in self._directory.glob(STAGING) for file_size in sizes(staging)
            )
            taken = time.monotonic() - now
            self._next = time.monotonic() + max(MEASURE_SECONDS, taken * MEASURE_SHARE)
        return self._found


def sizes(directory: Path) -> Iterator[int]:
    """The size of each file below a directory, which may change meanwhile."""
    todo = [str(directory)]
    while todo:
        try:
            with os.scandir(todo.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        todo.append(entry.path)
                    else:
                        yield entry.stat(follow_symlinks=False).st_size
        except OSError:
            continue
