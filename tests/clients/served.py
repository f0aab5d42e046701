"""A real Ostler for a whole module of tests, and what a scripted agent needs to run with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import trio

from tests.support.server import ServerProcess


@contextmanager
def served(directory: Path, environment: Mapping[str, str] | None = None) -> Iterator[ServerProcess]:
    """A started server for tests that are not asynchronous; stopped in order at the end."""
    server = ServerProcess(directory, environment)
    try:
        trio.run(server.start)
        yield server
        trio.run(server.stop)
    finally:
        server.clean_up()
