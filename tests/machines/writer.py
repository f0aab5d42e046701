"""A server that does nothing but append events to the conversations that it has. A program for tests.

    python -m tests.machines.writer CONNINFO DIRECTORY NAME [warden|heedless]

It writes its PID to `pid` in its directory, and to `acknowledged` a line for each event of which the database
has said that it is stored: conversation, number, id. It never writes a number twice on purpose; `violations`
has what the database says when it does. When it loses its lease, it kills itself; a heedless one goes on
until the fence refuses it.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psycopg
import trio

from supervisor.agents.containment.lifeline import become_warden
from supervisor.database.address import Database
from supervisor.database.connection import Connection, connect
from supervisor.machines.machines import open_machines

TTL = 0.5
MOST_EVENTS = 5

APPEND = """
WITH fence AS (
    UPDATE heads SET last_seq = v.last
    FROM unnest(%(keys)s::bigint[], %(generations)s::bigint[], %(firsts)s::bigint[], %(lasts)s::bigint[])
        AS v (key, generation, first, last)
    WHERE heads.key = v.key AND owner = %(owner)s AND heads.generation = v.generation
        AND last_seq = v.first - 1
    RETURNING heads.key
), stored AS (
    INSERT INTO events (conversation, seq, id, kind, source, timestamp, body)
    SELECT v.key, v.seq, v.id, '', '', '', '' FROM fence
    JOIN unnest(%(event_keys)s::bigint[], %(seqs)s::bigint[], %(ids)s::text[]) AS v (key, seq, id)
        ON v.key = fence.key
)
SELECT key FROM fence
"""


class Writer:
    """Appends to what it has, one statement for all of it, as the journal does."""

    def __init__(self, database: Database, directory: Path, server: int) -> None:
        self.connection: Connection = connect(database, "writer", statement_seconds=10)
        self.server = server
        self.heads: dict[int, tuple[int, int]] = {}
        """Generation and last number, by the key of the conversation."""
        self.acknowledged = (directory / "acknowledged").open("a", buffering=1)
        self.violations = directory / "violations"
        self.written = 0

    def begin(self, identifiers: Sequence[str]) -> None:
        """Append to these as well."""
        rows = self.connection.execute(
            "SELECT key, generation, last_seq FROM heads JOIN conversations USING (key) "
            "WHERE id = ANY(%s) AND owner = %s",
            (list(identifiers), self.server),
        ).fetchall()
        self.heads |= {key: (generation, last) for key, generation, last in rows}

    def append(self) -> bool:
        """Append some events to each. False if the lease is lost."""
        events: list[tuple[int, int, str]] = []
        lasts = {}
        for key, (_, last) in self.heads.items():
            lasts[key] = last + random.randint(1, MOST_EVENTS)
            for seq in range(last + 1, lasts[key] + 1):
                self.written += 1
                events.append((key, seq, f"{self.server}-{self.written}"))
        keys = list(self.heads)
        values = {
            "owner": self.server,
            "keys": keys,
            "generations": [self.heads[key][0] for key in keys],
            "firsts": [self.heads[key][1] + 1 for key in keys],
            "lasts": [lasts[key] for key in keys],
            "event_keys": [key for key, _, _ in events],
            "seqs": [seq for _, seq, _ in events],
            "ids": [each for _, _, each in events],
        }
        try:
            stored = {key for (key,) in self.connection.execute(APPEND, values).fetchall()}
        except psycopg.errors.UniqueViolation as error:
            self.violations.write_text(str(error))
            return False
        except psycopg.Error:
            return False  # whether it is stored is not known: it is not acknowledged
        self.acknowledged.write(
            "".join(f"{key} {seq} {each}\n" for key, seq, each in events if key in stored)
        )
        self.heads = {key: (self.heads[key][0], lasts[key]) for key in stored}
        return len(stored) == len(keys)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def serve(
    database: Database,
    directory: Path,
    name: str,
    on_lease: Callable[[float], None],
    on_lost: Callable[[], None],
) -> None:
    async with open_machines(
        database,
        state=directory,
        name=name,
        address="",
        labels={},
        ttl=TTL,
        version="1",
        on_lease=on_lease,
        on_lost=on_lost,
    ) as machines:
        writer = Writer(database, directory, machines.server)
        begun: list[str] = []

        async def claimed(found: Sequence[tuple[str, object]]) -> None:
            begun.extend(each for each, _ in found)

        async def write() -> None:
            while True:
                taken, begun[:] = begun[:], []
                if taken:
                    await trio.to_thread.run_sync(writer.begin, taken)
                if writer.heads and not await trio.to_thread.run_sync(writer.append):
                    die()
                await trio.sleep(0.002)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            nursery.start_soon(machines.run, claimed, lambda: (1 << 30, len(writer.heads)))


def main() -> None:
    conninfo, place, name, *mode = sys.argv[1:]
    directory = Path(place)
    lifeline = become_warden(restarts=1000) if "warden" in mode else None
    (directory / "pid").write_text(str(os.getpid()))
    while True:
        try:
            trio.run(
                serve,
                Database(conninfo),
                directory,
                name,
                lifeline.lease if lifeline is not None else lambda until: None,
                (lambda: None) if "heedless" in mode else die,
            )
        except psycopg.OperationalError:
            time.sleep(0.1)  # the database is away


if __name__ == "__main__":
    main()
