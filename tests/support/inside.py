"""`ostler` inside the test's own process: all that a command does, without the start of an interpreter."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from gateway.cli import main

TIMEOUT_S = 90.0


def run_inside(
    arguments: tuple[str, ...], environment: Mapping[str, str], cwd: Path | None = None, given: str = ""
) -> subprocess.CompletedProcess[str]:
    """What `subprocess.run` would give back: with this environment and nothing else, and this standard input.

    Its streams are files, so that they have descriptors. Lines of the log do not come to its standard error
    (see `conftest.py`). Only for the main thread, and where no Trio runs. A command that a signal ends, that
    hides its keys, or that lives on a terminal is tested as a process.
    """
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        files = [Path(directory, name) for name in ("in", "out", "err")]
        files[0].write_text(given)
        streams = [stack.enter_context(path.open("r" if path is files[0] else "a")) for path in files]
        try:
            with _as_process(environment, cwd, streams), _bounded(arguments):
                status = main(arguments)
        except SystemExit as end:
            # What the interpreter makes of it.
            status = end.code if isinstance(end.code, int) else int(end.code is not None)
            if isinstance(end.code, str):
                streams[2].write(f"{end.code}\n")
        for stream in streams[1:]:
            stream.flush()
        return subprocess.CompletedProcess(arguments, status, files[1].read_text(), files[2].read_text())


@contextlib.contextmanager
def _as_process(environment: Mapping[str, str], cwd: Path | None, streams: list[TextIO]) -> Iterator[None]:
    """This process's surroundings are the command's meanwhile."""
    before = dict(os.environ), (sys.stdin, sys.stdout, sys.stderr), os.getcwd()
    os.environ.clear()
    os.environ.update(environment)
    sys.stdin, sys.stdout, sys.stderr = streams
    if cwd is not None:
        os.chdir(cwd)
    try:
        yield
    finally:
        os.chdir(before[2])
        sys.stdin, sys.stdout, sys.stderr = before[1]
        os.environ.clear()
        os.environ.update(before[0])


@contextlib.contextmanager
def _bounded(arguments: tuple[str, ...]) -> Iterator[None]:
    def ended(*_: Any) -> None:
        raise subprocess.TimeoutExpired(arguments, TIMEOUT_S)

    before = signal.signal(signal.SIGALRM, ended)
    signal.setitimer(signal.ITIMER_REAL, TIMEOUT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
