"""The writing side of the SQLite file. Synchronous: only the writer thread calls it.

Why the standard library's sqlite3 and not apsw, and why rows go in by the hundred. Measured on two cores with
rows of 1 kB: both drivers give up the GIL around every step of a statement and then wait for it again, up
to the interpreter's switch interval (5 ms) when the Trio loop is busy. `executemany` does so for every row:
next to a busy loop it fell from 77,000 rows/s to 270 (apsw: 125,000 to 700). One INSERT of many rows does it
once for all of them: 65,000 rows/s next to a busy loop with either driver, 95,000 to 115,000 next to an idle
one. Written like that, both drivers are equally fast, so apsw is not worth a dependency. For the same reason
a batch that fits one statement is committed by that statement, without BEGIN and COMMIT: 5 ms instead of
16 ms next to a busy loop.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from supervisor.journal.errors import JournalError, JournalInUse
from supervisor.journal.port import Made, Op
from supervisor.journal.rows import Blob, NewRecord, RecordUpdate, Stored
from supervisor.journal.storage import batch, schema
from supervisor.journal.storage.batch import Step
from supervisor.journal.storage.checkpointer import WRITER_PAGES, Checkpointer
from supervisor.journal.storage.faults import FAULTS, may_be_waited_for, nature
from supervisor.journal.storage.reserve import Reserve
from supervisor.journal.trouble import Nature

BUSY_TIMEOUT = 5.0
"""Seconds to wait for a lock: only another program, such as the sqlite3 shell, can hold one.

A longer wait is reported as trouble.
"""

OPEN_SECONDS = 20.0
"""Seconds that opening waits for a lock, or for space on a full disk. Less than the time that a server may
take to end, since it cannot be asked to stop while it opens. Long enough that these attempts never exhaust
the warden's budget of five restarts a minute: it keeps restarting the server until the file can be opened."""

OPEN_PAUSE = 0.2
"""Seconds between two attempts to open."""

TROUBLED_BUSY_TIMEOUT = 1.0
"""Seconds to wait for a lock during trouble: the next attempt comes soon, and neither the end of the server
nor a client that deletes must wait for long."""

PAGE_BYTES = 8192
"""Page size of a new file. Measured, events of 1 kB take a fifth less CPU than with SQLite's usual 4,096."""

STATEMENT_ROWS = (1024, 512, 256, 128, 64, 32)
"""Sizes of the INSERT statements above `EXACT_ROWS`. Few sizes, since preparing costs about 2 us a row and
each prepared one is kept; 1,024 rows of 8 values stay below SQLite's limit of 32,766 variables."""

EXACT_ROWS = 32
"""Below this many rows a statement of exactly that size is prepared: the usual batch is one statement."""

CACHED_STATEMENTS = 64
"""Room for the 31 exact and 6 large INSERTs and the rest: measured, all of them together keep about 1 MB."""

STATEMENT_BYTES = 256 * 1024
"""Bytes of events in one statement; a larger event is alone in its own. A prepared statement keeps its last
values until it is used again, and each size has one: a flood of large events left 60 MB in them."""

BLOB_ROWS = 16
"""Removing a blob takes about as long as removing so many events: it is larger."""

ERASED_BYTES = 1024
"""Bytes that removing an event is assumed to change, for the checkpoints."""


SLICE_SECONDS = 0.005
"""Seconds that one transaction may take, of those that erase or copy."""


class JournalGone(JournalError):
    """The file was deleted or replaced: new writes are lost with the process."""


def insert_sizes(count: int) -> Iterator[int]:
    """Cut a number of rows into sizes of statements."""
    for size in STATEMENT_ROWS:
        whole, count = divmod(count, size)
        yield from (size for _ in range(whole))
    if count:
        yield count


def _slices(rows: Sequence[tuple[int, Stored]]) -> Iterator[Sequence[tuple[int, Stored]]]:
    """Split the rows into slices of at most `STATEMENT_BYTES`; a larger row is alone in its slice."""
    begin = size = 0
    for at, (_, row) in enumerate(rows):
        more = len(row.body) + len(row.updates)
        size += more
        if size > STATEMENT_BYTES and at > begin:
            yield rows[begin:at]
            begin, size = at, more
    if begin < len(rows):
        yield rows[begin:] if begin else rows


