"""What clients send and Ostler holds as a whole, bounded for all of them together: bodies of requests, and
messages on WebSockets.

Each has its own limit, but connections are many. Small ones are not counted: a connection holds more than
that of what it has read and what is not taken yet.
"""

from __future__ import annotations

from typing import Final

import attrs
import trio

SMALL_BYTES: Final = 64 * 1024
"""What a body or the messages of a socket may have without being counted, so that large ones hold up none of
them. The most connections together hold 256 MiB of it."""

ALL_BYTES: Final = 128 * 1024 * 1024
"""For all bodies, and again for all messages: eight of the largest at a time. In memory one takes up to three
times its bytes while it is parsed, and one is parsed at a time."""

OPERATORS_BYTES: Final = 32 * 1024 * 1024
"""The same for the operators, on the control socket."""

WAIT_SECONDS: Final = 2.0
"""How long one waits for room. It takes half a second to send 16 MiB on most networks."""


class TooMuchHeld(Exception):
    """There is no room at the moment. `retry_after` is in seconds."""

    retry_after = WAIT_SECONDS

    def __init__(self) -> None:
        super().__init__("Too many large requests at once. Try again in a moment.")


class Received:
    """Counts what is held. Who needs room waits its turn for it."""

    def __init__(self, most: int = ALL_BYTES) -> None:
        self.most = most
        self.held = 0
        """Bytes that are given out, whether they have come or not."""
        self._waiting: dict[Room, trio.Event] = {}
        """The oldest first."""

    async def room(self, size: int) -> Room:
        """Room for so many bytes, which the caller gives back. One that is larger than all gets all.

        Raises TooMuchHeld after WAIT_SECONDS. Cancellation takes none.
        """
        room = Room(self, min(size, self.most))
        if not self._waiting and self._fits(room):
            self.held += room.size
            return room
        granted = self._waiting[room] = trio.Event()
        try:
            with trio.move_on_after(WAIT_SECONDS):
                await granted.wait()
                return room
        except BaseException:
            if granted.is_set():
                room.give()
            raise
        finally:
            if self._waiting.pop(room, None) is not None:
                self._grant()
        if granted.is_set():
            return room
        raise TooMuchHeld

    def spare(self, size: int) -> Room | None:
        """Room for what can do without; None where nothing is to be spared for it: half is for others."""
        if self._waiting or self.held + size > self.most // 2:
            return None
        self.held += size
        return Room(self, size)

    def give(self, size: int) -> None:
        """So many bytes are held no more."""
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
        """Give back what is more than so many bytes."""
        rest = max(0, self.size - size)
        if rest:
            self.size -= rest
            self._received.give(rest)

    def give(self) -> None:
        """Give it back; idempotent."""
        self.shrink(0)
