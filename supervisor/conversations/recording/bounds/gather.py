"""A streamed text, gathered within bounds; what exceeds them goes to blobs. Pure.

Only the text's head, its tail and at most one blob of the rest are in memory. Each byte is moved a fixed
number of times, for pieces of any size.
"""

from __future__ import annotations

from supervisor.conversations.recording.bounds.attachments import (
    BLOB_BYTES,
    TEXT,
    Attachment,
    Original,
    Originals,
)
from supervisor.conversations.recording.bounds.truncation import Clipped, clip_text, joined


class Gathered:
    """One text. `limit`: its bytes in an event. The rest is stored under `blob_id`.

    The pieces contain no secrets any more.
    """

    def __init__(self, blob_id: str, limit: int, originals: Originals) -> None:
        self._limit = limit
        self._originals = originals
        self._original = Original(blob_id, originals, TEXT, masked=True)
        self._head = b""
        self._tail = b""
        self._flushed = 0
        # Bytes, not a list of strings: a string of one character takes fifty.
        self._buffer = bytearray()

    def __bool__(self) -> bool:
        """Whether there is any text."""
        return bool(self._buffer or self._flushed)

    @property
    def held(self) -> int:
        """Bytes in memory."""
        return len(self._head) + len(self._tail) + len(self._buffer)

    def so_far(self) -> str:
        """What of it is in memory: all of it, or its beginning and its newest part."""
        held = self._head + self._tail + bytes(self._buffer)
        return held.decode("utf-8", "replace")

    def add(self, piece: str) -> list[Attachment]:
        """Add the next piece. Returns what is to be written now."""
        self._buffer += piece.encode("utf-8", "surrogatepass")
        attachments: list[Attachment] = []
        while len(self._buffer) > BLOB_BYTES:
            attachments += self._flush(BLOB_BYTES)
        return attachments

    def fold(self, limit: int) -> list[Attachment]:
        """Keep no more than about `limit` bytes from now on, also in the event."""
        self._limit = min(self._limit, limit)
        attachments = self._flush(len(self._buffer)) if len(self._buffer) > self._limit else []
        half = self._limit // 2
        if self._flushed:
            self._head, self._tail = self._head[:half], self._tail[-half:]
        return attachments

    def close(self) -> Clipped:
        """End the text: returns it within its limit, and what is still to be written."""
        if not self._flushed:
            text = self._buffer.decode("utf-8", "surrogatepass")
            self._buffer = bytearray()
            return clip_text(text, self._original.blob_id, self._limit, self._originals, masked=True)
        attachments = self._flush(len(self._buffer))
        cut = self._flushed - len(self._head) - len(self._tail)
        return Clipped(joined(self._head, self._tail, cut, self._original.where()), tuple(attachments))

    def _flush(self, size: int) -> list[Attachment]:
        if not size:
            return []
        if size < len(self._buffer):
            while self._buffer[size] & 0xC0 == 0x80:  # between characters
                size -= 1
        raw = bytes(self._buffer[:size])
        del self._buffer[:size]
        half = self._limit // 2
        if not self._flushed:
            self._head = raw[:half]
        self._flushed += len(raw)
        self._tail = (self._tail + raw[-half:])[-half:]
        return self._original.put(raw)
