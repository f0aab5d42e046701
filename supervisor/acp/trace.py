"""The last frames of a connection, for bug reports."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final, Literal

import attrs

TRACE_FRAMES: Final = 256
"""The number of frames that are kept: those of a few turns before a fault."""

TRACE_BYTES: Final = 512
"""Bytes of each frame that are kept: method, ids and the beginning of the content. Together 128 KiB."""

Direction = Literal["<", ">"]
"""`<` from the agent, `>` to the agent."""


@attrs.frozen
class TraceLine:
    """One kept frame: monotonic time in seconds, size in bytes, beginning of its text. `process`: the number
    of the agent's process, from 1."""

    direction: Direction
    time: float
    size: int
    text: str
    process: int = 1


class Trace:
    """A ring of the last frames. They are stored unmasked; `render` masks them."""

    def __init__(self, frames: int = TRACE_FRAMES, frame_bytes: int = TRACE_BYTES) -> None:
        self._ring: deque[tuple[Direction, float, int, bytes]] = deque(maxlen=frames)
        self._frame_bytes = frame_bytes
        self._recorded = 0

    def record(self, direction: Direction, time: float, frame: bytes, size: int | None = None) -> None:
        """Record a frame, with or without its line feed. `size` if it was not `len(frame)`."""
        self._ring.append((direction, time, len(frame) if size is None else size, frame[: self._frame_bytes]))
        self._recorded += 1

    @property
    def first(self) -> int:
        """The number of the oldest kept frame, counted from 0."""
        return self._recorded - len(self._ring)

    @property
    def recorded(self) -> int:
        """How many frames there have been."""
        return self._recorded

    def shrink(self, frames: int) -> None:
        """Keep only the newest frames. Call it when recording has ended."""
        self._ring = deque(self._ring, maxlen=frames)

    def render(self, mask: Callable[[str], str] | None = None, process: int = 1) -> list[TraceLine]:
        """Render the kept frames, oldest first, as those of the process number `process`.

        Session ids are cut to their last 8 characters: they are bearer tokens. `mask` is applied to each
        text, which may be cut off, for secrets that only the caller knows.
        """
        texts = [head.decode("utf-8", "replace").rstrip("\n") for *_, head in self._ring]
        texts = mask_session_ids(texts)
        return [
            TraceLine(direction, time, size, mask(text) if mask else text, process)
            for (direction, time, size, _), text in zip(self._ring, texts, strict=True)
        ]


SHOWN_CHARS: Final = 8
"""Characters of a session id that are shown: enough to tell sessions apart, too few to use one."""

_SESSION_ID: Final = re.compile(r'("[sS]ession_?[iI]d"\s*:\s*")([^"]*)("?)')


def shorten_session_id(text: str, session_id: str | None) -> str:
    """Cut the id to its last SHOWN_CHARS characters wherever `text` contains it; a shorter id stays."""
    if session_id is None or len(session_id) <= SHOWN_CHARS:
        return text
    return text.replace(session_id, "…" + session_id[-SHOWN_CHARS:])


def mask_session_ids(texts: Iterable[str]) -> list[str]:
    """Mask every session id that any of `texts` names, in all of them.

    The ids are found by the key `sessionId`. An id that is cut off by the end of its text is removed.
    """
    texts = list(texts)
    known = {match[2] for text in texts for match in _SESSION_ID.finditer(text) if match[3]}
    long = sorted((value for value in known if len(value) > SHOWN_CHARS), key=len, reverse=True)
    masked = []
    for text in texts:
        shown = _SESSION_ID.sub(lambda match: match[0] if match[3] else match[1], text)
        for value in long:
            shown = shown.replace(value, "…" + value[-SHOWN_CHARS:])
        masked.append(shown)
    return masked
