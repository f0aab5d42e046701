"""The output of terminals that is kept: the tail of each, within a limit for all together. Pure."""

from __future__ import annotations

import codecs
import weakref
from collections import deque
from typing import Final

import attrs

DEFAULT_OUTPUT_BYTES: Final = 1024 * 1024
"""Bytes of output kept if the agent gives no limit."""

MAX_OUTPUT_BYTES: Final = 8 * 1024 * 1024
"""Bytes of output kept at most, whatever the agent's limit."""

OUTPUTS_BYTES: Final = 16 * 1024 * 1024
"""Bytes kept of all terminals of one agent together.

If that is not enough, each has an equal share, and the rest of the largest ones is dropped.
"""

_CHUNK_BYTES: Final = 16 * 1024
"""Pieces are joined to about this size: a command may write byte by byte, and an object takes fifty."""


class OutputRing:
    """The last `limit` bytes of an output, as text that begins at a character boundary.

    Each byte is copied once, whatever the sizes of the pieces. It shares `pool` with others, if there is one.
    """

    def __init__(self, limit: int, pool: OutputPool | None = None) -> None:
        self._limit = limit
        self._pool = pool
        self._chunks: deque[bytearray] = deque()
        self.held = 0
        """Bytes that are kept: those of the limit, and at most a piece more."""
        self.truncated = False
        if pool is not None:
            pool.rings.add(self)

    def add(self, data: bytes) -> None:
        """Add the next piece."""
        if self._chunks and len(self._chunks[-1]) < _CHUNK_BYTES:
            self._chunks[-1] += data
        else:
            self._chunks.append(bytearray(data))
        self.held += len(data)
        if self.held > self._limit:
            self.truncated = True
            while self._chunks and self.held - len(self._chunks[0]) >= self._limit:
                self._drop()
        if self._pool is not None:
            self._pool.make_room()

    def shrink(self, size: int) -> None:
        """Keep no more than so many bytes of what there is."""
        while self.held > size:
            self._drop()
            self.truncated = True

    def _drop(self) -> None:
        self.held -= len(self._chunks.popleft())

    def text(self, *, final: bool) -> str:
        """The kept text. Unless `final`, a character whose last bytes have not come yet is left out."""
        return self.seen().text(final=final)

    def seen(self) -> Seen:
        """A snapshot, to be decoded in another thread: that takes some 10 milliseconds for a full ring."""
        *full, last = self._chunks or (bytearray(),)
        # Only the last piece still grows.
        return Seen((*full, bytes(last)), max(0, self.held - self._limit), self.truncated)


@attrs.frozen
class Seen:
    """The content of a ring at one time."""

    pieces: tuple[bytes | bytearray, ...] = attrs.field(repr=False)
    surplus: int
    """Bytes at the beginning that are beyond the limit."""
    truncated: bool
    """Whether something before it is missing."""

    def last(self, size: int) -> Seen:
        """The same, without what comes before about the last `size` bytes."""
        kept: deque[bytes | bytearray] = deque()
        held = 0
        for piece in reversed(self.pieces):
            if held >= size:
                return Seen(tuple(kept), 0, True)
            kept.appendleft(piece)
            held += len(piece)
        return self

    def text(self, *, final: bool) -> str:
        """See OutputRing.text. Holds the GIL for no longer than a piece takes."""
        start = self.surplus
        if self.truncated:
            beginning = b"".join(self.pieces[:2])
            last = min(start + 3, len(beginning))
            while start < last and beginning[start] & 0xC0 == 0x80:
                start += 1
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        texts = []
        for piece in self.pieces:
            texts.append(decoder.decode(memoryview(piece)[start:]))
            start = max(0, start - len(piece))
        return "".join(texts) + decoder.decode(b"", final)


class OutputPool:
    """The rings of one agent. A ring without references no longer counts."""

    def __init__(self, limit: int = OUTPUTS_BYTES) -> None:
        self._limit = limit
        self.rings: weakref.WeakSet[OutputRing] = weakref.WeakSet()

    def make_room(self) -> None:
        """Shrink the rings so that all together are below the limit."""
        rings = list(self.rings)
        if sum(ring.held for ring in rings) > self._limit:
            share = self._limit // len(rings)
            for ring in rings:
                ring.shrink(share)
