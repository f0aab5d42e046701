"""What waits to be sent to clients that do not read, bounded for all of them together.

Each connection has one answer at a time, or the next piece of a stream; that is its own bound. But answers
are larger than requests, and connections are many.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs

STRANGERS_BYTES: Final = 16 * 1024 * 1024
"""For all clients that have shown no key. What they may ask for has at most 350 KB, so forty of them may read
slowly at a time."""

ALL_BYTES: Final = 256 * 1024 * 1024
"""For all clients. The largest page of events has 64 MB."""


@attrs.define(eq=False)
class Waiting:
    """Bytes that wait. `end` ends the connection that they are for."""

    size: int
    stranger: bool
    end: Callable[[], None] = attrs.field(repr=False)


class Unsent:
    """Counts what waits. Where there is too much, the connection ends that has waited longest."""

    def __init__(self, strangers_bytes: int = STRANGERS_BYTES, all_bytes: int = ALL_BYTES) -> None:
        self._most = {True: strangers_bytes, False: all_bytes}
        self._waiting: dict[Waiting, None] = {}
        """The oldest first."""
        self._sums = {True: 0, False: 0}
        """Kept, not counted: every write asks for them, and many may wait."""

    def bytes_of(self, *, strangers: bool) -> int:
        """How much waits for strangers, or for all."""
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
        """They are sent, or given up. Idempotent."""
        if waiting in self._waiting:
            del self._waiting[waiting]
            self._count(waiting, -waiting.size)

    def _count(self, waiting: Waiting, size: int) -> None:
        self._sums[False] += size
        if waiting.stranger:
            self._sums[True] += size
