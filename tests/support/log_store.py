"""What a log needs of a journal, in memory."""

from __future__ import annotations

from typing import Any

import attrs
import trio

from supervisor.journal.log import Log
from supervisor.journal.rows import Stored


class Store:
    """Stands for the writer and the readers: rows are durable when the test says so."""

    keeps_updates = True

    def __init__(self) -> None:
        self.queued: list[Any] = []
        self.rows: list[Stored] = []
        self.trouble = None

    def enqueue(self, append: Any) -> None:
        self.queued.append(append)

    def commit(self, log: Log) -> None:
        if self.queued:
            append = self.queued.pop(0)
            self.rows += append.rows
            log.settle(append.last_seq, append.ticket)

    async def run(self, query: Any, *, scans: bool) -> list[Stored]:
        await trio.lowlevel.checkpoint()
        rows: list[Stored] = query(self)
        return rows

    def read(
        self,
        _key: int,
        after: int,
        until: int,
        limit: int,
        *_: Any,
        updates: bool = False,
        **__: Any,
    ) -> list[Stored]:
        found = [row for row in self.rows if after < row.seq <= until][:limit]
        return found if updates else [attrs.evolve(row, updates=b"") for row in found]
