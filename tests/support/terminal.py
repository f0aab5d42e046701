"""A terminal of our own, in which a command runs as it does under a person's hands."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyte

PATIENCE_S = 40.0
CTRL_C = "\x03"
CTRL_D = "\x04"
UP = "\x1b[A"
SHIFT_TAB = "\x1b[Z"


class Terminal:
    """A process on a pseudo-terminal that is its controlling one; `raw` is all that it wrote."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], cwd: Path, columns: int = 100, rows: int = 40
    ) -> None:
        self.raw = b""
        self.screen = pyte.HistoryScreen(columns, rows, history=10_000, ratio=1)
        self._stream = pyte.ByteStream(self.screen)
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={"TERM": "xterm-256color", **env},
            cwd=cwd,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        os.close(self._ours)

    @property
    def text(self) -> str:
        """What is on the screen now, and what was scrolled out of it."""
        gone = ["".join(line[x].data for x in range(self.screen.columns)) for line in self.screen.history.top]
        return "\n".join(line.rstrip() for line in [*gone, *self.screen.display]).rstrip()

    def type(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def read(self, seconds: float) -> bool:
        """Take what it wrote within that time; whether there was anything."""
        readable, _, _ = select.select([self._ours], [], [], seconds)
        if not readable:
            return False
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # it has ended
            return False
        self.raw += data
        self._stream.feed(data)
        if b"\x1b[6n" in data:  # it asks where the cursor is
            self.type(f"\x1b[{self.screen.cursor.y + 1};{self.screen.cursor.x + 1}R")
        return bool(data)

    def wait_for(self, wanted: str | Callable[[str], bool], timeout: float = PATIENCE_S) -> str:
        """Read until the text is on the screen, or the condition on it holds."""
        until = time.monotonic() + timeout
        holds = wanted if callable(wanted) else lambda text: wanted in text
        while not holds(self.text):
            assert time.monotonic() < until, f"no {wanted!r} on the screen:\n{self.text}"
            if not self.read(0.1) and self.process.poll() is not None:
                while self.read(0.1):
                    pass
                assert holds(self.text), (
                    f"it ended ({self.process.returncode}) without {wanted!r}:\n{self.text}"
                )
        return self.text

    def end(self, timeout: float = PATIENCE_S) -> int:
        """Its exit status, once it has ended by itself."""
        until = time.monotonic() + timeout
        while self.process.poll() is None:
            assert time.monotonic() < until, f"it does not end:\n{self.text}"
            self.read(0.05)
        while self.read(0.05):
            pass
        return self.process.returncode
