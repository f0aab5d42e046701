"""The documents of servers that share a database: rows of the table `documents`.

One connection for all of them, used by one thread at a time. The locks are PostgreSQL's advisory ones, which
belong to the connection: where it is lost, so are they, and a change that began before is refused.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Final, TypeVar

import attrs
import psycopg

from supervisor.database.address import Database
from supervisor.database.connection import Connection, connect
from supervisor.database.faults import Nature, nature, refusal
from supervisor.documents.port import Content, Document, DocumentsUnavailable, Release

T = TypeVar("T")

STATEMENT_SECONDS: Final = 5.0
"""Seconds for one statement: each reads or writes one row."""

TURN_SECONDS: Final = 15.0
"""Seconds to wait for another thread's use of the connection: to connect and two statements."""

PAUSE_SECONDS: Final = 1.0
"""Seconds after a connection that failed in which no other is tried: those who wait learn at once that there
is none."""

LOCKS: Final = 0x4F535444
"""The class of the advisory locks ("OSTD"); the object is the checksum of a name."""


class PostgresDocuments:
    """As Documents. It connects at the first use, and again after a lost connection. Any thread may use it.

    `name`: what PostgreSQL's administrator sees of the connection.
    """

    def __init__(self, database: Database, name: str = "ostler documents") -> None:
        self.database = database
        self._name = name
        self._connection: Connection | None = None
        self._turn = threading.Lock()
        self._sessions = 0
        """How many connections there have been: a lock of an earlier one is lost."""
        self._held: dict[str, int] = {}
        """The locks that this process holds, with their session: a session takes each as often as it asks."""
        self._refused: tuple[float, str] | None = None

    def document(self, name: str, *, by_programs: bool = False) -> Document:
        """As Documents."""
        return PostgresDocument(self, name)

    def close(self) -> None:
        """As Documents. A later use connects again."""
        with self._turn:
            self._drop()

    def run(self, work: Callable[[Connection], T], *, session: int | None = None) -> T:
        """Run a statement, and once more over a new connection where the first one is lost. `session`: the
        connection that must be the present one, else the statement is not run.

        Raises DocumentsUnavailable.
        """
        if not self._turn.acquire(timeout=TURN_SECONDS):
            raise DocumentsUnavailable(f"the database {self.database.shown} does not answer")
        try:
            connection, fresh = self._connected(session)
            try:
                return work(connection)
            except psycopg.Error as error:
                if connection.closed and not fresh and session is None:
                    return self._once_more(work)
                raise self._trouble(error) from error
        finally:
            self._turn.release()

    def _once_more(self, work: Callable[[Connection], T]) -> T:
        connection, _ = self._connected(None)
        try:
            return work(connection)
        except psycopg.Error as error:
            raise self._trouble(error) from error

    def _connected(self, session: int | None) -> tuple[Connection, bool]:
        """The connection, and whether it is new."""
        found = self._connection
        if session is not None and (found is None or found.closed or session != self._sessions):
            raise DocumentsUnavailable(
                f"the connection to the database {self.database.shown} was lost during a change; try again"
            )
        if found is not None and not found.closed:
            return found, False
        self._drop()
        if self._refused is not None and time.monotonic() < self._refused[0] + PAUSE_SECONDS:
            raise DocumentsUnavailable(self._refused[1])
        try:
            found = connect(self.database, self._name, statement_seconds=STATEMENT_SECONDS)
        except psycopg.Error as error:
            trouble = self._trouble(error)
            self._refused = time.monotonic(), str(trouble)
            raise trouble from None  # its text may repeat the address
        self._refused = None
        self._connection = found
        self._sessions += 1
        return found, True

    def _trouble(self, error: psycopg.Error) -> DocumentsUnavailable:
        if self._connection is not None and self._connection.closed:
            self._drop()
        why = refusal(error)
        if why is None and nature(error) is not Nature.PASSES:
            why = f"it refuses a document ({error.sqlstate or type(error).__name__})"
        return DocumentsUnavailable(
            f"the database {self.database.shown} cannot be used: {why or 'it does not answer'}"
        )

    def _drop(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None

    def try_lock(self, name: str) -> Release | None:
        """Try to lock a name among all servers and the threads of this one. Raises DocumentsUnavailable."""
        number = zlib.crc32(name.encode()) - 2**31

        def take(connection: Connection) -> int | None:
            if self._held.get(name) == self._sessions:
                return None
            row = connection.execute("SELECT pg_try_advisory_lock(%s, %s)", (LOCKS, number)).fetchone()
            if row is None or not row[0]:
                return None
            self._held[name] = self._sessions
            return self._sessions

        session = self.run(take)
        if session is None:
            return None

        def unlock(connection: Connection) -> None:
            del self._held[name]
            connection.execute("SELECT pg_advisory_unlock(%s, %s)", (LOCKS, number))

        def release() -> None:
            with suppress(DocumentsUnavailable):  # the lock ended with its connection
                self.run(unlock, session=session)

        return release

    def held(self, name: str) -> int | None:
        """The session in which this process has the lock of a name."""
        return self._held.get(name)


@attrs.frozen
class PostgresDocument:
    """As Document."""

    _documents: PostgresDocuments = attrs.field(repr=False)
    name: str
    shared: bool = attrs.field(default=True, init=False)

    @property
    def shown(self) -> str:
        """Its name, and the database."""
        return f"{self.name} in the database {self._documents.database.shown}"

    def exists(self) -> bool:
        """As Document."""
        return self.stamp() is not None

    def stamp(self) -> Hashable:
        """As Document: the revision."""
        row = self._row("SELECT revision FROM documents WHERE name = %s", (self.name,))
        return None if row is None else int(row[0])

    def read(self, most: int) -> Content | None:
        """As Document."""
        asked = "SELECT revision, substring(body FROM 1 FOR %s) FROM documents WHERE name = %s"
        row = self._row(asked, (most, self.name))
        return None if row is None else Content(bytes(row[1]), int(row[0]))

    def write(self, data: bytes) -> Hashable:
        """As Document. Raises DocumentsUnavailable, also where the caller's lock has been lost."""
        said = (
            "INSERT INTO documents (name, revision, body) VALUES (%s, 1, %s) ON CONFLICT (name) "
            "DO UPDATE SET revision = documents.revision + 1, body = excluded.body RETURNING revision"
        )
        row = self._row(said, (self.name, data), session=self._documents.held(self.name) or 0)
        assert row is not None
        return int(row[0])

    def create(self, data: bytes) -> bool:
        """As Document."""
        said = (
            "INSERT INTO documents (name, revision, body) VALUES (%s, 1, %s) ON CONFLICT (name) DO NOTHING "
            "RETURNING revision"
        )
        return self._row(said, (self.name, data)) is not None

    def try_lock(self, part: str = "") -> Release | None:
        """As Document."""
        return self._documents.try_lock(f"{self.name}.{part}" if part else self.name)

    def _row(
        self, statement: str, values: tuple[object, ...], *, session: int | None = None
    ) -> tuple[Any, ...] | None:
        def work(connection: Connection) -> tuple[Any, ...] | None:
            return connection.execute(statement.encode(), values, binary=True).fetchone()

        return self._documents.run(work, session=session)
