"""Copies the write-ahead log into the database, in a thread beside the writer.

SQLite would do it at the end of a commit, in the writer's thread. Measured, that takes 8 to 40 ms for a
thousand pages, 2 of them of work, the rest of waiting for the disk; and whatever came meanwhile waited as
long: a thousand pages are 250 events of 1 kB, one by one. Another connection can do it while the writer goes
on. Only to begin the log anew is the writer's, at the first commit that finds everything copied.
"""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import structlog

log = structlog.get_logger(__name__)

CHECKPOINT_PAGES: Final = 500
"""Pages written to the log after which they are copied: half of SQLite's own number, since more come
meanwhile."""

WRITER_PAGES: Final = 3 * CHECKPOINT_PAGES
"""Pages in the log at which the writer copies them itself, as part of a commit.

Without a pause between two commits nobody else ever copies the last page, and the log would grow for ever.
Most of them are copied by then. A full disk takes no more pages than `reserve.RESERVE_BYTES` is for.
"""

TRANSACTION_PAGES: Final = 7
"""Pages that a transaction of a few events changes: their table and its three indexes, the record and its
own. Of more events each has its bytes besides."""

PASSES: Final = 16
"""Attempts to copy all of it, one after the other: each takes as long as what was written during the one
before. From the second on they take a millisecond or two."""

FLOOD_PAGES: Final = CHECKPOINT_PAGES // 2
"""Pages written during one attempt from which on the next would meet as many: then it is left."""


class Checkpointer:
    """Belongs to the writer's thread; its own starts when it is first needed.

    What fails here is left to the writer: a full disk, a lock of another process, or a thread that cannot
    start make its next commits copy the log, or report the trouble.
    """

    def __init__(self, path: Path, page_bytes: int) -> None:
        self._path = path
        self._page_bytes = page_bytes
        self._pages = 0
        self._wanted = threading.Event()
        self._ending = False
        self._thread: threading.Thread | None = None

    def note(self, size: int) -> None:
        """A transaction of `size` bytes was committed."""
        self._pages += TRANSACTION_PAGES + size // self._page_bytes
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
                    with suppress(sqlite3.Error):
                        copy(connection)
        except sqlite3.Error as error:
            log.warning("the journal's log is copied by its writer", reason=str(error))


def copy(connection: sqlite3.Connection) -> bool:
    """Copy what the write-ahead log has, while others write. Returns whether nothing was left at the end.

    Raises sqlite3.Error. What the database is given is on the disk before the log may begin anew.
    """
    had = -1
    for _ in range(PASSES):
        _, pages, copied = connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if pages == had:
            return bool(pages == copied)
        if had >= 0 and pages > had + FLOOD_PAGES:
            break
        had = pages
    return False
