"""Copies the write-ahead log into the database (a checkpoint), in a thread next to the writer.

SQLite would do it at the end of a commit, in the writer's thread. Measured, that takes 8 to 40 ms for a
thousand pages, 2 of them of work, the rest of waiting for the disk, and writes that arrive meanwhile wait as
long: a thousand pages are 250 events of 1 kB, one by one. Another connection can copy while the writer
continues. Only the writer can restart the log at its beginning, at the first commit that finds everything
copied. Where the thread cannot keep up, the writer waits for it and copies the log itself, so the log is
bounded.
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
"""Pages written to the log after which they are copied: half of SQLite's default, since more arrive
meanwhile."""

WRITER_PAGES: Final = 2 * CHECKPOINT_PAGES
"""Pages of the log's file beyond which the writer copies them itself, between two commits.

Under commits without a pause the other thread never copies the last page, and the log would grow without
bound. On a full disk the log must fit into `reserve.RESERVE_BYTES`.
"""

TRANSACTION_PAGES: Final = 7
"""Pages that a transaction of a few events of one conversation changes: their table and its three indexes,
the record and its index. For more events their bytes are added."""

PASSES: Final = 16
"""Attempts to copy everything, one after the other: each copies what was written during the one before. From
the second on they take a millisecond or two."""

FLOOD_PAGES: Final = CHECKPOINT_PAGES // 2
"""Pages written during one attempt at which copying stops: the next attempt would meet as many."""


class Checkpointer:
    """Belongs to the writer's thread; its own thread starts when it is first needed.

    Failures here - a full disk, a lock of another process, a thread that cannot start - are not reported. If
    they last, the writer's commits fail too and report them.
    """

    def __init__(self, path: Path, page_bytes: int) -> None:
        self._path = path
        self._log_path = path.with_name(path.name + "-wal")
        self._page_bytes = page_bytes
        self._pages = 0
        self._wanted = threading.Event()
        self._copying = threading.Lock()
        """Held by the thread while it copies, and by the writer to keep the thread from copying."""
        self._writer_waits = False
        self._ending = False
        self._thread: threading.Thread | None = None

    def note(self, size: int, conversations: int) -> None:
        """Note that a transaction of `size` bytes in `conversations` conversations was committed."""
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
        """Whether the log's file is larger than it should be. Once everything is copied, the next commit
        truncates it (`journal_size_limit`)."""
        try:
            return self._log_path.stat().st_size > WRITER_PAGES * self._page_bytes
        except OSError:
            return False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Keep the thread from copying inside this block. Entering waits for the attempt under way, as long
        as the disk takes."""
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
            place = f"{self._path.absolute().as_uri()}?mode=rw"  # do not recreate a deleted file
            with closing(sqlite3.connect(place, uri=True, timeout=0, isolation_level=None)) as connection:
                while True:
                    self._wanted.wait()
                    self._wanted.clear()
                    if self._ending:
                        return
                    if self._writer_waits:
                        continue  # the writer copies the log itself
                    with self._copying, suppress(sqlite3.Error):
                        copy(connection, lambda: self._writer_waits)
        except sqlite3.Error as error:
            log.warning("the journal's log is copied by its writer", reason=str(error))


def copy(connection: sqlite3.Connection, give_way: Callable[[], bool] = lambda: False) -> bool:
    """Copy the write-ahead log into the database while others write. Return whether all of it is copied.

    `give_way` is called after each attempt; True ends the copying. Raises sqlite3.Error. SQLite syncs the
    database before the log may restart.
    """
    had = -1
    for _ in range(PASSES):
        busy, pages, copied = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if busy or give_way():
            break
        # Nothing was written during this attempt, so another one would copy no more.
        if pages == had:
            return bool(pages == copied)
        if had >= 0 and pages > had + FLOOD_PAGES:
            break
        had = pages
    return False
