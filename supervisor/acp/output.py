"""Ring buffers of terminal output: the tail of each terminal, within a limit for all together. Pure."""

from __future__ import annotations

import codecs
import weakref
from collections import deque
from typing import Final

import attrs

DEFAULT_OUTPUT_BYTES: Final = 1024 * 1024
"""Bytes of output kept if the agent gives no limit."""

MAX_OUTPUT_BYTES: Final = 8 * 1024 * 1024
"""The most bytes of output kept, even if the agent asks for more."""

OUTPUTS_BYTES: Final = 16 * 1024 * 1024
"""Bytes kept for all terminals of one agent together.

Beyond it, each terminal keeps at most an equal share.
"""

_CHUNK_BYTES: Final = 16 * 1024
"""Pieces are joined to about this size, bytes: a command may write byte by byte, and each bytes object has an
overhead of fifty."""


class OutputRing:
    """The last `limit` bytes of an output, as text that begins at a character boundary.

    Each byte is copied once, for pieces of any size. `pool`: the shared limit of several rings, if any.
    """

    def __init__(self, limit: int, pool: OutputPool | None = None) -> None:
        self._limit = limit
        self._pool = pool
        self._chunks: deque[bytearray] = deque()
        self.held = 0
        """Bytes that are kept: the limit, and at most one piece more."""
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
        """Drop the oldest pieces until at most `size` bytes are kept."""
        while self.held > size:
            self._drop()
            self.truncated = True

    def _drop(self) -> None:
        self.held -= len(self._chunks.popleft())

    def text(self, *, final: bool) -> str:
        """The kept text. Unless `final`, an incomplete character at the end is left out."""
        return self.seen().text(final=final)

    def seen(self) -> Seen:
        """A snapshot to decode in another thread: decoding a full ring takes some 10 milliseconds."""
        *full, last = self._chunks or (bytearray(),)
        # Only the last piece still grows.
        return Seen((*full, bytes(last)), max(0, self.held - self._limit), self.truncated)


@attrs.frozen
class Seen:
    """The content of a ring at one time."""

    pieces: tuple[bytes | bytearray, ...] = attrs.field(repr=False)
    surplus: int
    """Bytes at the beginning that exceed the limit."""
    truncated: bool
    """Whether something before it is missing."""

    def last(self, size: int) -> Seen:
        """The snapshot's tail of about `size` bytes."""
        kept: deque[bytes | bytearray] = deque()
        held = 0
        for piece in reversed(self.pieces):
            if held >= size:
                return Seen(tuple(kept), 0, True)
            kept.appendleft(piece)
            held += len(piece)
        return self

    def text(self, *, final: bool) -> str:
        """See OutputRing.text. Decodes piece by piece, so that it holds the GIL only briefly."""
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
    """The rings of one agent. It holds weak references: a collected ring no longer counts."""

    def __init__(self, limit: int = OUTPUTS_BYTES) -> None:
        self._limit = limit
        self.rings: weakref.WeakSet[OutputRing] = weakref.WeakSet()

    def make_room(self) -> None:
        """Shrink the rings to equal shares if they exceed the limit together."""
        rings = list(self.rings)
        if sum(ring.held for ring in rings) > self._limit:
            share = self._limit // len(rings)
            for ring in rings:
                ring.shrink(share)
