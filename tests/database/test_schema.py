from __future__ import annotations

import threading

import psycopg
import pytest

from supervisor.database import schema
from supervisor.database.address import Database
from supervisor.database.connection import connect
from supervisor.database.schema import (
    MIGRATING,
    MIGRATIONS,
    ForeignDatabase,
    NewerDatabase,
    migrate,
    version,
)


def start(database: Database, failures: list[BaseException]) -> None:
    """What a server that starts does, in a thread of its own."""
    try:
        with connect(database, "test") as connection:
            migrate(connection)
    except BaseException as error:
        failures.append(error)


def test_servers_that_start_at_once_migrate_once(empty_database: Database) -> None:
    failures: list[BaseException] = []
    threads = [threading.Thread(target=start, args=(empty_database, failures)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    with connect(empty_database, "test") as connection:
        assert version(connection) == (len(MIGRATIONS), 1)


def test_a_failed_migration_leaves_the_version_before(empty_database: Database) -> None:
    with connect(empty_database, "test") as connection:
        migrate(connection)
        with pytest.raises(psycopg.errors.SyntaxError):
            migrate(connection, (*MIGRATIONS, "CREATE TABLE half (x int); NONSENSE"))
        assert version(connection)[0] == len(MIGRATIONS)
        assert connection.execute("SELECT to_regclass('half')").fetchone() == (None,)
        migrate(connection)  # and the lock is free


def test_a_newer_schema_is_used_as_long_as_it_allows_it(database: Database) -> None:
    newer = (*MIGRATIONS, "ALTER TABLE servers ADD COLUMN more text")
    with connect(database, "test") as connection:
        migrate(connection, newer)
        migrate(connection)
        migrate(connection, (*newer, "ALTER TABLE servers DROP COLUMN more"), len(newer) + 1)
        with pytest.raises(NewerDatabase, match="start the newer Ostler"):
            migrate(connection)


def test_a_newer_one_that_was_faster_is_noticed(empty_database: Database) -> None:
    newer = (*MIGRATIONS, "ALTER TABLE servers ADD COLUMN more text")
    failures: list[BaseException] = []
    with connect(empty_database, "faster") as connection:
        connection.execute("SELECT pg_advisory_lock(%s)", (MIGRATING,))
        thread = threading.Thread(target=start, args=(empty_database, failures))
        thread.start()
        waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND objid = %s"
        while connection.execute(waits, (MIGRATING,)).fetchone() == (0,):
            assert thread.is_alive()
        migrate(connection, newer, len(newer))
        connection.execute("SELECT pg_advisory_unlock(%s)", (MIGRATING,))
    thread.join()
    assert [type(each) for each in failures] == [NewerDatabase]


def test_a_migration_does_not_wait_long_for_a_reader(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All others would wait behind it."""
    monkeypatch.setattr(schema, "LOCK_SECONDS", 0.1)
    newer = (*MIGRATIONS, "ALTER TABLE servers ADD COLUMN more text")
    with connect(database, "reader") as reader, connect(database, "test") as connection:
        usual = connection.execute("SHOW lock_timeout").fetchone()
        with reader.transaction():
            reader.execute("SELECT count(*) FROM servers")
            with pytest.raises(psycopg.errors.LockNotAvailable):
                migrate(connection, newer)
        assert version(connection)[0] == len(MIGRATIONS)
        migrate(connection, newer)
        assert version(connection)[0] == len(newer)
        assert connection.execute("SHOW lock_timeout").fetchone() == usual


def test_the_database_of_another_program_is_left_alone(empty_database: Database) -> None:
    with connect(empty_database, "test") as connection:
        connection.execute("CREATE TABLE theirs (x int)")
        with pytest.raises(ForeignDatabase, match="name an empty one"):
            migrate(connection)
