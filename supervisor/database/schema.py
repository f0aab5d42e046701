"""The schema of the database, and its migrations.

The database carries its version in the table `schema_version`. Migrations only go forward, each in a separate
transaction. A lock makes the servers that start at the same time run them once. A released script is never
edited: a change is a new script at the end.

A migration must leave the former version able to read and write (a new column with a default, a new table),
so that two versions run side by side during an upgrade, and locks tables for moments alone, since servers
work meanwhile. One that cannot raises `OLDEST`: the oldest version of the schema whose servers may still run.
So does a migration, if an empty one, for records or documents that the former version refuses to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from supervisor.database.connection import Connection

# `bigint` is PostgreSQL's counterpart of SQLite's integers. `collate "C"`: ids and times are compared byte by
# byte, as SQLite does, in every locale of the database.
_VERSION_1: Final = """
CREATE TABLE meta (name text PRIMARY KEY, value text NOT NULL);

CREATE TABLE servers (
    id bigserial PRIMARY KEY,
    name text NOT NULL,
    instance text NOT NULL,
    address text NOT NULL,
    version text NOT NULL,
    labels jsonb NOT NULL DEFAULT '{}',
    free_bytes bigint NOT NULL DEFAULT 0,
    conversations integer NOT NULL DEFAULT 0,
    only_conversation text,
    state text NOT NULL DEFAULT 'alive' CHECK (state IN ('alive', 'draining', 'left', 'dead')),
    started timestamptz NOT NULL DEFAULT now(),
    since timestamptz NOT NULL DEFAULT now(),
    expires timestamptz NOT NULL,
    ttl double precision NOT NULL
);
CREATE UNIQUE INDEX servers_by_name ON servers (name) WHERE state IN ('alive', 'draining');

CREATE TABLE conversations (
    key bigserial PRIMARY KEY,
    id text COLLATE "C" NOT NULL UNIQUE,
    record bytea NOT NULL,
    status text COLLATE "C" NOT NULL,
    title text,
    created_at text COLLATE "C" NOT NULL,
    updated_at text COLLATE "C" NOT NULL,
    parent_id text COLLATE "C",
    epoch bigint NOT NULL
);
CREATE INDEX conversations_by_creation ON conversations (created_at, key);
CREATE INDEX conversations_by_update ON conversations (updated_at, key);
CREATE INDEX conversations_by_status ON conversations (status, created_at, key);

-- Changed by every commit, so its rows are narrow, and half of each page is left free for their next
-- versions. `live`: whether the conversation has live work, by its status; who stores a status stores this
-- with it, in one statement. It has no default, so that none forgets. `former`: the server that had it before
-- the owner, or, without owner, the one that released it.
CREATE TABLE heads (
    key bigint PRIMARY KEY,
    owner bigint,
    generation bigint NOT NULL,
    last_seq bigint NOT NULL,
    live boolean NOT NULL,
    former bigint
) WITH (fillfactor = 50);
CREATE INDEX heads_by_owner ON heads (owner);
CREATE INDEX heads_at_work ON heads (coalesce(owner, 0)) WHERE live;

CREATE TABLE events (
    conversation bigint NOT NULL,
    seq bigint NOT NULL,
    id text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL,
    source text COLLATE "C" NOT NULL,
    timestamp text COLLATE "C" NOT NULL,
    body bytea NOT NULL,
    updates bytea
);
CREATE UNIQUE INDEX events_by_seq ON events (conversation, seq);
CREATE UNIQUE INDEX events_by_id ON events (conversation, id);
CREATE INDEX events_by_kind ON events (conversation, kind, seq);

CREATE TABLE kind_counts (
    conversation bigint NOT NULL,
    kind text COLLATE "C" NOT NULL,
    block bigint NOT NULL,
    events bigint NOT NULL,
    PRIMARY KEY (conversation, kind, block)
);

CREATE TABLE blobs (
    conversation bigint NOT NULL,
    id text COLLATE "C" NOT NULL,
    media_type text NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (conversation, id)
);

-- The keys of conversations whose events are to be removed. `server`: the one that still copies into it.
CREATE TABLE deletions (conversation bigint PRIMARY KEY, server bigint);

