"""Persistent delivery cursors of the webhook receivers, in a separate small SQLite file, so that they never
block the journal's writer; or in the database that several servers share."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

import structlog
import trio

from gateway.http.throttled_log import ThrottledLog
from supervisor.documents.port import DocumentsUnavailable

if TYPE_CHECKING:
    from supervisor.database.documents import PostgresDocuments

log = structlog.get_logger(__name__)

FILE: Final = "webhooks.sqlite3"

AGAIN_SECONDS: Final = 2.0
"""Before a cursor is asked for again that a database could not tell: without it, events would be skipped."""

_SCHEMA: Final = """
PRAGMA journal_mode = WAL;
PRAGMA synchronous = NORMAL;
CREATE TABLE IF NOT EXISTS cursors (
    conversation TEXT NOT NULL,
    receiver TEXT NOT NULL,
    seq INTEGER NOT NULL,
    open INTEGER NOT NULL,
    PRIMARY KEY (conversation, receiver)
) WITHOUT ROWID;
"""

Rows = list[tuple[Any, ...]]


class Table(Protocol):
    """Where the cursors are. Methods block; `run` raises sqlite3.Error and OSError."""

    name: str
    behind: tuple[str, Sequence[object]]
    """The statement for the conversations of which some receiver may be behind, and its values."""

    def run(self, statement: str, values: Sequence[object] = ()) -> Rows:
        """Run a statement, with question marks for values; what it returns."""

    def close(self) -> None:
        """Close what is open."""


class FileTable:
    """A SQLite file, opened at its first use."""

    name = "cursors"
    behind: tuple[str, Sequence[object]] = ("SELECT DISTINCT conversation FROM cursors WHERE open", ())

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def run(self, statement: str, values: Sequence[object] = ()) -> Rows:
        """As Table."""
        if self._connection is None:
            self._path.touch(mode=0o600)
            opened = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
            try:
                opened.executescript(_SCHEMA)
            except BaseException:
                opened.close()
                raise
            self._connection = opened
        return self._connection.execute(statement, values).fetchall()

    def close(self) -> None:
        """As Table."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


_OURS: Final = (
    "SELECT DISTINCT conversation FROM webhook_cursors JOIN conversations c ON c.id = conversation "
    "JOIN heads h ON h.key = c.key WHERE open AND (h.owner IS NULL OR h.owner = ? OR NOT EXISTS "
    "(SELECT 1 FROM servers s WHERE s.id = h.owner AND s.state IN ('alive', 'draining')))"
)


class SharedTable:
    """The table of a database. `server`: this server's number there: it resumes what it has, and what no
    living server has. It uses the connection of the documents, whose owner closes it."""

    name = "webhook_cursors"

    def __init__(self, documents: PostgresDocuments, server: int) -> None:
        self._documents = documents
        self.behind: tuple[str, Sequence[object]] = (_OURS, (server,))

    def run(self, statement: str, values: Sequence[object] = ()) -> Rows:
        """As Table. Raises DocumentsUnavailable."""
        said = statement.replace("?", "%s").encode()

        def work(connection: Any) -> Rows:
            cursor = connection.execute(said, values)
            return [] if cursor.description is None else list(cursor.fetchall())

        return self._documents.run(work)

    def close(self) -> None:
        """As Table."""


class Cursors:
    """The last delivered event of each conversation and receiver, and whether more may wait (`open`).

    Work is done in one thread at a time. If the table cannot be used, that is logged, and the cursors are
    lost at a restart; nothing else fails.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._limiter = trio.CapacityLimiter(1)
        self._complaint = ThrottledLog(log, "warning", "cannot keep how far webhooks are")

    async def _run(self, statement: str, *values: object) -> Rows:
        try:
            return await trio.to_thread.run_sync(self._table.run, statement, values, limiter=self._limiter)
        except (sqlite3.Error, OSError) as error:
            self._complaint.say(error=str(error))
            if isinstance(error, DocumentsUnavailable):
                raise
            return []

    async def get(self, conversation: str, receiver: str) -> int | None:
        """The last delivered sequence number; None where nothing is known. Waits for a database."""
        asked = f"SELECT seq FROM {self._table.name} WHERE conversation = ? AND receiver = ?"  # noqa: S608
        while True:
            try:
                rows = await self._run(asked, conversation, receiver)
            except DocumentsUnavailable:
                await trio.sleep(AGAIN_SECONDS)
            else:
                return int(rows[0][0]) if rows else None

    async def put(self, conversation: str, receiver: str, seq: int, *, behind: bool) -> None:
        """Store a receiver's cursor, and whether it may be behind."""
        said = (
            f"INSERT INTO {self._table.name} VALUES (?, ?, ?, ?) ON CONFLICT (conversation, receiver) "  # noqa: S608
            "DO UPDATE SET seq = excluded.seq, open = excluded.open"
        )
        with suppress(DocumentsUnavailable):
            await self._run(said, conversation, receiver, seq, behind)

    async def forget(self, conversation: str) -> None:
        """Remove a conversation."""
        said = f"DELETE FROM {self._table.name} WHERE conversation = ?"  # noqa: S608
        with suppress(DocumentsUnavailable):
            await self._run(said, conversation)

    async def behind(self) -> list[str]:
        """The conversations of which some receiver may be behind."""
        with suppress(DocumentsUnavailable):
            statement, values = self._table.behind
            return [row[0] for row in await self._run(statement, *values)]
        return []

    async def close(self) -> None:
        """Close the table. Shielded: the thread that writes ends first."""
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._table.close, limiter=self._limiter)
