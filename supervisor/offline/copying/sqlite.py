"""A state directory as an end of a copy."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from supervisor.documents.files import FileDocuments
from supervisor.documents.port import Document
from supervisor.documents.shared_files import UnusableError, locked
from supervisor.journal.errors import JournalError
from supervisor.journal.storage.schema import MIGRATIONS, migrate, version
from supervisor.journal.storage.store import PAGE_BYTES, lock_file
from supervisor.offline.copying.ends import CURSORS, DOCUMENTS, RECORD, CannotCopy, Row, Table
from supervisor.state_directory import StateRefused, make_private

JOURNAL: Final = "journal.sqlite3"
WEBHOOKS: Final = "webhooks.sqlite3"

UNDER_WAY: Final = ".copying"
"""Ends the journal's name until all of it is there, so that no server uses a part."""

BY_PROGRAMS: Final = frozenset({"mcp.json", "mcp-logins.json"})
"""Documents that commands change, too: their links stay links."""

MOST_BYTES: Final = 64 * 1024 * 1024
"""Of a document: as much as the largest, that of secrets, may have."""

_CURSORS: Final = """
CREATE TABLE cursors (conversation TEXT NOT NULL, receiver TEXT NOT NULL, seq INTEGER NOT NULL,
    open INTEGER NOT NULL, PRIMARY KEY (conversation, receiver)) WITHOUT ROWID
"""


