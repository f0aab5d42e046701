"""Logging: one line per event on stderr, on a terminal only warnings and errors. Never bodies, queries, keys.

A line that cannot be written is lost and counted; nothing else happens, since the full disk is often the disk
of the log.
"""

from __future__ import annotations

import io
import json
import logging
import os
import shlex
import sys
import threading
from pathlib import Path
from typing import TextIO

import structlog

from gateway.configuration.address import DEFAULT_STATE
from gateway.configuration.config import LogForm


def configure(form: LogForm = "auto") -> None:
    """Configure structlog for this process: colours only on a terminal, tracebacks without local
    variables."""
    as_json = form == "json"
    terminal = sys.stderr.isatty()
    lines = Lines(sys.stderr, as_json=as_json)
    rendered: list[structlog.typing.Processor] = [
        structlog.dev.ConsoleRenderer(colors=terminal, exception_formatter=structlog.dev.plain_traceback)
    ]
    if as_json:
        rendered = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *rendered,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.WARNING if terminal and form == "auto" else logging.NOTSET
        ),
        logger_factory=lambda *_names: lines,
        cache_logger_on_first_use=True,
    )


def greet(url: str, state: Path) -> None:
    """Say that the server listens, and to a person what to do next."""
    say(f"Ostler is listening on {url}")
    if sys.stdout.isatty():
        named = "" if state == Path(DEFAULT_STATE).expanduser() else f" --state {shlex.quote(str(state))}"
        say(f"Talk with an agent, in another terminal: ostler chat{named}")
        say(f"The console is at {url}/, the description of the interface at {url}/docs.")
        say("Ctrl-C stops the server; conversations stay.")


def take_leave(*, interrupted: bool) -> None:
    """Tell a person that the server stops. `interrupted`: by Ctrl-C, which the terminal shows in its line."""
    if sys.stdout.isatty():
        say(f"{chr(10) * interrupted}Stopping ...")


class Lines:
    """Writes lines to a stream. A failed write is not an error. Thread-safe."""

    def __init__(self, stream: TextIO, *, as_json: bool = False) -> None:
        self._stream = stream
        self._as_json = as_json
        self._lost = 0
        self._torn = False  # the last line has no end
        self._lock = threading.Lock()

    def write(self, line: str) -> None:
        """Write a line, after the number of lost ones."""
        with self._lock:
            words = f"{line}\n"
            if self._lost:
                lost = f"{self._lost} lines of the log were lost"
                words = f"{json.dumps({'event': lost}) if self._as_json else lost}\n{words}"
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
    """Write a line to standard output; a closed one is not an error."""
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
