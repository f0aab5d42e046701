"""The writing side of the tables in PostgreSQL. Synchronous: only the writer thread calls it.

A batch is one statement, and a transaction by itself: a server that is stopped in the middle of one holds no
lock. Where the connection is lost before the answer came, the statement is tried again over a new one. If it
had been committed, the fence refuses it, the head says how far it came, and only the rest is written.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import psycopg

from supervisor.database.address import Database
from supervisor.database.connection import Connection
from supervisor.journal.errors import LeaseLost, LogDeleted, NotOwner
from supervisor.journal.port import Append, Call, Made, Op
from supervisor.journal.postgres.dialling import dial
from supervisor.journal.postgres.faults import FAULTS
from supervisor.journal.postgres.single import fits, run, single
from supervisor.journal.postgres.statements import COUNTED, Share, counted, shares, statement
from supervisor.journal.postgres.values import Bigints, Byteas, Texts, stored
from supervisor.journal.rows import NewRecord, Stored
from supervisor.journal.storage.schema import BLOCK_EVENTS

T = TypeVar("T")

NAME: Final = "ostler journal writer"

WRITE_SECONDS: Final = 30.0
"""The longest that one statement may take: some megabytes take less than a second."""

STATEMENT_BYTES: Final = 4 * 1024 * 1024
"""Bytes in one statement; one append may be larger. As much as may wait before producers are held back, so it
is what gathered in trouble that is cut."""

APPEND_MAX_BYTES: Final = 768 * 1024 * 1024
"""The largest append: PostgreSQL takes 1 GiB in one value, and the arrays of a statement are values."""

SLICE_SECONDS: Final = 0.05
"""Seconds that one transaction may take, of those that erase or copy. Waiting for the database's disk is a
part of it, 10 ms and more, so less would make it remove events one by one."""

ERASE_SECONDS: Final = 60.0
"""Seconds after which to look for what a dead server left to erase: no task waits for it."""

ROUNDS: Final = 5
"""Attempts to write what an earlier attempt has not written. One is enough, unless attempts overtake each
other."""

_BACKEND: Final = "SELECT pid, backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid()"

_END_BACKEND: Final = (
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = %s AND backend_start = %s"
)

_CREATE: Final = """
WITH made AS (
    INSERT INTO conversations (key, id, record, status, title, created_at, updated_at, parent_id, epoch)
    VALUES (%(key)s, %(id)s, %(record)s, %(status)s, %(title)s, %(created_at)s, %(updated_at)s, %(parent_id)s,
        %(owner)s)
    ON CONFLICT (id) DO NOTHING RETURNING key
)
INSERT INTO heads (key, owner, generation, last_seq, live)
SELECT key, %(owner)s, 1, %(last_seq)s, %(live)s FROM made RETURNING key
"""

# What is a conversation of this server, by its key.
_BURY: Final = """
WITH head AS (
    DELETE FROM heads WHERE key = %(key)s AND owner = %(owner)s RETURNING key
), gone AS (
    DELETE FROM conversations USING head WHERE conversations.key = head.key
), noted AS (
    INSERT INTO deletions (conversation) SELECT key FROM head ON CONFLICT DO NOTHING
)
SELECT key FROM head
"""

# Sequence numbers have no gaps, so this deletes so many adjacent rows, or those that are left.
_ERASE: Final = """
WITH chosen AS (
    SELECT conversation FROM deletions WHERE server IS NULL
        OR (server = %(owner)s AND conversation <> ALL(%(growing)s))
        OR (server <> %(owner)s AND NOT EXISTS (
            SELECT FROM servers WHERE servers.id = deletions.server AND state IN ('alive', 'draining')
        ))
    LIMIT 1 FOR UPDATE SKIP LOCKED
), part AS MATERIALIZED (
    SELECT conversation AS key, (
        SELECT min(seq) + %(rows)s FROM events WHERE events.conversation = chosen.conversation
    ) AS until FROM chosen
), gone AS (
    DELETE FROM events USING part WHERE conversation = part.key AND seq < part.until RETURNING 1
)
SELECT conversation, (SELECT count(*) FROM gone) FROM chosen
"""

BLOB_ROWS: Final = 16
"""Removing a blob takes about as long as removing so many events: it is larger."""


class NoReserve:
    """The database has the disk: this server reserves nothing there."""

    def fill(self) -> None:
        """Nothing."""

    def release(self) -> bool:
        """There is none."""
        return False


class PostgresStore:
    """One writing connection of one server. Made by `open`; the caller closes it. `live`: statuses of
    conversations with work."""

    faults = FAULTS
    reserve = NoReserve()
    slice_seconds: float = SLICE_SECONDS
    erase_seconds: float | None = ERASE_SECONDS

    def __init__(self, database: Database, server: int, live: Collection[str]) -> None:
        self.epoch = server
        self.owner: int | None = server
        self.keeps_updates = True
        self._database = database
        self._server = server
        self._statuses = live
        self._live: Connection | None = None
        self._backend: tuple[Any, ...] | None = None
        self._prepared: set[bytes] = set()
        """Names of statements that the connection knows (`single`)."""
        self._growing: set[int] = set()
        self._doubtful: set[int] = set()
        """Keys of conversations whose creation was refused, although it may have been committed."""
        self._burying: tuple[str, int] | None = None

    @classmethod
    def open(cls, database: Database, server: int, live: Collection[str]) -> PostgresStore:
        """Connect. Raises psycopg.Error."""
        store = cls(database, server, live)
        store.check_place()
        return store

    @property
    def _connection(self) -> Connection:
        if self._live is None:
            raise psycopg.OperationalError("the connection is lost")
        return self._live

    @property
    def encoding(self) -> str | None:
        """In which encoding the database stores texts."""
        return self._connection.info.parameter_status("server_encoding")

    def close(self) -> None:
        """Close the connection."""
        live, self._live = self._live, None
        if live is not None:
            live.close()

    def check_place(self) -> None:
        """Connect again if the connection is lost, and take back what was refused meanwhile."""
        if self._live is None or self._live.closed:
            self._connect()
        for key in list(self._doubtful):
            self._connection.execute(_BURY, {"key": key, "owner": self._server})
            self._doubtful.discard(key)

    def _connect(self) -> None:
        with suppress(psycopg.Error):
            self.close()
        connection = dial(self._database, NAME, WRITE_SECONDS)
        try:
            backend = connection.execute(_BACKEND).fetchone()
            if self._backend is not None:
                # It may still run what was lost with its connection.
                connection.execute(_END_BACKEND, self._backend)
        except BaseException:
            connection.close()
            raise
        self._live, self._backend = connection, backend
        self._prepared.clear()

    def _twice(self, action: Callable[[], T]) -> T:
        """Run what may be repeated; a second time where the connection was lost and can be made again."""
        try:
            return action()
        except psycopg.OperationalError:
            if self._live is None or not self._live.closed:
                raise
        self._connect()
        return action()

    def be_patient(self, patient: bool) -> None:
        """Waiting is bounded anyway."""

    def probe(self) -> None:
        """Write something without effect."""
        self._connection.execute("UPDATE servers SET name = name WHERE id = %s", (self._server,))

    def committed(self, size: int, conversations: int = 1) -> None:
        """Nothing: the database cares for its log."""

    def checkpoint(self) -> None:
        """Nothing: the database cares for its log."""

    def parts(self, ops: list[Op]) -> Iterable[list[Op]]:
        """Cut a batch: appends together, up to `STATEMENT_BYTES`, and each call alone."""
        return _parts(ops)

    def write(self, ops: Sequence[Op]) -> None:
        """Write a part. A conversation that another server has claimed gets its `broken`, and the others are
        written."""
        appends: list[Append] = []
        for op in ops:
            if isinstance(op, Call):
                op.run(self)
            else:
                appends.append(op)
        if appends:
            self._twice(lambda: self._append(appends))

    def _append(self, appends: Sequence[Append]) -> None:
        if sum(each.size for each in appends) > APPEND_MAX_BYTES:
            raise OverflowError(f"more than {APPEND_MAX_BYTES} bytes at once")
        waiting = shares(appends)
        for _ in range(ROUNDS):
            if not waiting:
                return
            written = self._written(waiting)
            waiting = self._refused([each for each in waiting if each.key not in written])
        raise psycopg.OperationalError("heads of conversations keep moving")

    def _written(self, batch: Sequence[Share]) -> Collection[int]:
        """Write these; return the keys of those that this server still has."""
        if len(batch) == 1 and fits(batch[0]):
            asked = single(batch[0], self._server, self._statuses, keeps_updates=self.keeps_updates)
            found = run(self._connection.pgconn, asked, self._prepared)
            return (batch[0].key,) if found else ()
        text, values = statement(batch, self._server, self._statuses, keeps_updates=self.keeps_updates)
        return {key for (key,) in self._connection.execute(text, values, prepare=True, binary=True)}

    def _refused(self, refused: Sequence[Share]) -> list[Share]:
        """Find out why the fence refused these. Return what is still to be written, where an earlier attempt
        was committed without an answer; the others are lost."""
        if not refused:
            return []
        heads = {
            key: head
            for key, *head in self._connection.execute(
                "SELECT key, owner, generation, last_seq FROM heads WHERE key = ANY(%s)",
                (Bigints([each.key for each in refused]),),
            )
        }
        again: list[Share] = []
        for each in refused:
            name = f"conversation {each.key}"
            head = heads.get(each.key)
            if head is None:
                each.handle.broken = LogDeleted(f"{name} has been deleted")
            elif head[:2] == [self._server, each.handle.generation] and self._is_ours(each, head[2]):
                # Once more also where nothing is left: a replica that must confirm confirms this, and so all.
                again.append(each.without(head[2]))
            else:
                each.handle.broken = LeaseLost(
                    f"{name} has owner {head[0]} and generation {head[1]}, and ends at {head[2]}; "
                    f"this server {self._server} had generation {each.handle.generation} and wrote after "
                    f"{each.before}"
                )
        return again

    def _is_ours(self, share: Share, last_seq: int) -> bool:
        """Whether the last event in the table is one of this share."""
        if last_seq == share.before:
            return True  # an attempt of ours that held the head has been rolled back
        if not share.before < last_seq <= share.last:
            return False
        (row,) = [row for row in share.rows if row.seq == last_seq]
        found = self._connection.execute(
            "SELECT id FROM events WHERE conversation = %s AND seq = %s", (share.key, last_seq)
        ).fetchone()
        return found is not None and found[0] == stored(row.id)

    def create(self, first: NewRecord) -> Made | None:
        """Add a conversation, owned by this server. Return None when the id is taken."""
        return self._create(self._new_key(), first)

    def _new_key(self) -> int:
        def next_key() -> int:
            found = self._connection.execute("SELECT nextval('conversations_key_seq')").fetchone()
            assert found is not None
            return int(found[0])

        return self._twice(next_key)

    def _create(self, key: int, first: NewRecord) -> Made | None:
        try:
            return self._twice(lambda: self._insert(key, first, -1))
        except psycopg.Error:
            self._doubtful.add(key)
            raise

    def _insert(self, key: int, first: NewRecord, last_seq: int) -> Made | None:
        values = {
            "key": key,
            "id": stored(first.id),
            "record": first.record,
            "status": stored(first.status),
            "title": _stored(first.title),
            "created_at": stored(first.created_at),
            "updated_at": stored(first.updated_at),
            "parent_id": _stored(first.parent_id),
            "owner": self._server,
            "last_seq": last_seq,
            "live": first.status in self._statuses,
        }
        made = self._connection.execute(_CREATE, values).fetchone()
        # It may be there since an attempt of ours whose answer was lost.
        if made is None and not self._has("conversations", "key", key):
            return None
        return Made(key, 1)

    def _has(self, table: str, column: str, key: int) -> bool:
        statement = f"SELECT FROM {table} WHERE {column} = %s"
        return self._connection.execute(statement.encode(), (key,)).fetchone() is not None

    def bury(self, conversation_id: str) -> bool | NotOwner:
        """Remove a conversation of this server from everything that is listed and read."""
        return self._twice(lambda: self._bury(conversation_id))

    def _bury(self, conversation_id: str) -> bool | NotOwner:
        found = self._connection.execute(
            "SELECT conversations.key, owner FROM conversations JOIN heads ON heads.key = conversations.key "
            "WHERE id = %s",
            (stored(conversation_id),),
        ).fetchone()
        if found is None:
            # It may be gone since an attempt of ours whose answer was lost.
            burying = self._burying
            return (
                burying is not None
                and burying[0] == conversation_id
                and self._has("deletions", "conversation", burying[1])
            )
        key, owner = found
        if owner != self._server:
            return NotOwner(conversation_id, owner)
        self._burying = (conversation_id, key)
        gone = self._connection.execute(_BURY, {"key": key, "owner": self._server}).fetchone()
        self._burying = None
        return True if gone is not None else NotOwner(conversation_id, None)

    def begin_copy(self) -> int:
        """Allocate the key of a conversation that is copied step by step."""
        found = self._connection.execute(
            "INSERT INTO deletions (conversation, server) VALUES (nextval('conversations_key_seq'), %s) "
            "RETURNING conversation",
            (self._server,),
        ).fetchone()
        assert found is not None
        key = int(found[0])
        self._growing.add(key)
        return key

    def copy_events(self, source: int, key: int, first: int, last: int, down: int) -> None:
        """Copy the events from `first` to `last` of a conversation, their numbers lowered by `down`."""
        with self._connection.transaction():
            self._connection.execute(
                "INSERT INTO events (conversation, seq, id, kind, source, timestamp, body, updates) "
                "SELECT %s, seq - %s, id, kind, source, timestamp, body, updates FROM events "
                "WHERE conversation = %s AND seq BETWEEN %s AND %s ORDER BY seq",
                (key, down, source, first, last),
            )
            self._count_blocks(key, first - down, last - down)

    def _count_blocks(self, key: int, first: int, last: int) -> None:
        """Count the kinds of events in the blocks whose last event is among these."""
        blocks = range(first // BLOCK_EVENTS, (last + 1) // BLOCK_EVENTS)
        old = [(key, each, each * BLOCK_EVENTS, (each + 1) * BLOCK_EVENTS - 1) for each in blocks]
        if old:
            self._connection.execute(COUNTED.format("").encode(), counted(old))

    def copy_blobs(self, source: int, key: int, after: str, most: int) -> str | None:
        """Copy the next `most` blobs in the order of their ids."""
        found = self._connection.execute(
            "WITH copied AS (INSERT INTO blobs SELECT %s, id, media_type, data FROM blobs "
            "WHERE conversation = %s AND id > %s ORDER BY id LIMIT %s RETURNING id) "
            "SELECT max(id) FROM copied",
            (key, source, after, most),
        ).fetchone()
        assert found is not None
        return None if found[0] is None else str(found[0])

    def end_copy(self, key: int, first: NewRecord, rows: Sequence[Stored]) -> Made | None:
        """Make the copy a conversation of this server, with further events at its end."""
        try:
            return self._twice(lambda: self._end_copy(key, first, rows))
        except psycopg.Error:
            self._doubtful.add(key)
            raise

    def _end_copy(self, key: int, first: NewRecord, rows: Sequence[Stored]) -> Made | None:
        with self._connection.transaction():
            if self._has("conversations", "key", key):
                return Made(key, 1)  # since an attempt of ours whose answer was lost
            end = self._connection.execute(
                "DELETE FROM deletions WHERE conversation = %s AND server = %s", (key, self._server)
            )
            if end.rowcount == 0:
                raise LeaseLost("another server has removed the copy of a conversation, as of a dead server")
            found = self._connection.execute(
                "SELECT coalesce(max(seq), -1) FROM events WHERE conversation = %s", (key,)
            ).fetchone()
            assert found is not None
            last_seq = found[0] + len(rows)
            made = self._insert(key, first, last_seq)
            if made is None:
                self._connection.execute(
                    "INSERT INTO deletions (conversation, server) VALUES (%s, %s)", (key, self._server)
                )
                return None
            self._insert_rows(key, rows)
            self._count_blocks(key, last_seq - len(rows) + 1, last_seq)
            return made

    def _insert_rows(self, key: int, rows: Sequence[Stored]) -> None:
        updates = [(row.updates or None) if self.keeps_updates else None for row in rows]
        self._connection.execute(
            "INSERT INTO events (conversation, seq, id, kind, source, timestamp, body, updates) "
            "SELECT %s, v.* FROM unnest(%s, %s, %s, %s, %s, %s, %s) AS v",
            (
                key,
                Bigints([row.seq for row in rows]),
                Texts([row.id for row in rows]),
                Texts([row.kind for row in rows]),
                Texts([row.source for row in rows]),
                Texts([row.timestamp for row in rows]),
                Byteas([row.body for row in rows]),
                Byteas(updates),
            ),
        )

    def forget_copy(self, key: int) -> None:
        """Let `erase` remove the copy, unless it has become a conversation."""
        self._growing.discard(key)

    def erase(self, rows: int) -> int | None:
        """Remove up to `rows` events, or a matching number of blobs, of one buried conversation that no other
        server erases or copies into."""
        execute = self._connection.execute
        growing = Bigints(list(self._growing))
        found = execute(_ERASE, {"owner": self._server, "growing": growing, "rows": rows}).fetchone()
        if found is None:
            return None
        key, count = found
        if count:
            return int(count)
        # The rest may be erased by several servers at once: each removes what the others have left.
        count = execute(
            "DELETE FROM blobs WHERE conversation = %(key)s AND id IN "
            "(SELECT id FROM blobs WHERE conversation = %(key)s LIMIT %(most)s)",
            {"key": key, "most": max(1, rows // BLOB_ROWS)},
        ).rowcount
        if not count:
            execute("DELETE FROM kind_counts WHERE conversation = %s", (key,))
            count = execute("DELETE FROM deletions WHERE conversation = %s", (key,)).rowcount
        return count


def _parts(ops: Sequence[Op]) -> Iterator[list[Op]]:
    some: list[Op] = []
    size = 0
    for op in ops:
        if some and (isinstance(op, Call) or size + op.size > STATEMENT_BYTES):
            yield some
            some, size = [], 0
        some.append(op)
        size += op.size
        if isinstance(op, Call):
            yield some
            some, size = [], 0
    if some:
        yield some


def _stored(text: str | None) -> str | None:
    return None if text is None else stored(text)
