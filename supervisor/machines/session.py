"""The connection for what is asked now and then: a statement at a time, in a thread."""

from __future__ import annotations

import select
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, TypeVar

import psycopg
import trio

from supervisor.database.address import Database
from supervisor.database.connection import Connection, connect

T = TypeVar("T")

STATEMENT_SECONDS: Final = 5.0
"""Seconds that one of these statements may take: thousands of times the usual."""


class Session:
    """Runs work over one connection, which it opens at the first use, and again after it was lost."""

    def __init__(self, database: Database, name: str) -> None:
        self._database = database
        self._name = name
        self._connection: Connection | None = None
        self._limiter = trio.CapacityLimiter(1)

    async def run(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a thread, and return its result. Work that is under way is not cancelled.

        Raises psycopg.Error; whether the database has stored the work is not known then.
        """
        return await trio.to_thread.run_sync(partial(self._run, work), limiter=self._limiter)

    async def aclose(self) -> None:
        """Close the connection. Nothing may run meanwhile."""
        await trio.to_thread.run_sync(self._close, limiter=self._limiter)

    def _run(self, work: Callable[[Connection], T]) -> T:
        if self._connection is not None and _ended(self._connection):
            self._close()
        if self._connection is None:
            self._connection = connect(self._database, self._name, statement_seconds=STATEMENT_SECONDS)
        try:
            return work(self._connection)
        except psycopg.Error:
            if self._connection.broken:
                self._close()
            raise

    def _close(self) -> None:
        if self._connection is not None:
            with suppress(psycopg.Error):
                self._connection.close()
            self._connection = None


def _ended(connection: Connection) -> bool:
    """Whether the database has ended an idle connection, as far as is known here: only then has it said
    something. Costs no exchange."""
    if connection.closed:
        return True
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))
