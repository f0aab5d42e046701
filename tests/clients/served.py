"""A real Ostler for a whole module of tests, which can be killed and started again.

With OSTLER_TEST_SERVERS it is so many servers over one PostgreSQL, behind a proxy that gives each request to
another one: the tests are the same.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import attrs
import trio

from tests.support.server import ServerProcess

SERVERS = int(os.environ.get("OSTLER_TEST_SERVERS", "0"))


@attrs.define
class Served:
    """Started servers, one as a rule; `url` stays, whatever happens to the processes."""

    places: list[tuple[Path, Mapping[str, str] | None]]
    processes: list[ServerProcess]
    url: str = ""

    def kill(self) -> None:
        """SIGKILL to the servers alone, as an accident would have it."""
        for process in self.processes:
            process.signal(signal.SIGKILL)
            trio.run(process.wait)

    def start(self) -> None:
        """Others at the same addresses, with the same state."""
        ports = [urlsplit(process.url).port for process in self.processes]
        self.processes = [
            ServerProcess(*place, ("--port", str(port)))
            for place, port in zip(self.places, ports, strict=True)
        ]
        for process in self.processes:
            trio.run(process.start)


@contextmanager
def served(directory: Path, environment: Mapping[str, str] | None = None) -> Iterator[Served]:
    """A started server for tests that are not asynchronous; stopped in order at the end."""
    with ExitStack() as stack:
        places = [(directory, environment)]
        if SERVERS:
            places = stack.enter_context(_several(directory, environment or {}))
        server = Served(places, [_process(directory, *place) for place in places])
        try:
            for process in server.processes:
                trio.run(process.start)
            urls = [process.url for process in server.processes]
            server.url = stack.enter_context(_front(urls)) if SERVERS else urls[0]
            yield server
            for process in server.processes:
                trio.run(process.stop)
        finally:
            for process in server.processes:
                process.clean_up()


def _process(directory: Path, *given: Any) -> ServerProcess:
    """A server whose home is below that directory: several have the same one, as on machines with network
    homes."""
    process = ServerProcess(*given)
    process.home = directory / "home"
    return process


@contextmanager
def _several(
    directory: Path, environment: Mapping[str, str]
) -> Iterator[list[tuple[Path, Mapping[str, str] | None]]]:
    """Directories and variables of several servers over one database."""
    from tests.support.postgres import cluster

    with cluster() as base:
        shared = {
            **environment,
            "OSTLER_DATABASE": base.database().conninfo,
            "OSTLER_MASTER_KEY": "one phrase for all servers",
            "OSTLER_KEYRING": "off",
        }
        places: list[tuple[Path, Mapping[str, str] | None]] = []
        for number in range(SERVERS):
            place = directory / f"server{number}"
            place.mkdir()
            places.append((place, {**shared, "OSTLER_SERVER_NAME": place.name}))
        yield places


@contextmanager
def _front(urls: list[str]) -> Iterator[str]:
    from tests.machines.front import front

    with front(urls) as url:
        yield url
