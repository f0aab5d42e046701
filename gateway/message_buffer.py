"""The message that a WebSocket is receiving, bounded."""

from __future__ import annotations

from typing import Any

import trio
from hypercorn.protocol.ws_stream import FrameTooLargeError, WebsocketBuffer
from wsproto.events import Message


class MessageBuffer(WebsocketBuffer):
    """The message that a WebSocket is receiving; `first` and `then` are limits in bytes.

    Hypercorn's own buffer keeps a message that exceeds its limit, and grows while the client sends. This one
    drops it with all that follows; `too_large` reports that.
    """

    def __init__(self, first: int, then: int) -> None:
        super().__init__(first)
        self._then = then
        self.too_large = trio.Event()

    def extend(self, event: Message[Any]) -> None:
        """Add the next piece of the message. Raises FrameTooLargeError; Hypercorn answers with 1009."""
        data = event.data
        size = len(data) if isinstance(data, bytes | bytearray) or data.isascii() else len(data.encode())
        if self.too_large.is_set() or self.length + size > self.max_length:
            super().clear()
            self.too_large.set()
            raise FrameTooLargeError
        before = self.length
        super().extend(event)
        self.length = before + size  # Hypercorn counts characters.

    def clear(self) -> None:
        """Begin the next message."""
        super().clear()
        self.max_length = self._then

    def stop(self) -> None:
        """Accept nothing more: the client is leaving."""
        self.max_length = self._then = 0