CREATE TABLE documents (
    name text PRIMARY KEY,
    revision bigint NOT NULL,
    body bytea NOT NULL
);

CREATE TABLE webhook_cursors (
    conversation text COLLATE "C" NOT NULL,
    receiver text NOT NULL,
    seq bigint NOT NULL,
    open boolean NOT NULL,
    PRIMARY KEY (conversation, receiver)
);
CREATE INDEX webhook_cursors_open ON webhook_cursors (conversation) WHERE open;

-- Servers that OSTLER_PROVISION has started, until it has stopped them. `server` runs the command, at most
-- until then. `failed`: how often it could not stop this one.
CREATE TABLE provisions (
    conversation text COLLATE "C" PRIMARY KEY,
    server bigint NOT NULL,
    until timestamptz NOT NULL,
    failed integer NOT NULL DEFAULT 0
);
"""

MIGRATIONS: Final[tuple[str, ...]] = (_VERSION_1,)

OLDEST: Final = 1
"""The oldest version of the schema that the servers of this version can be run next to."""

MIGRATING: Final = 0x4F53544C
"""The number of the advisory lock that serialises migrations ("OSTL")."""

LOCK_SECONDS: Final = 1.5
"""Seconds that a migration waits for a table, which a long statement or a backup reads; after a pause it is
tried again. All servers wait behind it meanwhile, also to renew their leases. After one second PostgreSQL
ends an autovacuum that is in the way."""

COPY: Final = "copy"
"""The name in `meta` of the source of a copy into the database that has not ended: servers refuse to
start."""


class NewerDatabase(Exception):
    """A newer Ostler has migrated the database, and servers of this version can no longer use it. The message
    is one line for people."""


class ForeignDatabase(Exception):
    """The database is not empty, and not Ostler's. The message is one line for people."""


def version(connection: Connection) -> tuple[int, int]:
    """Return the version of the schema, 0 for an empty database, and the oldest version that can use it.

    Raises ForeignDatabase, psycopg.Error.
    """
    found = connection.execute(
        "SELECT to_regclass('schema_version') IS NOT NULL, EXISTS (SELECT 1 FROM information_schema.tables "
        "WHERE table_schema = current_schema())"
    ).fetchone()
    assert found is not None
    known, filled = found
    if not known:
        if filled:
            raise ForeignDatabase(
                "the database holds other tables, and none of Ostler's; name an empty one, or another schema"
            )
        return 0, 0
    row = connection.execute("SELECT version, oldest FROM schema_version").fetchone()
    assert row is not None
    return int(row[0]), int(row[1])


def _usable(connection: Connection, known: int) -> int:
    """The version of the schema. Raises NewerDatabase if those who know so many versions cannot use it."""
    found, needed = version(connection)
    if needed > known:
        raise NewerDatabase(
            f"the database has schema version {found}, which this Ostler cannot use; start the newer Ostler"
        )
    return found


def migrate(connection: Connection, migrations: Sequence[str] = MIGRATIONS, oldest: int = OLDEST) -> None:
    """Bring the database to the newest version. Servers that start at the same time wait for each other.

    Raises NewerDatabase before anything is written, ForeignDatabase, psycopg.Error.
    """
    if _usable(connection, len(migrations)) >= len(migrations):
        return
    connection.execute("SELECT pg_advisory_lock(%s)", (MIGRATING,))
    try:
        found = _usable(connection, len(migrations))  # another server may have done it meanwhile, or more
        for number, script in enumerate(migrations[found:], start=found + 1):
            with connection.transaction():
                connection.execute("SELECT set_config('lock_timeout', %s, true)", (f"{LOCK_SECONDS}s",))
                connection.execute(script.encode())
                if number == 1:
                    connection.execute(
                        "CREATE TABLE schema_version (version integer NOT NULL, oldest integer NOT NULL)"
                    )
                    connection.execute("INSERT INTO schema_version VALUES (0, 0)")
                connection.execute("UPDATE schema_version SET version = %s, oldest = %s", (number, oldest))
    finally:
        connection.execute("SELECT pg_advisory_unlock(%s)", (MIGRATING,))
