"""A reading connection that is made again when it was lost."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, TypeVar

import psycopg
import trio

from supervisor.database.address import Database
from supervisor.database.connection import Connection
from supervisor.journal.postgres.dialling import dial

T = TypeVar("T")

NAME: Final = "ostler journal reader"

READ_SECONDS: Final = 30.0
"""The longest that one statement may take. The usual ones take milliseconds, and scans are cut into parts."""

CANCEL_SECONDS: Final = 2.0
"""Seconds to ask the database to end a statement; the read has been given up already."""


class Link:
    """One connection, used by one reader thread at a time; `interrupt` alone is called by the Trio thread."""

    def __init__(self, database: Database) -> None:
        """Connect. Raises psycopg.Error."""
        self._database = database
        self._interrupted = False
        self._connection: Connection | None = self._connect()

    def _connect(self) -> Connection:
        return dial(self._database, NAME, READ_SECONDS)

    def execute(self, statement: str, values: Any = ()) -> psycopg.Cursor[tuple[Any, ...]]:
        """Run a statement, over a new connection if there is none. Raises psycopg.Error."""
        if self._connection is None:
            self._connection = self._connect()
        if self._interrupted:
            raise psycopg.errors.QueryCanceled("interrupted")
        # From the first time on, not psycopg's sixth: each connection would plan each statement so often.
        return self._connection.execute(statement.encode(), values, prepare=True, binary=True)

    def run(self, query: Callable[[], T]) -> T:
        """Run a query; a second time where the connection turns out to be an old one that was lost."""
        old = self._connection is not None
        try:
            try:
                return query()
            except psycopg.OperationalError:
                if not old or self._interrupted or self._connection is None or not self._connection.closed:
                    raise
                self._connection = None
            return query()
        finally:
            # A request to end a statement may come late, and would end another one.
            if self._interrupted or (self._connection is not None and self._connection.closed):
                self.close()
            self._interrupted = False

    def interrupt(self) -> None:
        """End the statement that runs. Does not wait: another thread asks the database."""
        self._interrupted = True
        connection = self._connection
        if connection is not None:
            trio.lowlevel.start_thread_soon(
                lambda: connection.cancel_safe(timeout=CANCEL_SECONDS), lambda _: None, "journal-cancel"
            )

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()
