"""Connections of the journal."""

from __future__ import annotations

from typing import Final

from supervisor.database.address import Database
from supervisor.database.connection import Connection, connect
from supervisor.journal.postgres.values import adapt

BY_INDEX: Final = "SET enable_seqscan = off; SET enable_bitmapscan = off"
"""Every table is reached by an index, in its order. PostgreSQL's statistics are older than a conversation
that just grew: measured, it read 200,000 events and sorted them for a page of 100, 115 ms."""


def dial(database: Database, name: str, statement_seconds: float) -> Connection:
    """Connect, for statements that take at most so many seconds. Raises psycopg.Error."""
    connection = connect(database, name, statement_seconds=statement_seconds)
    try:
        adapt(connection)
        connection.execute(BY_INDEX)
    except BaseException:
        connection.close()
        raise
    return connection
