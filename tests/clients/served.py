"""A real Ostler for a whole module of tests, which can be killed and started again."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import attrs
import trio

from tests.support.server import ServerProcess


@attrs.define
class Served:
    """A started server; `url` stays, whatever happens to the process."""

    directory: Path
    environment: Mapping[str, str] | None
    process: ServerProcess

    @property
    def url(self) -> str:
        return self.process.url

    def kill(self) -> None:
        """SIGKILL to the server alone, as an accident would have it."""
        self.process.signal(signal.SIGKILL)
        trio.run(self.process.wait)

    def start(self) -> None:
        """Another one at the same address, with the same state."""
        port = urlsplit(self.url).port
        self.process = ServerProcess(self.directory, self.environment, ("--port", str(port)))
        trio.run(self.process.start)


@contextmanager
def served(directory: Path, environment: Mapping[str, str] | None = None) -> Iterator[Served]:
    """A started server for tests that are not asynchronous; stopped in order at the end."""
    server = Served(directory, environment, ServerProcess(directory, environment))
    try:
        trio.run(server.process.start)
        yield server
        trio.run(server.process.stop)
    finally:
        server.process.clean_up()
