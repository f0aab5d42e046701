"""The messages that a WebSocket is receiving, and those that wait to be taken, bounded."""

from __future__ import annotations

from collections import deque
from typing import Any, Final

import trio
from hypercorn.protocol.ws_stream import FrameTooLargeError, WebsocketBuffer
from wsproto.events import Message

from gateway.http.budgets import SMALL_BYTES, Received, Room, TooMuchHeld

MESSAGE_SECONDS: Final = 60.0
"""How long a large message may take to arrive: as long as a body, since it occupies shared room."""


class MessageBuffer(WebsocketBuffer):
    """The message that a WebSocket is receiving; `first` and `then` are limits in bytes.

    Hypercorn's own buffer keeps a message that exceeds its limit, and grows while the client sends. This one
    drops it with all later ones, and sets `too_large`. It also drops messages that do not fit into the shared
    budget (`received`), and sets `no_room`.
    """

    def __init__(self, first: int, then: int, received: Received) -> None:
        super().__init__(first)
        self._then = then
        self._received = received
        self._room: Room | None = None
        """The room of the message being received, if it is large."""
        self._since = 0.0
        self._waiting: deque[tuple[int, Room | None]] = deque()
        """Complete messages that are not yet processed: bytes without room, or their room."""
        self.too_large = trio.Event()
        self.no_room = trio.Event()

    def extend(self, event: Message[Any]) -> None:
        """Add the next piece of the message. Raises FrameTooLargeError; Hypercorn answers with 1009."""
        if self.no_room.is_set():
            return
        data = event.data
        size = len(data) if isinstance(data, bytes | bytearray) or data.isascii() else len(data.encode())
        if self.too_large.is_set() or self.length + size > self.max_length:
            self._drop()
            self.too_large.set()
            raise FrameTooLargeError
        before = self.length
        super().extend(event)
        self.length = before + size  # Hypercorn counts characters.

    async def make_room(self) -> None:
        """Wait for room if the message being received is large, or other messages wait. Called after every
        few bytes. Sets `no_room` on a timeout."""
        if not self.length or self._room is not None or self.no_room.is_set():
            return
        if self.length + sum(size for size, _ in self._waiting) <= SMALL_BYTES:
            return
        try:
            self._room = await self._received.room(self.max_length)
            self._since = trio.current_time()
        except TooMuchHeld:
            self._drop()
            self.no_room.set()

    def overdue(self, now: float) -> bool:
        """Whether a large message takes too long."""
        return self._room is not None and now - self._since > MESSAGE_SECONDS

    def to_message(self) -> dict[str, Any]:
        """The next complete message. It is held until `done` is called."""
        size, room, self._room = self.length, self._room, None
        if room is not None:
            # It was reserved for the largest message; this one has its real size.
            room.shrink(size)
            size = 0
        self._waiting.append((size, room))
        return super().to_message()

    def done(self) -> None:
        """Release the oldest message, which has been processed."""
        _, room = self._waiting.popleft()
        if room is not None:
            room.give()

    def clear(self) -> None:
        """Begin the next message."""
        super().clear()
        self.max_length = self._then

    def stop(self) -> None:
        """Accept nothing more: the client is leaving."""
        self.max_length = self._then = 0

    def end(self) -> None:
        """Release everything: the connection has ended."""
        self._drop()
        while self._waiting:
            self.done()

    def _drop(self) -> None:
        super().clear()
        if self._room is not None:
            self._room.give()
            self._room = None
