"""Persistent delivery cursors of the webhook receivers, in a separate small SQLite file, so that they never
block the journal's writer."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import structlog
import trio

from gateway.http.throttled_log import ThrottledLog

log = structlog.get_logger(__name__)

T = TypeVar("T")

FILE: Final = "webhooks.sqlite3"

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


class Cursors:
    """The last delivered event of each conversation and receiver, and whether more may wait (`open`).

    Work is done in one thread at a time. If the file cannot be used, that is logged, and the cursors are lost
    at a restart; nothing else fails.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._limiter = trio.CapacityLimiter(1)
        self._complaint = ThrottledLog(log, "warning", "cannot keep how far webhooks are")

    async def _run(self, work: Callable[[sqlite3.Connection], T], otherwise: T) -> T:
        def job() -> T:
            if self._connection is None:
                self._path.touch(mode=0o600)
                opened = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
                try:
                    opened.executescript(_SCHEMA)
                except BaseException:
                    opened.close()
                    raise
                self._connection = opened
            return work(self._connection)

        try:
            return await trio.to_thread.run_sync(job, limiter=self._limiter)
        except (sqlite3.Error, OSError) as error:
            self._complaint.say(error=str(error))
            return otherwise

    async def get(self, conversation: str, receiver: str) -> int | None:
        """The last delivered sequence number; None where nothing is known."""
        asked = "SELECT seq FROM cursors WHERE conversation = ? AND receiver = ?"
        row = await self._run(lambda c: c.execute(asked, (conversation, receiver)).fetchone(), None)
        return None if row is None else int(row[0])

    async def put(self, conversation: str, receiver: str, seq: int, *, behind: bool) -> None:
        """Store a receiver's cursor, and whether it may be behind."""
        said = "INSERT OR REPLACE INTO cursors VALUES (?, ?, ?, ?)"
        await self._run(lambda c: c.execute(said, (conversation, receiver, seq, int(behind))), None)

    async def forget(self, conversation: str) -> None:
        """Remove a conversation."""
        said = "DELETE FROM cursors WHERE conversation = ?"
        await self._run(lambda c: c.execute(said, (conversation,)), None)

    async def behind(self) -> list[str]:
        """The conversations of which some receiver may be behind."""
        asked = "SELECT DISTINCT conversation FROM cursors WHERE open = 1"
        none: list[tuple[str]] = []
        return [row[0] for row in await self._run(lambda c: c.execute(asked).fetchall(), none)]

    async def close(self) -> None:
        """Close the file. Shielded: the thread that writes ends first."""
        with trio.CancelScope(shield=True):
            if self._connection is not None:
                await self._run(lambda c: c.close(), None)
                self._connection = None
