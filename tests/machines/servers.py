"""Servers and conversations as rows, and servers that have joined, for tests."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

import trio

from supervisor.database.address import Database
from supervisor.database.connection import Connection, connect
from supervisor.machines.machines import Machines, open_machines
from supervisor.machines.membership import Joined, Profile, join

TTL: Final = 0.6
LIVE: Final = frozenset({"running", "waiting_for_confirmation"})
WAIT_S: Final = 20.0  # a busy machine; everything here takes a fraction of a second


@contextmanager
def connected(database: Database) -> Iterator[Connection]:
    connection = connect(database, "test")
    try:
        yield connection
    finally:
        connection.close()


def profile(name: str, instance: str | None = None, ttl: float = 15.0, only: str | None = None) -> Profile:
    return Profile(
        name=name,
        instance=instance or f"instance of {name}",
        address=f"http://{name}:8000",
        version="1",
        labels={"zone": "a"},
        ttl=ttl,
        only_conversation=only,
    )


def joined(connection: Connection, name: str, instance: str | None = None, ttl: float = 15.0) -> int:
    found = join(connection, profile(name, instance, ttl))
    assert isinstance(found, Joined), found
    return found.server


def conversation(
    connection: Connection, identifier: str, status: str = "running", owner: int | None = None
) -> None:
    connection.execute(
        "WITH made AS (INSERT INTO conversations (id, record, status, created_at, updated_at, epoch) "
        "VALUES (%s, '', %s, '', '', 0) RETURNING key) "
        "INSERT INTO heads (key, owner, generation, last_seq, live) SELECT key, %s, 0, 0, %s FROM made",
        (identifier, status, owner, status in LIVE),
    )


def head(connection: Connection, identifier: str) -> tuple[int | None, int]:
    """Owner and generation."""
    row = connection.execute(
        "SELECT owner, generation FROM heads JOIN conversations USING (key) WHERE id = %s", (identifier,)
    ).fetchone()
    assert row is not None
    return row[0], row[1]


def shift(connection: Connection, seconds: float, name: str | None = None) -> None:
    """Let so many seconds pass for the servers, or one of them."""
    connection.execute(
        "UPDATE servers SET expires = expires - make_interval(secs => %s), "
        "since = since - make_interval(secs => %s) WHERE name = coalesce(%s, name)",
        (seconds, seconds, name),
    )


def state(connection: Connection, server: int) -> str:
    row = connection.execute("SELECT state FROM servers WHERE id = %s", (server,)).fetchone()
    assert row is not None
    return str(row[0])


@asynccontextmanager
async def opened(database: Database, path: Path, name: str, **others: Any) -> AsyncIterator[Machines]:
    """A server that has joined; its state directory is named after it."""
    (path / name).mkdir(exist_ok=True)
    settings: dict[str, Any] = {
        "state": path / name,
        "name": name,
        "address": f"http://{name}:8000",
        "labels": {},
        "ttl": TTL,
        "version": "1",
        "on_lease": lambda until: None,
        "on_lost": lambda: None,
    }
    async with open_machines(database, **(settings | others)) as machines:
        yield machines


class Running:
    """A server whose `run` runs. `claimed`: what it was given, in order, with the times."""

    def __init__(self, machines: Machines) -> None:
        self.machines = machines
        self.claimed: list[tuple[str, Any]] = []
        self.times: list[float] = []

    async def take(self, claimed: Any) -> None:
        self.claimed += claimed
        self.times.append(time.monotonic())

    @property
    def ids(self) -> list[str]:
        return sorted(each for each, _ in self.claimed)


@asynccontextmanager
async def running(database: Database, path: Path, name: str, **others: Any) -> AsyncIterator[Running]:
    async with opened(database, path, name, **others) as machines, trio.open_nursery() as nursery:
        found = Running(machines)
        nursery.start_soon(machines.run, found.take, lambda: (1 << 30, len(found.claimed)))
        yield found
        nursery.cancel_scope.cancel()


async def until(condition: Callable[[], bool]) -> None:
    with trio.fail_after(WAIT_S):
        while not condition():
            await trio.sleep(0.01)
