"""Conversations as lists show them: JSON that is written again only when the record behind it has changed."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from supervisor.tight import tight

MOST_BYTES: Final = 2 * 1024 * 1024
"""Bytes of records and JSON that are kept: some hundred conversations of the usual size, several pages."""

LARGEST_PART: Final = 8
"""One conversation is kept if it takes up to this part (1/8) of the bound: a larger one would push out many
others."""

Write = Callable[[bytes], bytes]
"""Makes the JSON of a conversation from its stored record."""


class Listed:
    """The JSON of the conversations that were listed last. What was made of a record is true as long as the
    record is the same, byte for byte."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._bytes = 0
        self._kept: OrderedDict[str, tuple[bytes, bytes]] = OrderedDict()

    def json(self, conversation_id: str, stored: bytes, write: Write) -> bytes:
        """The JSON of this conversation, whose record is `stored`. Raises what `write` raises."""
        known = self._kept.get(conversation_id)
        if known is not None and known[0] == stored:
            self._kept.move_to_end(conversation_id)
            return known[1]
        written = tight(write(stored))
        self.forget(conversation_id)
        size = len(stored) + len(written)
        if size * LARGEST_PART > self._most:
            return written
        self._kept[conversation_id] = stored, written
        self._bytes += size
        while self._bytes > self._most:
            self.forget(next(iter(self._kept)))
        return written

    def forget(self, conversation_id: str) -> None:
        """Keep nothing of this one."""
        for each in self._kept.pop(conversation_id, ()):
            self._bytes -= len(each)