def _insert(count: int) -> str:
    places = ",".join(["(?,?,?,?,?,?,?,?)"] * count)
    return f"INSERT INTO events VALUES {places}"  # noqa: S608  # question marks alone


_INSERTS = {count: _insert(count) for count in (*STATEMENT_ROWS, *range(1, EXACT_ROWS))}


_UPDATE = "UPDATE conversations SET record = ?, updated_at = ?, title = coalesce(?, title), epoch = ?"

# Steps from kind to kind through the index, which covers all that is counted: measured, 0.3 ms for a block.
_COUNT_BLOCK = """
INSERT INTO kind_counts
WITH RECURSIVE kinds (kind) AS (
    SELECT min(kind) FROM events INDEXED BY events_by_kind WHERE conversation = :key
    UNION ALL
    SELECT (SELECT min(events.kind) FROM events INDEXED BY events_by_kind
            WHERE conversation = :key AND events.kind > kinds.kind)
    FROM kinds WHERE kinds.kind IS NOT NULL
), counted AS (
    SELECT kind, (SELECT count(*) FROM events INDEXED BY events_by_kind
                  WHERE conversation = :key AND events.kind = kinds.kind
                  AND seq BETWEEN :first AND :last) AS events
    FROM kinds WHERE kind IS NOT NULL
)
SELECT :key, kind, :block, events + coalesce((
    SELECT before.events FROM kind_counts AS before
    WHERE conversation = :key AND before.kind = counted.kind AND block < :block ORDER BY block DESC LIMIT 1
), 0)
FROM counted WHERE events > 0
"""


