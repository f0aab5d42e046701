"""Opens the journal in PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final

import psycopg

from supervisor.database.address import VARIABLE, Database
from supervisor.database.faults import first_line
from supervisor.journal.errors import JournalError, JournalUnavailable
from supervisor.journal.journal import Journal, opened
from supervisor.journal.port import Store
from supervisor.journal.postgres.faults import FAULTS
from supervisor.journal.postgres.queries import PostgresQueries
from supervisor.journal.postgres.store import PostgresStore
from supervisor.journal.readers import Readers
from supervisor.journal.trouble import Nature

ENCODING: Final = "UTF8"


def open_shared_journal(
    database: Database, server: int, *, live: Collection[str], keep_updates: bool = True
) -> AbstractAsyncContextManager[Journal]:
    """Open the journal in a database that has Ostler's schema, as this server: the `id` of its row.

    The server reads all conversations, and writes those that it has. `live`: statuses of conversations with
    work, which other servers find when this one is gone. `keep_updates`: whether the updates of new events
    are stored.

    The block owns the writer thread and the connections. Leaving it, also when cancelled, writes what is
    queued, stops the thread and closes the connections, within `CLOSE_TIMEOUT` + `READ_CLOSE_TIMEOUT`.

    Raises JournalUnavailable when the database is away, JournalError when it cannot be used; and JournalError
    on leaving when anything could not be written and the block itself did not raise.
    """
    return opened(partial(_open, database, server, live), keep_updates=keep_updates)


def _open(database: Database, server: int, live: Collection[str]) -> tuple[Store, Readers]:
    try:
        store = PostgresStore.open(database, server, live)
        try:
            _check_encoding(store, database)
            return store, Readers(partial(PostgresQueries, database), FAULTS)
        except BaseException:
            store.close()
            raise
    except psycopg.Error as error:
        if FAULTS.nature(error) is Nature.PASSES:
            raise JournalUnavailable(FAULTS.reason(error)) from error
        raise JournalError(f"cannot open the journal in {database.shown}: {first_line(error)}") from error


def _check_encoding(store: PostgresStore, database: Database) -> None:
    if store.encoding != ENCODING:
        raise JournalError(
            f"the database {database.shown} has the encoding {store.encoding}; make one with {ENCODING}, and "
            f"name it in {VARIABLE}"
        )
