"""Estimates the structure of a frame from its bytes, before the parser would build far more.

A frame of brackets is a Python object for every two bytes: 20 million of them take seconds to make, with the
GIL held all the time, and gigabytes of memory. The counts here are never below the truth.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

MAX_DEPTH: Final = 200
"""Deepest nesting accepted.

The JSON encoder refuses values beyond 254 levels, so a deeper one could be read and then never be recorded.
"""

MAX_NODES: Final = 100_000
"""The most values in one frame, keys included.

The parser takes up to 0.2 microseconds for each and holds the GIL: 20 ms, and as much again when they are
freed. Real agents send some hundreds.
"""

WINDOW_BYTES: Final = 64 * 1024
"""Bytes examined at once: about a millisecond, after which other threads may run."""

LARGE_BYTES: Final = 64 * 1024
LARGE_CONTAINERS: Final = 2000
"""From so many bytes, or lists and objects, on a frame is taken apart in a thread. Below it takes about a
millisecond; the way into a thread and back takes a fifth of that."""

SMALL_BYTES: Final = 2 * LARGE_CONTAINERS
"""No frame of so few bytes is large: each of those has two."""

_OPENING: Final = (b"[", b"{")
_SEPARATING: Final = (b",", b":")
_STRUCTURE: Final = bytes.maketrans(b"{}", b"[]")
_NO_STRUCTURE: Final = bytes(set(range(256)) - set(b"[]{},:"))


def is_large(frame: bytes) -> bool:
    """Whether parsing a frame would block the event loop for too long."""
    size = len(frame)
    if size <= SMALL_BYTES:
        return False
    return size > LARGE_BYTES or sum(map(frame.count, _OPENING)) > LARGE_CONTAINERS


def too_heavy(frame: bytes, max_nodes: int = MAX_NODES, max_depth: int = MAX_DEPTH) -> str | None:
    """The reason not to parse a frame; None if it may be parsed.

    First all bytes are counted, which takes those within strings for structure; if that is too much, without
    strings. Everything that the parser can read before it fails is counted.
    """
    size = len(frame)
    if size <= max_depth and size < max_nodes:
        return None
    opening = frame.count(b"[") + frame.count(b"{")
    if opening <= max_depth and size < max_nodes:
        return None
    # Most frames end here, with a few counts of bytes.
    if opening <= max_depth and 1 + opening + sum(map(frame.count, _SEPARATING)) <= max_nodes:
        return None
    nodes, brackets = 1, bytearray()
    for structure, quotes in _outside_strings(frame, 2 * max_nodes):
        nodes += len(structure) - structure.count(b"]")
        if nodes > max_nodes or quotes > 2 * max_nodes:
            return f"more than {max_nodes} values"
        brackets += structure.translate(None, b",:")
    return f"nested deeper than {max_depth} levels" if _deeper(bytes(brackets), max_depth) else None


def _outside_strings(frame: bytes, most_quotes: int) -> Iterator[tuple[bytes, int]]:
    """The structure of the frame in pieces, braces as brackets, and how many quotes there were so far."""
    within = False
    quotes = 0
    carried = b""
    for start in range(0, len(frame), WINDOW_BYTES):
        piece = carried + frame[start : start + WINDOW_BYTES]
        carried = b""
        if (len(piece) - len(piece.rstrip(b"\\"))) % 2:  # what it escapes comes next
            piece, carried = piece[:-1], b"\\"
        piece = piece.replace(b"\\\\", b"").replace(b'\\"', b"")
        found = piece.count(b'"')
        quotes += found
        if quotes > most_quotes:
            yield b"", quotes
            return
        outside = piece.split(b'"')[1 if within else 0 :: 2]
        within ^= found % 2 == 1
        yield b"".join(outside).translate(_STRUCTURE, _NO_STRUCTURE), quotes


def _deeper(brackets: bytes, levels: int) -> bool:
    """Whether brackets are nested deeper than that. An unclosed one counts as too deep: the frame is not
    JSON."""
    for _ in range(levels):
        if not brackets:
            return False
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)
