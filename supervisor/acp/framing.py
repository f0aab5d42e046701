"""Newline framing with a size cap, over bytes that arrive in any pieces. No I/O.

The protocol puts one JSON message on each line, UTF-8, ended by a line feed. Real agents also send carriage
returns, a byte order mark, blank lines, and lines over the cap.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import attrs
import orjson

MAX_FRAME_BYTES: Final = 16 * 1024 * 1024
"""Default cap of a frame, bytes. Real messages are far smaller: the longest line in the recorded sessions
with real agents has 8 KB. The largest legitimate ones are a picture, or the content of a file that the agent
writes. Models take pictures of 5 MB (7 MB in base64); a source file of 8 MB fits with every byte escaped. A
replayed session comes as one message per update. Reading a frame takes three times its length in memory, for
each agent at the same time. A setting raises the cap for agents that need more."""

HEAD_BYTES: Final = 4096
"""Bytes of an oversize frame that are searched for its id and method. Real agents write these first."""

_BOM: Final = b"\xef\xbb\xbf"
_BRACE: Final = ord("{")
_SPACE: Final = ord(" ")
"""The greatest byte that JSON counts as whitespace."""


@attrs.frozen
class Oversize:
    """A discarded frame, longer than the cap.

    `size` is its length in bytes without the line feed. `id` and `method` are what a shallow scan of its
    first bytes found (None: not found). `answers` is true if it has a result or an error, and so answers a
    request of Ostler. `reason` is why a frame within the cap was refused.
    """

    size: int
    id: int | str | None = None
    method: str | None = None
    answers: bool = False
    reason: str | None = None


class FrameSplitter:
    """Splits a byte stream into frames.

    Keeps at most the current frame. Scans each byte once, for pieces of any size.
    """

    def __init__(self, max_frame: int = MAX_FRAME_BYTES) -> None:
        if max_frame < 1:
            raise ValueError("max_frame must be at least 1 byte")
        self.max_frame = max_frame
        self._partial = bytearray()
        self._discarded = 0  # bytes of the oversize frame under way; 0 = none is

    @property
    def between(self) -> bool:
        """Whether the next byte begins a frame."""
        return not self._partial and not self._discarded

    def feed(self, data: bytes) -> list[bytes | Oversize]:
        """Take the next piece of the stream; return the frames that it completes, in order."""
        return [frame for frame in self.frames(data) if frame]

    def frames(self, data: bytes) -> Iterator[bytes | Oversize]:
        """The lazy form of `feed`, since a piece may hold thirty thousand frames. Exhaust it before the next
        piece. Blank lines are yielded as empty frames, for the same reason."""
        first, *middle = data.split(b"\n")
        if not middle:
            self._extend(first)
            return
        last = middle.pop()
        if self._partial or self._discarded:
            self._extend(first)
            yield self._complete()
        else:
            middle.insert(0, first)
        for line in middle:
            # The usual case: an object, no trailing whitespace, within the cap.
            if line and line[0] == _BRACE and line[-1] > _SPACE and len(line) <= self.max_frame:
                yield line
            else:
                self._extend(line)
                yield self._complete()
        self._extend(last)

    def finish(self) -> list[bytes | Oversize]:
        """Return the last frame, if the stream ended without a line feed."""
        frame = self._complete()
        return [frame] if frame else []

    def _extend(self, data: bytes) -> None:
        if self._discarded:
            self._discarded += len(data)
            self._partial += data[: HEAD_BYTES - len(self._partial)]
            return
        size = len(self._partial) + len(data)
        # One byte more than the cap, for the carriage return, which is not part of the frame.
        if size > self.max_frame and not (
            size == self.max_frame + 1 and (data or self._partial).endswith(b"\r")
        ):
            self._discarded = size
            self._partial += data[: max(0, HEAD_BYTES - len(self._partial))]
            self._partial = self._partial[:HEAD_BYTES]
            return
        self._partial += data

    def _complete(self) -> bytes | Oversize:
        kept, discarded = self._partial, self._discarded
        if not kept:
            return b""
        self._partial, self._discarded = bytearray(), 0
        if discarded:
            return salvage(bytes(kept), discarded)
        return bytes(kept).removeprefix(_BOM).strip(b" \t\r")


_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[{}\[\]:,"]|[^\s{}\[\]:,"]+', re.DOTALL)


def salvage(head: bytes, size: int, reason: str | None = None) -> Oversize:
    """Describe an unread frame of `size` bytes by its first bytes. Scans the members of the outermost object
    in `head`, without entering their values."""
    found: dict[str, int | str] = {}
    answers = False
    depth = 0
    key: bytes | None = None
    before = b""
    head = head.removeprefix(_BOM)
    for match in _TOKEN.finditer(head):
        token = match.group()
        if token == b'"' or match.end() == len(head):
            break  # cut off in the middle of a string or, perhaps, of a number
        if token in (b"{", b"["):
            depth += 1
        elif token in (b"}", b"]"):
            depth -= 1
        elif depth == 1 and token == b":":
            key = before
            answers = answers or key in (b'"result"', b'"error"')
        elif depth == 1 and key in (b'"id"', b'"method"') and before == b":":
            value = _scalar(token)
            if value is not None:
                found[key.strip(b'"').decode()] = value
        before = token
    method = found.get("method")
    return Oversize(size, found.get("id"), method if isinstance(method, str) else None, answers, reason)


def _scalar(token: bytes) -> int | str | None:
    try:
        value = orjson.loads(token)
    except orjson.JSONDecodeError:
        return None
    return value if isinstance(value, int | str) and not isinstance(value, bool) else None
