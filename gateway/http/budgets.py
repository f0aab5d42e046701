"""Memory budgets of all connections: for what clients send, and for answers that they do not read.

Each request body, message and answer has its own limit, but connections are many. Small bodies and messages
are not counted: a connection's read buffers hold more than that anyway. A connection has at most one answer,
or one piece of a stream, at a time; but answers are larger than requests.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import attrs
import trio

SMALL_BYTES: Final = 64 * 1024
"""Bytes of a body, or of a socket's messages, that are not counted, so that large ones never delay small
ones. All connections together hold at most 256 MiB of it."""

RECEIVED_BYTES: Final = 128 * 1024 * 1024
"""Budget of all bodies, and again of all messages: eight of the largest at a time. While it is parsed, one
takes up to three times its bytes in memory; one is parsed at a time."""

OPERATORS_BYTES: Final = 32 * 1024 * 1024
"""The same for the operators, on the control socket."""

WAIT_SECONDS: Final = 2.0
"""How long a body or message waits for room. Most networks send 16 MiB in half a second."""

STRANGERS_BYTES: Final = 16 * 1024 * 1024
"""Unsent bytes for all clients that have presented no key. Answers to them have at most 350 KB, so forty of
them may read slowly at a time."""

UNSENT_BYTES: Final = 256 * 1024 * 1024
"""Unsent bytes for all clients. The largest page of events has 64 MB."""


class TooMuchHeld(Exception):
    """There is no room at the moment. `retry_after` is in seconds."""

    retry_after = WAIT_SECONDS

    def __init__(self) -> None:
        super().__init__("Too many large requests at once. Try again in a moment.")


class Received:
    """Counts the bytes held. Waiting for room is first come, first served."""

    def __init__(self, most: int = RECEIVED_BYTES) -> None:
        self.most = most
        self.held = 0
        """Reserved bytes, whether they have arrived or not."""
        self._waiting: dict[Room, trio.Event] = {}
        """The oldest first."""

    async def room(self, size: int) -> Room:
        """Reserve room for so many bytes; the caller releases it. A larger request than the budget gets all
        of it.

        Raises TooMuchHeld after WAIT_SECONDS. Cancellation reserves nothing.
        """
        room = Room(self, min(size, self.most))
        # Not past those that wait, or small requests would keep a large one waiting.
        if not self._waiting and self._fits(room):
            self.held += room.size
            return room
        granted = self._waiting[room] = trio.Event()
        try:
            with trio.move_on_after(WAIT_SECONDS):
                await granted.wait()
                return room
        except BaseException:
            # Granted and cancelled in the same moment: the caller will not release it.
            if granted.is_set():
                room.give()
            raise
        finally:
            if self._waiting.pop(room, None) is not None:
                # Those behind it may fit.
                self._grant()
        if granted.is_set():
            return room
        raise TooMuchHeld

    def reserve_optional(self, size: int) -> Room | None:
        """Reserve room for an optional buffer; None if it would use more than half of the budget, or others
        wait."""
        if self._waiting or self.held + size > self.most // 2:
            return None
        self.held += size
        return Room(self, size)

    def give(self, size: int) -> None:
        """Release so many bytes."""
        self.held -= size
        self._grant()

    def _fits(self, room: Room) -> bool:
        return self.held + room.size <= self.most

    def _grant(self) -> None:
        while self._waiting and self._fits(room := next(iter(self._waiting))):
            self.held += room.size
            self._waiting.pop(room).set()


@attrs.define(eq=False)
class Room:
    """Room for one body or message."""

    _received: Received = attrs.field(repr=False)
    size: int

    def shrink(self, size: int) -> None:
        """Release all but so many bytes."""
        rest = max(0, self.size - size)
        if rest:
            self.size -= rest
            self._received.give(rest)

    def give(self) -> None:
        """Give it back; idempotent."""
        self.shrink(0)


@attrs.define(eq=False)
class Waiting:
    """Unsent bytes of one write. `end` ends their connection."""

    size: int
    stranger: bool
    end: Callable[[], None] = attrs.field(repr=False)


class Unsent:
    """Counts unsent bytes. Beyond the limit, it ends the connection that has waited longest."""

    def __init__(self, strangers_bytes: int = STRANGERS_BYTES, all_bytes: int = UNSENT_BYTES) -> None:
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
                # Not the largest: a client that reads what it asked for is not to blame.
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
