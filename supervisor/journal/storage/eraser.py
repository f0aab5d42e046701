"""Removes the events of deleted conversations in small steps, between other writes.

As one transaction, removing a million events takes 7 s and blocks all other writes. The next process removes
what is left when this one ends: the database lists the conversations to erase.
"""

from __future__ import annotations

import time

from supervisor.journal.port import Store

FIRST_ROWS = 64
"""Events removed by the first transaction; the following ones remove more or fewer, depending on its time."""

MOST_ROWS = 4096
"""Events removed by one transaction, however small they are."""


class Eraser:
    """Decides when and how much to erase. Belongs to the writer thread."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._rows = FIRST_ROWS
        self._not_before = 0.0
        self._next_look = 0.0
        self.pending = True
        """Whether there may be anything to remove: an earlier process may have left some."""

    def look(self) -> None:
        """Note that a conversation was deleted."""
        self.pending = True

    def wait(self) -> float | None:
        """Return the seconds until there is work, None if there is none."""
        if self.pending:
            return max(0.0, self._not_before - time.monotonic())
        if self._store.erase_seconds is None:
            return None
        return max(0.0, self._next_look - time.monotonic())

    def rest(self, seconds: float) -> None:
        """Pause for `seconds`."""
        self._not_before = time.monotonic() + seconds

    def slice(self) -> None:
        """Remove events in one transaction. Raises what the store raises; then nothing of it happened."""
        begin = time.monotonic()
        if self._store.erase(self._rows) is None:
            self.pending = False
            self._next_look = begin + (self._store.erase_seconds or 0)
            self._rows = FIRST_ROWS
            return
        self.pending = True
        self._rows = next_rows(self._rows, time.monotonic() - begin, self._store.slice_seconds)


def next_rows(rows: int, took: float, most: float) -> int:
    """Return how many events the next transaction may change, after one of `rows` that took so many seconds
    of those that it may take at most."""
    if took > most:
        return max(1, rows // 2)
    return min(MOST_ROWS, rows * 2) if took < most / 2 else rows
