"""Logging: one line per event on stderr. Never bodies, queries or keys.

A line that cannot be written is lost and counted; nothing else happens, since the full disk is often the disk
of the log.
"""

from __future__ import annotations

import io
import os
import sys
import threading
from typing import TextIO

import structlog


def configure() -> None:
    """Configure structlog for this process: colours only on a terminal, tracebacks without local
    variables."""
    lines = Lines(sys.stderr)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            ),
        ],
        logger_factory=lambda *_names: lines,
        cache_logger_on_first_use=True,
    )


class Lines:
    """Writes lines to a stream. A failed write is not an error. Thread-safe."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lost = 0
        self._torn = False  # the last line has no end
        self._lock = threading.Lock()

    def write(self, line: str) -> None:
        """Write a line, after the number of lost ones."""
        with self._lock:
            words = f"{line}\n"
            if self._lost:
                words = f"{self._lost} lines of the log were lost\n{words}"
            data = ("\n" * self._torn + words).encode("utf-8", "backslashreplace")
            written = _write(self._stream, data)
            if written == len(data):
                self._lost, self._torn = 0, False
            else:
                self._lost += 1
                self._torn = self._torn or written > 0

    # By these names structlog knows it.
    debug = info = msg = warning = error = critical = exception = fatal = failure = log = write


def say(line: str) -> None:
    """Write a line to standard output; it is no error if that is closed."""
    _write(sys.stdout, f"{line}\n".encode())


def _write(stream: TextIO, data: bytes) -> int:
    """Write without a buffer, and return the number of bytes written. A buffer that cannot be flushed at exit
    would make the exit status 120."""
    try:
        return os.write(stream.fileno(), data)
    except io.UnsupportedOperation:  # not a file, in a test
        stream.write(data.decode())
        return len(data)
    except (OSError, ValueError):  # ValueError: it is closed
        return 0
