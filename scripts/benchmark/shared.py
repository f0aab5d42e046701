"""Ostler over PostgreSQL: one server, and three behind a client that asks them in turn."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from scripts.benchmark.client import BenchError, Client
from scripts.benchmark.servers import Ostler

DATABASE = "OSTLER_DATABASE"
FURTHER = ("second", "third")


class Postgres(Ostler):
    """A server over a PostgreSQL of its own, which has fsync on."""

    name = "postgres"

    def __init__(self, program: Path, directory: Path, settings: Mapping[str, str]) -> None:
        super().__init__(program, directory, settings)
        self._started = ExitStack()

    def environment(self) -> dict[str, str]:
        several = {
            "OSTLER_SERVER_NAME": self.directory.name,
            "OSTLER_MASTER_KEY": "one phrase for all servers",
        }
        return {**several, **super().environment()}

    def start(self) -> None:
        if DATABASE not in self._settings:
            # With psycopg, which only this needs.
            from tests.support.cluster import Missing, running

            try:
                found = self._started.enter_context(running(durable=True))
            except Missing as error:
                raise BenchError(str(error)) from None
            self._settings = {**self._settings, DATABASE: found.database().conninfo}
        super().start()

    def close(self) -> None:
        super().close()
        self._started.close()


class Three(Postgres):
    """Three servers over one PostgreSQL; this is the first of them."""

    name = "three"

    def __init__(self, program: Path, directory: Path, settings: Mapping[str, str]) -> None:
        super().__init__(program, directory, settings)
        self.others: list[Postgres] = []

    def start(self) -> None:
        super().start()
        self.others = [Postgres(self._program, self.directory / name, self._settings) for name in FURTHER]
        for each in self.others:
            each.start()
        self.client = RoundRobin([self.client, *(each.client for each in self.others)])

    @property
    def servers(self) -> Sequence[Postgres]:
        return (self, *self.others)

    def stop(self) -> None:
        for each in self.others:
            each.stop()
        super().stop()

    def kill(self) -> None:
        for each in self.others:
            each.kill()
        super().kill()

    def processes(self) -> list[int]:
        return [*super().processes(), *(pid for each in self.others for pid in each.processes())]


class RoundRobin(Client):
    """Sends each request to the next server, and opens each socket there: none is preferred."""

    def __init__(self, clients: Sequence[Client]) -> None:
        super().__init__(clients[0].port)
        self._clients = itertools.cycle(clients)
        self._ports = itertools.cycle([each.port for each in clients])

    @property
    def port(self) -> int:
        return next(self._ports)

    def send(self, request: bytes) -> bytes:
        return next(self._clients).send(request)
