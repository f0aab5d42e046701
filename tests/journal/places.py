"""The two stores, as tests open them: also from processes of their own."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

from supervisor.journal.journal import Journal, open_journal
from supervisor.journal.queries import Queries
from supervisor.journal.storage.queries import SqliteQueries

LIVE: Final = frozenset({"running", "waiting_for_confirmation"})
"""Statuses of conversations with work."""


class Place:
    """Where a journal is, for tests that open it more than once, and look into it."""

    kind: str

    @property
    def queries(self) -> type[Queries]:
        """The class of its queries."""
        raise NotImplementedError

    def open(self, *, keep_updates: bool = True) -> AbstractAsyncContextManager[Journal]:
        """Open it, as the one server that writes."""
        raise NotImplementedError

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        """Ask it, over a connection that is closed again."""
        raise NotImplementedError

    def arguments(self) -> list[str]:
        """What a process hands to `opened_as`."""
        raise NotImplementedError

    def count(self, table: str) -> int:
        """How many rows there are."""
        ((found,),) = self.query(f"SELECT count(*) FROM {table}")
        return int(found)


class SqlitePlace(Place):
    """A file."""

    kind = "sqlite"

    queries = SqliteQueries

    def __init__(self, path: Path) -> None:
        self.path = path

    def open(self, *, keep_updates: bool = True) -> AbstractAsyncContextManager[Journal]:
        return open_journal(self.path, keep_updates=keep_updates)

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        import sqlite3

        with closing(sqlite3.connect(self.path, isolation_level=None)) as connection:
            return connection.execute(statement).fetchall()

    def arguments(self) -> list[str]:
        return ["sqlite", str(self.path)]


class PostgresPlace(Place):
    """A database. Each opening is a new server, which takes all conversations over."""

    kind = "postgres"

    def __init__(self, database: Any) -> None:
        self.database = database
        self._names = itertools.count()

    @property
    def queries(self) -> type[Queries]:
        from supervisor.journal.postgres.queries import PostgresQueries

        return PostgresQueries

    def join(self) -> int:
        """A new server."""
        ((server,),) = self.query(
            "INSERT INTO servers (name, instance, address, version, ttl, expires) VALUES "
            f"('s{next(self._names)}-' || txid_current(), '', '', '', 15, now() + '1 hour') RETURNING id"
        )
        return int(server)

    def claim(self, server: int, *ids: str) -> None:
        """Give it these conversations, or all."""
        some = " OR ".join(f"id = '{each}'" for each in ids) or "true"
        self.query(
            f"UPDATE heads SET owner = {server}, generation = generation + 1 WHERE key IN "
            f"(SELECT key FROM conversations WHERE {some})"
        )

    def take_over(self) -> int:
        """A new server in place of all others."""
        self.query("UPDATE servers SET state = 'dead'")
        server = self.join()
        self.claim(server)
        return server

    @asynccontextmanager
    async def open(self, *, keep_updates: bool = True) -> AsyncIterator[Journal]:
        from supervisor.journal.postgres.opening import open_shared_journal

        async with open_shared_journal(
            self.database, self.take_over(), live=LIVE, keep_updates=keep_updates
        ) as journal:
            yield journal

    def query(self, statement: str) -> list[tuple[Any, ...]]:
        import psycopg

        with psycopg.connect(self.database.conninfo, autocommit=True) as connection:
            cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def arguments(self) -> list[str]:
        return ["postgres", self.database.conninfo]


def opened_as(arguments: Sequence[str]) -> AbstractAsyncContextManager[Journal]:
    """Open the journal that a test named so (`Place.arguments`)."""
    kind, where = arguments[:2]
    if kind == "sqlite":
        return open_journal(Path(where))
    from supervisor.database.address import Database

    return PostgresPlace(Database(where)).open()
