"""Copies the write-ahead log into the database, in a thread beside the writer.

SQLite would do it at the end of a commit, in the writer's thread. Measured, that takes 8 to 40 ms for a
thousand pages, 2 of them of work, the rest of waiting for the disk; and whatever came meanwhile waited as
long: a thousand pages are 250 events of 1 kB, one by one. Another connection can do it while the writer goes
on. Only to begin the log anew is the writer's, at the first commit that finds everything copied. Where the
thread cannot keep up, the writer waits for it and copies the log itself: so the log is bounded.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Final

import structlog

log = structlog.get_logger(__name__)

CHECKPOINT_PAGES: Final = 500
"""Pages written to the log after which they are copied: half of SQLite's own number, since more come
meanwhile."""

WRITER_PAGES: Final = 2 * CHECKPOINT_PAGES
"""Pages of the log's file beyond which the writer copies them itself, between two commits.

Without a pause between two commits nobody else ever copies the last page, and the log would grow for ever.
A full disk takes no more pages than `reserve.RESERVE_BYTES` is for.
"""

TRANSACTION_PAGES: Final = 7
"""Pages that a transaction of a few events of one conversation changes: their table and its three indexes,
the record and its own. Of more events each has its bytes besides."""

PASSES: Final = 16
"""Attempts to copy all of it, one after the other: each takes as long as what was written during the one
before. From the second on they take a millisecond or two."""

FLOOD_PAGES: Final = CHECKPOINT_PAGES // 2
"""Pages written during one attempt from which on the next would meet as many: then it is left."""


class Checkpointer:
    """Belongs to the writer's thread; its own starts when it is first needed.

    What fails here - a full disk, a lock of another process, a thread that cannot start - is left to the
    writer, whose commits tell of what lasts.
    """

    def __init__(self, path: Path, page_bytes: int) -> None:
        self._path = path
        self._log_path = path.with_name(path.name + "-wal")
        self._page_bytes = page_bytes
        self._pages = 0
        self._wanted = threading.Event()
        self._copying = threading.Lock()
        """Held by the thread while it copies, by the writer while it does not want that."""
        self._writer_waits = False
        self._ending = False
        self._thread: threading.Thread | None = None

    def note(self, size: int, conversations: int) -> None:
        """A transaction was committed, of `size` bytes and so many conversations."""
        self._pages += TRANSACTION_PAGES * conversations + size // self._page_bytes
        if self._pages < CHECKPOINT_PAGES:
            return
        self._pages = 0
        if self._thread is None:
            # A daemon for the same reason as the writer's: `stop` joins.
            thread = threading.Thread(target=self._run, name="journal-checkpointer", daemon=True)
            try:
                thread.start()
            except RuntimeError:
                return
            self._thread = thread
        self._wanted.set()

    @property
    def behind(self) -> bool:
        """Whether the log's file is larger than it should be. Once everything is copied, the next commit cuts
        it (`journal_size_limit`)."""
        try:
            return self._log_path.stat().st_size > WRITER_PAGES * self._page_bytes
        except OSError:
            return False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The thread copies nothing in this block of the writer's, which begins when it has ended what it is
        about: a single attempt, as long as the disk takes."""
        self._writer_waits = True
        with self._copying:
            try:
                yield
            finally:
                self._writer_waits = False

    def stop(self) -> None:
        """End the thread. Waits for the copying that is under way."""
        self._ending = True
        self._wanted.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            place = f"{self._path.absolute().as_uri()}?mode=rw"  # one that is gone is not made anew
            with closing(sqlite3.connect(place, uri=True, timeout=0, isolation_level=None)) as connection:
                while True:
                    self._wanted.wait()
                    self._wanted.clear()
                    if self._ending:
                        return
                    if self._writer_waits:
                        continue  # it copies the log itself
                    with self._copying, suppress(sqlite3.Error):
                        copy(connection, lambda: self._writer_waits)
        except sqlite3.Error as error:
            log.warning("the journal's log is copied by its writer", reason=str(error))


def copy(connection: sqlite3.Connection, give_way: Callable[[], bool] = lambda: False) -> bool:
    """Copy what the write-ahead log has, while others write. Returns whether nothing was left at the end.

    `give_way`: asked after each attempt; true ends it. Raises sqlite3.Error. What the database is given is on
    the disk before the log may begin anew.
    """
    had = -1
    for _ in range(PASSES):
        busy, pages, copied = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if busy or give_way():
            break
        if pages == had:
            return bool(pages == copied)
        if had >= 0 and pages > had + FLOOD_PAGES:
            break
        had = pages
    return False
