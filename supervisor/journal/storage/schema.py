"""The schema of the journal file, and its migrations.

A file carries its version in the table `schema_version`. Migrations only go forward, each in a separate
transaction, so that a server killed in between leaves a file of some whole version. A released script is
never edited: a change is a new script at the end.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from supervisor.journal.errors import JournalError, NewerSchema

# `conversations.key` is AUTOINCREMENT: the key of a deleted conversation is never given to another one.
# Events are in the order of arrival in a table with row ids: measured, a table clustered by (conversation,
# seq) takes 1 kB rows at less than half the rate, since they then split full pages.
_VERSION_1 = """
CREATE TABLE server (epoch INTEGER NOT NULL);
INSERT INTO server (epoch) VALUES (0);

CREATE TABLE conversations (
    key INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    record BLOB NOT NULL,
    status TEXT NOT NULL,
    title TEXT,
    created_at TEXT NOT NULL,
    updated_at TEXT NOT NULL,
    parent_id TEXT,
    epoch INTEGER NOT NULL,
    lease_owner TEXT,
    lease_generation INTEGER NOT NULL DEFAULT 0,
    lease_expires TEXT
);
CREATE INDEX conversations_by_creation ON conversations (created_at, key);
CREATE INDEX conversations_by_update ON conversations (updated_at, key);

CREATE TABLE events (
    conversation INTEGER NOT NULL,
    seq INTEGER NOT NULL,
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    source TEXT NOT NULL,
    timestamp TEXT NOT NULL,
    body BLOB NOT NULL
);
CREATE UNIQUE INDEX events_by_seq ON events (conversation, seq);
CREATE UNIQUE INDEX events_by_id ON events (conversation, id);

CREATE TABLE blobs (
    conversation INTEGER NOT NULL,
    id TEXT NOT NULL,
    media_type TEXT NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (conversation, id)
);
"""

# The index costs 1.5 us a row in the writer's thread, besides the 5.5 that a row of 600 bytes takes without
# it; counting a kind among a million events takes 20 ms with it and half a second without. `deletions` has
# the keys of deleted conversations whose events are still being removed.
_VERSION_2 = """
CREATE INDEX events_by_kind ON events (conversation, kind, seq);
CREATE TABLE deletions (conversation INTEGER PRIMARY KEY);
"""

BLOCK_EVENTS = 4096
"""Events in a block, whose kinds are counted when it is whole. Measured, counting a kind beyond the last
whole block takes up to 0.15 ms. The file stores counts for blocks of this size: another one needs a
migration."""

# For each kind, the number of events up to the end of each whole block that has one: so counting a kind takes
# the same time for any number of events. The last event of each block writes them once; a number that every
# event changes would cost every commit. Migrating a file with a million events to this version takes 1.5 s.
_VERSION_3 = f"""
CREATE TABLE kind_counts (
    conversation INTEGER NOT NULL,
    kind TEXT NOT NULL,
    block INTEGER NOT NULL,
    events INTEGER NOT NULL,
    PRIMARY KEY (conversation, kind, block)
) WITHOUT ROWID;
INSERT INTO kind_counts
    SELECT conversation, kind, seq / {BLOCK_EVENTS},
        sum(count(*)) OVER (PARTITION BY conversation, kind ORDER BY seq / {BLOCK_EVENTS})
    FROM events JOIN (SELECT conversation AS log, max(seq) + 1 AS size FROM events GROUP BY conversation)
    ON conversation = log AND seq / {BLOCK_EVENTS} < size / {BLOCK_EVENTS}
    GROUP BY conversation, kind, seq / {BLOCK_EVENTS};
"""  # noqa: S608  # a number of our own

# A start looks for the conversations that were running: without the index it reads all of them, 1.6 ms for
# each thousand and status. A write that changes the status costs 6 us more, and the index's page in the
# write-ahead log; other writes do not touch it (`Store.update_record`).
_VERSION_4 = """
CREATE INDEX conversations_by_status ON conversations (status, created_at, key);
"""

# The updates of an agent that led to an event; NULL for most. A column and not a table of its own: so a
# batch is still one statement, and nothing more is to be indexed, copied or removed. It is the last column,
# which reads of the others do not touch.
_VERSION_5 = """
ALTER TABLE events ADD COLUMN updates BLOB;
"""

MIGRATIONS: tuple[str, ...] = (_VERSION_1, _VERSION_2, _VERSION_3, _VERSION_4, _VERSION_5)


def version(connection: sqlite3.Connection) -> int:
    """Return the schema version of the file, 0 for an empty one. Writes nothing.

    Raises JournalError when the file is a database, but not a journal.
    """
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        return 0
    if "schema_version" not in tables:
        raise JournalError("the file is a database, but not a journal of Ostler")
    (found,) = connection.execute("SELECT version FROM schema_version").fetchone()
    return int(found)


def migrate(connection: sqlite3.Connection, migrations: Sequence[str] = MIGRATIONS) -> None:
    """Bring the file to the newest version. Raises NewerSchema, before anything is written.

    Each version is a transaction. In an empty file all of them are one, to avoid waiting for the disk in
    between.

    The connection must be in autocommit mode (`isolation_level=None`).
    """
    found = version(connection)
    if found > len(migrations):
        raise NewerSchema(found, len(migrations))
    steps = [_step(number, script) for number, script in enumerate(migrations[found:], start=found + 1)]
    for step in steps if found else ["".join(steps)]:
        try:
            connection.executescript(f"BEGIN IMMEDIATE; {step} COMMIT;")
        except sqlite3.Error:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _step(number: int, script: str) -> str:
    """Return the statements that bring a file from the version before to this one."""
    if number == 1:
        noted = (
            "CREATE TABLE schema_version (version INTEGER NOT NULL); INSERT INTO schema_version VALUES (1);"
        )
    else:
        noted = f"UPDATE schema_version SET version = {number};"  # noqa: S608  # an int of our own
    return f"{script}; {noted}"