class Store:
    """One writing connection, the lock that makes it the only one, and the SQL that writes.

    Made by `Store.open`; the caller closes it.
    """

    faults = FAULTS
    owner: int | None = None
    slice_seconds: float = SLICE_SECONDS
    erase_seconds: float | None = None

    def __init__(
        self,
        connection: sqlite3.Connection,
        lock: int,
        epoch: int,
        path: Path = Path(":memory:"),
        busy_timeout: float = BUSY_TIMEOUT,
    ) -> None:
        self._connection = connection
        self._execute = connection.execute
        self._lock = lock
        self._path = path
        self._busy_timeout = busy_timeout
        self._place = _place(path)
        self._wal_path = path.with_name(path.name + "-wal")
        self._wal: tuple[int, int] | None = None
        self._growing: set[int] = set()
        self.epoch = epoch
        self.keeps_updates = True
        """Whether the updates of events are stored."""
        self.reserve = Reserve(_reserve_path(path))
        self._checkpointer = Checkpointer(path, PAGE_BYTES)

    @classmethod
    def open(
        cls,
        path: Path,
        migrations: Sequence[str] = schema.MIGRATIONS,
        *,
        busy_timeout: float = BUSY_TIMEOUT,
    ) -> Store:
        """Open or create the file, migrate it, and count the epoch up.

        A missing directory is made with mode 0700, a missing file with 0600 (SQLite gives its side files the
        same). On a full disk it uses the space that an earlier start has reserved. Waits up to
        `OPEN_SECONDS` for a lock or for space. Raises JournalInUse, NewerSchema, or JournalError when the
        file cannot be used.
        """
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = lock_file(path)
        except OSError as error:
            raise _unopened(path, error) from error
        try:
            _make_private(path)
            connection = _connect(path, busy_timeout)
        except (OSError, sqlite3.Error) as error:
            os.close(lock)
            raise _unopened(path, error) from error
        try:
            epoch = _prepare_patiently(connection, migrations, path)
        except BaseException as error:
            connection.close()
            os.close(lock)
            if isinstance(error, sqlite3.Error):
                raise _unopened(path, error) from error
            raise
        store = cls(connection, lock, epoch, path, busy_timeout)
        store.reserve.fill()
        return store

    def close(self) -> None:
        """Close the connection, which folds the write-ahead log into the file, and free the lock."""
        try:
            self._checkpointer.stop()
            # A server that is stopped takes no space in advance.
            self.reserve.remove()
            self._connection.close()
        finally:
            os.close(self._lock)

    def check_place(self) -> None:
        """Check that the file and its write-ahead log are in place. Raises JournalGone.

        Otherwise SQLite would continue to write into deleted files.
        """
        try:
            place, wal = _place(self._path), _place(self._wal_path)
        except OSError:
            return  # inconclusive; SQLite reports an error if there is one
        if place != self._place:
            raise JournalGone(f"its file {self._path.name} was deleted or replaced")
        if self._wal is None:
            self._wal = wal  # made by the first write, and kept until the last connection closes
        elif wal != self._wal:
            raise JournalGone(f"its file {self._wal_path.name} was deleted or replaced")

    def be_patient(self, patient: bool) -> None:
        """Set how long to wait for locks: the usual time, or a moment during trouble."""
        seconds = self._busy_timeout if patient else min(self._busy_timeout, TROUBLED_BUSY_TIMEOUT)
        self._execute(f"PRAGMA busy_timeout = {int(seconds * 1000)}")

    def probe(self) -> None:
        """Write something without effect. Raises sqlite3.Error if nothing can be written."""
        self._execute("UPDATE server SET epoch = epoch")

    def committed(self, size: int, conversations: int = 1) -> None:
        """Note that a transaction of about `size` bytes was committed. Copies the write-ahead log if the
        checkpointer has fallen behind."""
        self._checkpointer.note(size, conversations)
        if self._checkpointer.behind:
            self._copy_log("PASSIVE")

    def checkpoint(self) -> None:
        """Empty the write-ahead log into the file and free its space, if that is possible now."""
        self._copy_log("TRUNCATE")

    def _copy_log(self, mode: str) -> None:
        """Run a checkpoint in one of SQLite's modes, while the checkpointer's thread pauses."""
        with self._checkpointer.paused(), suppress(sqlite3.Error):
            self._execute(f"PRAGMA wal_checkpoint({mode})").fetchall()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit at the end. On an error roll back, including the set of unfinished copies."""
        growing = set(self._growing)
        self._execute("BEGIN IMMEDIATE")
        try:
            yield
            self._execute("COMMIT")
        except BaseException:
            self._growing = growing
            # A full disk makes SQLite roll back by itself; then there is nothing left to do.
            if self._connection.in_transaction:
                with suppress(sqlite3.Error):
                    self._execute("ROLLBACK")
            raise

    def parts(self, ops: list[Op]) -> Iterable[list[Op]]:
        """A batch is one transaction."""
        return (ops,)

    def write(self, ops: Sequence[Op]) -> None:
        """Write a batch in one transaction."""
        batch.write(self, ops)

    def insert_steps(self, rows: Sequence[tuple[int, Stored]]) -> list[Step]:
        """Return the statements that store these (conversation key, event) pairs."""
        steps: list[Step] = []
        keeps = self.keeps_updates
        for some in _slices(rows):
            at = 0
            for size in insert_sizes(len(some)):
                values: list[object] = []
                for key, row in some[at : at + size]:
                    updates = (row.updates or None) if keeps else None
                    values += (key, row.seq, row.id, row.kind, row.source, row.timestamp, row.body, updates)
                steps.append(partial(self._execute, _INSERTS[size], values))
                at += size
        steps += (
            partial(self._count_blocks, key, row.seq, row.seq)
            for key, row in rows
            if row.seq % schema.BLOCK_EVENTS == schema.BLOCK_EVENTS - 1
        )
        return steps

    def _count_blocks(self, key: int, first: int, last: int) -> None:
        """Count the kinds of events in the blocks whose last event is among these."""
        blocks = range(first // schema.BLOCK_EVENTS, (last + 1) // schema.BLOCK_EVENTS)
        for block in blocks:
            begin = block * schema.BLOCK_EVENTS
            end = begin + schema.BLOCK_EVENTS - 1
            self._execute(_COUNT_BLOCK, {"key": key, "block": block, "first": begin, "last": end})

    def update_record(self, key: int, update: RecordUpdate) -> None:
        """Replace a record and its columns."""
        values = (update.record, update.updated_at, update.title, self.epoch)
        # Setting a column writes its index even if the value stays the same.
        same = self._execute(_UPDATE + " WHERE key = ? AND status = ?", (*values, key, update.status))
        if same.rowcount == 0:
            self._execute(_UPDATE + ", status = ? WHERE key = ?", (*values, update.status, key))

    def put_blobs(self, key: int, blobs: Iterable[Blob]) -> None:
        """Store blobs, each replacing one of the same id."""
        for blob in blobs:
            self._execute(
                "INSERT OR REPLACE INTO blobs (conversation, id, media_type, data) VALUES (?, ?, ?, ?)",
                (key, blob.id, blob.media_type, blob.data),
            )

    def create(self, first: NewRecord, key: int | None = None) -> Made | None:
        """Add a conversation, with a new key unless one is given. Return None when the id is taken."""
        cursor = self._execute(
            "INSERT INTO conversations "
            "(key, id, record, status, title, created_at, updated_at, parent_id, epoch) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (id) DO NOTHING",
            (
                key,
                first.id,
                first.record,
                first.status,
                first.title,
                first.created_at,
                first.updated_at,
                first.parent_id,
                self.epoch,
            ),
        )
        if cursor.rowcount != 1:
            return None
        assert cursor.lastrowid is not None
        return Made(cursor.lastrowid, 0)

    def begin_copy(self) -> int:
        """Allocate the key of a conversation that is copied step by step, and return it.

        The copy is invisible before `end_copy`. Until then it counts as deleted: when the process dies in
        between, the next one removes what was copied.
        """
        # Insert and delete a row: AUTOINCREMENT never allocates its key again.
        cursor = self._execute(
            "INSERT INTO conversations (id, record, status, created_at, updated_at, epoch) "
            "VALUES ('copy-' || hex(randomblob(16)), '', '', '', '', ?)",
            (self.epoch,),
        )
        key = cursor.lastrowid
        assert key is not None
        self._execute("DELETE FROM conversations WHERE key = ?", (key,))
        self._execute("INSERT INTO deletions VALUES (?)", (key,))
        self._growing.add(key)
        return key

    def copy_events(self, source: int, key: int, first: int, last: int, down: int) -> None:
        """Copy the events from `first` to `last` of a conversation, their numbers lowered by `down`."""
        self._execute(
            "INSERT INTO events SELECT ?, seq - ?, id, kind, source, timestamp, body, updates FROM events "
            "WHERE conversation = ? AND seq BETWEEN ? AND ? ORDER BY seq",
            (key, down, source, first, last),
        )
        self._count_blocks(key, first - down, last - down)

    def copy_blobs(self, source: int, key: int, after: str, most: int) -> str | None:
        """Copy the next `most` blobs in the order of their ids. Return the last id, None at the end."""
        (last,) = self._execute(
            "SELECT max(id) FROM "
            "(SELECT id FROM blobs WHERE conversation = ? AND id > ? ORDER BY id LIMIT ?)",
            (source, after, most),
        ).fetchone()
        if last is not None:
            self._execute(
                "INSERT INTO blobs SELECT ?, id, media_type, data FROM blobs "
                "WHERE conversation = ? AND id > ? AND id <= ?",
                (key, source, after, last),
            )
        return None if last is None else str(last)

    def end_copy(self, key: int, first: NewRecord, rows: Sequence[Stored]) -> Made | None:
        """Make the copy a conversation, with further events at its end. Return None when the id is taken."""
        made = self.create(first, key)
        if made is None:
            return None
        for step in self.insert_steps([(key, row) for row in rows]):
            step()
        self._execute("DELETE FROM deletions WHERE conversation = ?", (key,))
        return made

    def forget_copy(self, key: int) -> None:
        """Let `erase` remove the copy, unless it has become a conversation."""
        self._growing.discard(key)

    def bury(self, conversation_id: str) -> bool:
        """Remove a conversation from everything that is listed and read. Return whether there was one.

        Its id is free from then on. Its events and blobs, which refer to its key, are left to `erase`.
        """
        found = self._execute("SELECT key FROM conversations WHERE id = ?", (conversation_id,)).fetchone()
        if found is None:
            return False
        self._execute("INSERT INTO deletions VALUES (?)", found)
        self._execute("DELETE FROM conversations WHERE key = ?", found)
        return True

    def erase(self, rows: int) -> int | None:
        """Remove up to `rows` events, or a matching number of blobs, of one buried conversation.

        Return how many rows were removed; None when nothing of any conversation is left.
        """
        growing = ",".join(map(str, list(self._growing)))
        found = self._execute(
            f"SELECT conversation FROM deletions WHERE conversation NOT IN ({growing}) LIMIT 1"  # noqa: S608 - numbers
        ).fetchone()
        if found is None:
            return None
        (key,) = found
        # Sequence numbers have no gaps, so this deletes `rows` adjacent rows, or those that are left.
        count = self._execute(
            "DELETE FROM events WHERE conversation = :key AND "
            "seq < (SELECT min(seq) FROM events WHERE conversation = :key) + :rows",
            {"key": key, "rows": rows},
        ).rowcount
        if not count:
            count = self._execute(
                "DELETE FROM blobs WHERE rowid IN (SELECT rowid FROM blobs WHERE conversation = ? LIMIT ?)",
                (key, max(1, rows // BLOB_ROWS)),
            ).rowcount
        if not count:
            self._execute("DELETE FROM kind_counts WHERE conversation = ?", (key,))
            count = self._execute("DELETE FROM deletions WHERE conversation = ?", (key,)).rowcount
        self.committed(count * ERASED_BYTES)
        return count


def _prepare_patiently(connection: sqlite3.Connection, migrations: Sequence[str], path: Path) -> int:
    end = time.monotonic() + OPEN_SECONDS
    while True:
        try:
            return _prepare(connection, migrations)
        except sqlite3.OperationalError as error:
            if nature(error) is not Nature.PASSES:
                raise
            # The error may be a lack of room for the index of the write-ahead log, reported as an I/O error.
            if Reserve(_reserve_path(path)).release():
                continue
            if not may_be_waited_for(error) or time.monotonic() > end:
                raise
        time.sleep(OPEN_PAUSE)


def _prepare(connection: sqlite3.Connection, migrations: Sequence[str]) -> int:
    """Prepare a new connection; returns the epoch."""
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # without effect on a file with content
    schema.migrate(connection, migrations)
    connection.execute("PRAGMA journal_mode = WAL")
    # A commit hands the pages to the kernel, so it survives any death of the server, SIGKILL included, but no
    # power cut: for that each batch would cost an fsync (FULL). Neither can corrupt the file.
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {WRITER_PAGES}")
    # The log's file is truncated to the usual size: on a full disk it must fit into the reserve.
    connection.execute(f"PRAGMA journal_size_limit = {WRITER_PAGES * PAGE_BYTES}")
    connection.execute("UPDATE server SET epoch = epoch + 1")
    (epoch,) = connection.execute("SELECT epoch FROM server").fetchone()
    return int(epoch)


def _reserve_path(path: Path) -> Path:
    return path.with_name(path.name + "-reserve")


def _place(path: Path) -> tuple[int, int] | None:
    """Return device and inode of the file at the path, None if there is none."""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino


def _connect(path: Path, busy_timeout: float = BUSY_TIMEOUT) -> sqlite3.Connection:
    return sqlite3.connect(
        path,
        timeout=busy_timeout,
        isolation_level=None,
        check_same_thread=False,  # opened in one thread, used by the writer thread alone
        cached_statements=CACHED_STATEMENTS,
    )


def _make_private(path: Path) -> None:
    """Create the file unless it exists, mode 0600 regardless of the umask: SQLite gives the same mode to its
    side files."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(descriptor, 0o600)
    finally:
        os.close(descriptor)


def lock_file(path: Path) -> int:
    """Lock the journal of this path: its descriptor, until it is closed. Raises JournalInUse, OSError."""
    # On a file next to the database: closing any descriptor of the database itself would drop SQLite's locks.
    # The kernel releases it when the process dies, however that happens; children do not inherit it
    # (O_CLOEXEC).
    lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(lock, 0o600)  # regardless of the umask
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise JournalInUse(
            f"another process has the journal {path} open; end it, or choose another state directory"
        ) from error
    return lock


def _unopened(path: Path, error: OSError | sqlite3.Error) -> JournalError:
    why = error.strerror if isinstance(error, OSError) and error.strerror else error
    return JournalError(
        f"cannot open the journal {path}: {why}. Mend it, restore it from a backup, or name another state "
        "directory with --state"
    )
