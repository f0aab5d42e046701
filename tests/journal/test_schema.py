"""Files of older and newer versions."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from supervisor.journal.errors import JournalError, NewerSchema
from supervisor.journal.journal import open_journal
from supervisor.journal.storage import schema
from supervisor.journal.storage.store import Store

V1 = (Path(__file__).parent / "v1.sql").read_text()

RENAME_AND_FILL = """
ALTER TABLE conversations ADD COLUMN pinned INTEGER NOT NULL DEFAULT 0;
UPDATE conversations SET pinned = 1 WHERE id = 'old';
"""
NOTES = "CREATE TABLE notes (id TEXT PRIMARY KEY); INSERT INTO notes SELECT id FROM events;"


@pytest.fixture
def old(tmp_path):
    path = tmp_path / "journal.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(V1)
    return path


def look(path, query):
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def described(path):
    query = "SELECT type, name, tbl_name FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' ORDER BY name"
    return look(path, query), [
        look(path, f"SELECT name, type, \"notnull\", dflt_value, pk FROM pragma_table_info('{name}')")
        for (name,) in look(path, "SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY name")
    ]


async def test_a_file_of_version_1_opens_with_all_it_holds(old, make_row):
    async with open_journal(old) as journal:
        assert journal.epoch == 8
        log = await journal.log("old")
        assert [item.id for item in await log.read(-1, 10)] == ["e-old"]
        assert (await log.get_blob("b")).data == b"\x00"
        assert log.append([make_row()]) == 1
    assert look(old, "SELECT version FROM schema_version") == [(len(schema.MIGRATIONS),)]


async def test_an_old_file_ends_up_as_a_new_one_does(old, tmp_path):
    fresh = tmp_path / "fresh.sqlite"
    for path in (old, fresh):
        async with open_journal(path):
            pass
    assert described(old) == described(fresh)


def test_missing_versions_are_applied_in_order(old):
    newer = (*schema.MIGRATIONS[:1], RENAME_AND_FILL, NOTES)
    Store.open(old, newer).close()
    assert look(old, "SELECT version FROM schema_version") == [(3,)]
    assert look(old, "SELECT id, pinned, epoch FROM conversations") == [("old", 1, 7)]
    assert look(old, "SELECT id FROM notes") == [("e-old",)]
    # And only once.
    Store.open(old, newer).close()
    assert look(old, "SELECT epoch FROM server") == [(9,)]


def test_a_migration_that_fails_leaves_the_version_before_it(old):
    broken = "CREATE TABLE half (x); INSERT INTO nowhere VALUES (1);"
    with pytest.raises(JournalError, match="nowhere"):
        Store.open(old, (*schema.MIGRATIONS[:1], RENAME_AND_FILL, broken))
    assert look(old, "SELECT version FROM schema_version") == [(2,)]
    assert look(old, "SELECT name FROM sqlite_master WHERE name = 'half'") == []
    assert look(old, "SELECT epoch FROM server") == [(7,)]


async def test_a_newer_file_is_refused_and_untouched(old):
    with closing(sqlite3.connect(old)) as connection:
        connection.executescript("UPDATE schema_version SET version = 99; CREATE TABLE future (x);")
    before = old.read_bytes()
    with pytest.raises(NewerSchema) as caught:
        async with open_journal(old):
            pass
    assert (caught.value.found, caught.value.known) == (99, len(schema.MIGRATIONS))
    assert old.read_bytes() == before
    # Nothing is held either: the newer Ostler can have it.
    with closing(sqlite3.connect(old)) as connection:
        connection.execute("DELETE FROM future")


async def test_a_database_of_something_else_is_refused_and_untouched(tmp_path):
    path = tmp_path / "theirs.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript("CREATE TABLE cookies (x);")
    before = path.read_bytes()
    with pytest.raises(JournalError, match="not a journal of Ostler"):
        async with open_journal(path):
            pass
    assert path.read_bytes() == before


@pytest.mark.parametrize(("made", "commits"), [("", 1), (V1, len(schema.MIGRATIONS) - 1)], ids=["new", "old"])
def test_an_empty_file_is_made_in_one_transaction(made, commits):
    """Each waits for the disk; those of a file with content may be long, and stay done one by one."""
    said = []
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.executescript(made)
        connection.set_trace_callback(said.append)
        schema.migrate(connection)
        assert schema.version(connection) == len(schema.MIGRATIONS)
    assert sum(each.strip().startswith("COMMIT") for each in said) == commits