class Directory:
    """A state directory, which no server uses while this is open. Raises CannotCopy."""

    def __init__(self, state: Path, *, target: bool) -> None:
        self._state = state
        self._documents = FileDocuments(state)
        self._journal = state / JOURNAL
        self._part = state / f"{JOURNAL}{UNDER_WAY}"
        self._connection: sqlite3.Connection | None = None
        with _reported(state):
            if target:
                make_private(state)
            elif not self._journal.exists():
                raise CannotCopy(f"there is no journal in {state}; name a state directory or a database")
            self._lock = lock_file(self._journal)
        try:
            if not target:
                with _reported(state):
                    self._open()
        except BaseException:
            self.close()
            raise

    def _open(self) -> None:
        self._connection = _opened(self._journal)
        if version(self._connection) != len(MIGRATIONS):
            raise CannotCopy(f"the journal in {self._state} is older; start its server once, and end it")

    @property
    def identity(self) -> str:
        """As Source."""
        return f"{self._state.resolve()} {self._journal.stat().st_ino}"

    def begin(self, source: str) -> None:
        """As Target."""
        with _reported(self._state):
            if self._journal.exists():
                raise _not_empty(self._state)
            begun = self._part.exists()
            if not begun and any(self._document(name).exists() for name in DOCUMENTS):
                raise _not_empty(self._state)
            self._part.touch(mode=0o600)
            connection = self._connection = _opened(self._part, new=True)
            migrate(connection)
            connection.execute("CREATE TABLE IF NOT EXISTS copying (source TEXT NOT NULL)")
            row = connection.execute("SELECT source FROM copying").fetchone()
            if row is None:
                connection.execute("INSERT INTO copying VALUES (?)", (source,))
            elif row[0] != source:
                raise CannotCopy(f"{self._state} has a part of a copy from elsewhere; empty it first")

    def conversations(self, after: int, most: int) -> list[tuple[int, Row]]:
        """As Source."""
        asked = f"SELECT key, {', '.join(RECORD)} FROM conversations WHERE key > ? ORDER BY key LIMIT ?"  # noqa: S608
        with _reported(self._state):
            return [(key, tuple(row)) for key, *row in self._opened().execute(asked, (after, most))]

    def rows(self, table: Table, key: int, after: Row | None = None) -> Iterator[Row]:
        """As Source."""
        order = ", ".join(table.order)
        behind = "" if after is None else f" AND ({order}) > ({', '.join('?' * len(table.order))})"
        asked = (
            f"SELECT {', '.join(table.columns)} FROM {table.name} "  # noqa: S608
            f"WHERE conversation = ?{behind} ORDER BY {order}"
        )
        with _reported(self._state):
            yield from self._opened().execute(asked, (key, *(after or ())))

    def last_conversation(self) -> int:
        """As Target."""
        with _reported(self._state):
            row = self._opened().execute("SELECT coalesce(max(key), 0) FROM conversations").fetchone()
            return int(row[0])

    def last(self, table: Table, key: int) -> Row | None:
        """As Target."""
        order = ", ".join(table.order)
        down = ", ".join(f"{each} DESC" for each in table.order)
        asked = f"SELECT {order} FROM {table.name} WHERE conversation = ? ORDER BY {down} LIMIT 1"  # noqa: S608
        with _reported(self._state):
            row: Row | None = self._opened().execute(asked, (key,)).fetchone()
            return row

    def insert(self, table: Table, key: int, rows: Sequence[Row]) -> None:
        """As Target."""
        places = ", ".join("?" * (1 + len(table.columns)))
        said = f"INSERT INTO {table.name} (conversation, {', '.join(table.columns)}) VALUES ({places})"  # noqa: S608
        with _reported(self._state), _transaction(self._opened()) as connection:
            connection.executemany(said, [(key, *row) for row in rows])

    def insert_conversation(self, key: int, record: Row, last_seq: int) -> None:
        """As Target."""
        places = ", ".join("?" * (1 + len(RECORD)))
        said = f"INSERT INTO conversations (key, {', '.join(RECORD)}, epoch) VALUES ({places}, 0)"  # noqa: S608
        with _reported(self._state):
            self._opened().execute(said, (key, *record))

    def document(self, name: str) -> bytes | None:
        """As Source."""
        with _reported(self._state):
            found = self._document(name).read(MOST_BYTES + 1)
            if found is not None and len(found.data) > MOST_BYTES:
                raise CannotCopy(f"{self._state / name} has more than {MOST_BYTES} bytes")
            return None if found is None else found.data

    def replace_document(self, name: str, data: bytes) -> None:
        """As Target."""
        document = self._document(name)
        with _reported(self._state), locked(document.try_lock):
            document.write(data)

    def _document(self, name: str) -> Document:
        return self._documents.document(name, by_programs=name in BY_PROGRAMS)

    def cursors(self) -> Iterator[Row]:
        """As Source."""
        path = self._state / WEBHOOKS
        if not path.exists():
            return
        asked = f"SELECT {', '.join(CURSORS)} FROM cursors ORDER BY conversation, receiver"  # noqa: S608
        with _reported(self._state):
            connection = _opened(path)
            try:
                for conversation, receiver, seq, more in connection.execute(asked):
                    yield conversation, receiver, seq, bool(more)
            finally:
                connection.close()

    def replace_cursors(self, rows: Iterable[Row]) -> None:
        """As Target."""
        path = self._state / WEBHOOKS
        with _reported(self._state):
            path.unlink(missing_ok=True)
            path.touch(mode=0o600)
            connection = _opened(path, new=True)
            try:
                with _transaction(connection):
                    connection.execute(_CURSORS)
                    connection.executemany("INSERT INTO cursors VALUES (?, ?, ?, ?)", rows)
            finally:
                connection.close()

    def end(self) -> None:
        """As Target."""
        with _reported(self._state):
            connection = self._opened()
            connection.execute("DROP TABLE copying")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            connection.close()
            self._connection = None
            for path in (self._part, self._state):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
                if path == self._part:
                    self._part.replace(self._journal)

    def close(self) -> None:
        """As Source."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        os.close(self._lock)

    def _opened(self) -> sqlite3.Connection:
        assert self._connection is not None
        return self._connection


def _opened(path: Path, *, new: bool = False) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        if new:
            connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = NORMAL")
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield connection
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


@contextmanager
def _reported(state: Path) -> Iterator[None]:
    """Raise CannotCopy for what is wrong with a directory."""
    try:
        yield
    except (sqlite3.Error, OSError, UnusableError) as error:
        raise CannotCopy(f"{state}: {getattr(error, 'strerror', None) or error}") from error
    except (JournalError, StateRefused) as error:
        raise CannotCopy(str(error)) from error


def _not_empty(state: Path) -> CannotCopy:
    return CannotCopy(f"{state} is not empty; name another directory, or move its files away")
