"""A memory budget for unsent data of clients that do not read.

Each connection has at most one answer, or one piece of a stream, at a time. But answers are larger than
requests, and connections are many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

STRANGERS_BYTES: Final = 16 * 1024 * 1024
"""Bytes for all clients that have presented no key. Answers to them have at most 350 KB, so forty of them may
read slowly at a time."""

ALL_BYTES: Final = 256 * 1024 * 1024
"""Bytes for all clients. The largest page of events has 64 MB."""


@attrs.define(eq=False)
class Waiting:
    """Unsent bytes of one write. `end` ends their connection."""

    size: int
    stranger: bool
    end: Callable[[], None] = attrs.field(repr=False)


class Unsent:
    """Counts unsent bytes. Beyond the limit, it ends the connection that has waited longest."""

    def __init__(self, strangers_bytes: int = STRANGERS_BYTES, all_bytes: int = ALL_BYTES) -> None:
        self._most = {True: strangers_bytes, False: all_bytes}
        self._waiting: dict[Waiting, None] = {}
        """The oldest first."""
        self._sums = {True: 0, False: 0}
        """Running totals: every write needs them, and summing up all waiting writes would take too long."""

    def bytes_of(self, *, strangers: bool) -> int:
        """Unsent bytes of clients without a key, or of all."""
        return self._sums[strangers]

    def add(self, size: int, *, stranger: bool, end: Callable[[], None]) -> Waiting:
        """Count bytes until they are removed. May end connections, also this one."""
        waiting = Waiting(size, stranger, end)
        self._waiting[waiting] = None
        self._count(waiting, size)
        for strangers in (True, False) if stranger else (False,):
            while self.bytes_of(strangers=strangers) > self._most[strangers]:
                oldest = next(each for each in self._waiting if each.stranger or not strangers)
                self.remove(oldest)
                oldest.end()
        return waiting

    def remove(self, waiting: Waiting) -> None:
        """Remove bytes that are sent or dropped. Idempotent."""
        if waiting in self._waiting:
            del self._waiting[waiting]
            self._count(waiting, -waiting.size)

    def _count(self, waiting: Waiting, size: int) -> None:
        self._sums[False] += size
        if waiting.stranger:
            self._sums[True] += size
