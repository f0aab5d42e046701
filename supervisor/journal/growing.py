"""The streaming form of an event: text that grows piece by piece until the event replaces it. Pure, no I/O.

The text is kept once for all followers. A follower is an offset into each channel. It takes the bytes between
its offset and the end, so what a slow follower has not taken is coalesced into fewer, larger frames, and a
slow follower costs no memory. A follower that joins later begins at the item's start.

Texts of several channels (what is said, what is thought) grow side by side; each is JSON text, encoded once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from supervisor.journal.rows import Shown

GROWING_MAX_BYTES: Final = 4 * 1024 * 1024
"""Bytes of one item's texts that are kept while it grows: more than its event may have, 3 MiB. The oldest
bytes beyond that are dropped, and a follower that has not taken them gets a note instead (`Wire.cut`)."""

GROWING_TRIMMED_BYTES: Final = GROWING_MAX_BYTES // 2
"""An item that grew too large is cut to this: half at once, since cutting the front moves the rest."""

FRAME_BYTES: Final = 32 * 1024
"""Bytes of JSON text that are merged into one frame, unless a single piece has more: far below what any
client accepts, and large enough that the overhead of a frame is negligible."""

CACHED_FRAMES: Final = 8
"""Frames that are cached for followers that take the same pieces at the same time."""


class Place(NamedTuple):
    """The end of a piece in its channel: byte offset, the piece's number in its item, and its timestamp."""

    offset: int
    order: int
    time: str


Places = Mapping[str, Place]
"""For each channel that has any text: how far it goes, or how far a follower has taken it."""

NOWHERE: Final = Place(0, -1, "")


class Wire(Protocol):
    """How an item is encoded for clients."""

    def begun(self, item: Growing, attempt: int) -> Shown:
        """The item begins, or restarts where `attempt` is larger than before."""

    def piece(self, item: Growing, channel: str, content: bytes, end: Place, attempt: int) -> Shown:
        """The next pieces of a channel. `content`: the inside of a JSON string."""

    def cut(self, size: int) -> bytes:
        """The placeholder for that many dropped bytes: the inside of a JSON string."""


class _Channel:
    __slots__ = ("data", "marks", "order", "start", "time")

    def __init__(self) -> None:
        self.data = bytearray()
        self.start = 0  # the offset of its first byte
        self.order = -1
        self.time = ""
        self.marks: list[Place] = []
        """Ends of pieces about every `FRAME_BYTES`: where its text is cut into frames."""

    @property
    def end(self) -> int:
        return self.start + len(self.data)

    def place(self) -> Place:
        return Place(self.end, self.order, self.time)


class Growing:
    """One item. `id` is that of the event that it becomes, `anchor_seq` the last event before it. `attempt`
    is larger than 0 when the agent has restarted the item."""

    def __init__(self, item_id: str, anchor_seq: int, wire: Wire, attempt: int = 0) -> None:
        self.id = item_id
        self.anchor_seq = anchor_seq
        self.wire = wire
        self.attempt = attempt
        """The attempt shown to followers that take it from its start."""
        self.attempts = attempt
        """The latest attempt shown. It rises each time that the item is replayed from its start to a client
        that may have had a part of it."""
        self.number = -1
        """Its number among the items of its log."""
        self.last_seq: int | None = None
        """The number of its event, once that is appended."""
        self.abandoned = False
        """Whether it never becomes an event."""
        self.farewell: Shown | None = None
        """The frame that announces the end without an event."""
        self.farewell_at = -1
        """The position of that frame in the tail."""
        self.successor: Growing | None = None
        """The item that replaced this one under the same id."""
        self._channels: dict[str, _Channel] = {}
        self._frames: dict[tuple[str, int, int, int], Shown] = {}
        self._size = 0
        self._uncounted = 0

    @property
    def size(self) -> int:
        """Bytes of its texts in memory."""
        return self._size

    @property
    def latest(self) -> Growing:
        """The item that replaced this one last, or itself."""
        item = self
        while item.successor is not None:
            item = item.successor
        return item

    def uncounted(self) -> int:
        """Bytes added since the last call."""
        size, self._uncounted = self._uncounted, 0
        return size

    @property
    def open(self) -> bool:
        """Whether it may still grow."""
        return self.last_seq is None and not self.abandoned

    def is_over(self, after_seq: int) -> bool:
        """Whether its event is at or before this number."""
        return self.last_seq is not None and self.last_seq <= after_seq

    def add(self, channel: str, content: bytes, order: int, time: str) -> None:
        """Add a piece: the inside of a JSON string. `order` counts the pieces of all channels."""
        texts = self._channels.get(channel)
        if texts is None:
            texts = self._channels[channel] = _Channel()
        size = len(content)
        last = texts.marks[-1].offset if texts.marks else texts.start
        if texts.end + size - last > FRAME_BYTES and texts.end > last:
            texts.marks.append(texts.place())
        texts.data += content
        texts.order = order
        texts.time = time
        self._size += size
        self._uncounted += size
        if self._size > GROWING_MAX_BYTES:
            self._trim()

    def places(self) -> dict[str, Place]:
        """The current end of each channel."""
        return {name: texts.place() for name, texts in self._channels.items()}

    def reaches(self, had: Places) -> bool:
        """Whether a follower at these places has taken all of it."""
        return all(texts.end <= had.get(name, NOWHERE).offset for name, texts in self._channels.items())

    def lacks(self, had: Places) -> bool:
        """Whether something after these places has been dropped from memory."""
        return any(texts.start > had.get(name, NOWHERE).offset for name, texts in self._channels.items())

    def since(self, had: Places, until: Places | None, attempt: int) -> list[Shown]:
        """Return the frames after the places `had`, up to `until` (None: its end), in the order of their last
        pieces. Dropped pieces are replaced by a note (`Wire.cut`)."""
        found: list[tuple[Place, str, int]] = []
        for name, texts in self._channels.items():
            begin = had.get(name, NOWHERE).offset
            end = texts.place() if until is None else until.get(name, NOWHERE)
            if end.offset <= begin:
                continue
            if texts.marks:
                at = bisect_right(texts.marks, begin, key=attrgetter("offset"))
                for mark in texts.marks[at:]:
                    if mark.offset >= end.offset:
                        break
                    found.append((mark, name, begin))
                    begin = mark.offset
            found.append((end, name, begin))
        if len(found) > 1:
            found.sort(key=lambda each: each[0].order)
        return [
            frame
            for end, name, begin in found
            if (frame := self._frame(name, begin, end, attempt)) is not None
        ]

    def _frame(self, name: str, begin: int, end: Place, attempt: int) -> Shown | None:
        key = (name, begin, end.offset, attempt)
        # Followers that keep up take the same pieces: the first one pays for the encoding.
        frame = self._frames.get(key)
        if frame is None:
            texts = self._channels[name]
            if end.offset <= texts.start:
                return None
            content = bytes(texts.data[max(0, begin - texts.start) : end.offset - texts.start])
            if begin < texts.start:
                content = self.wire.cut(texts.start - begin) + content
            frame = self.wire.piece(self, name, content, end, attempt)
            if len(self._frames) >= CACHED_FRAMES:
                # The oldest: followers move forward together.
                del self._frames[next(iter(self._frames))]
            self._frames[key] = frame
        return frame

    def _trim(self) -> None:
        """Drop the beginnings of its texts: of the largest, and where that is not enough, of the next."""
        for texts in sorted(self._channels.values(), key=lambda each: -len(each.data)):
            if not texts.marks:
                continue
            least = texts.end - max(0, len(texts.data) - (self._size - GROWING_TRIMMED_BYTES))
            last = len(texts.marks) - 1
            at = next((at for at, mark in enumerate(texts.marks) if mark.offset >= least), last)
            gone = texts.marks[at].offset - texts.start
            self._size -= gone
            del texts.data[:gone]
            texts.start += gone
            del texts.marks[: at + 1]
            if self._size <= GROWING_TRIMMED_BYTES:
                return


class Follower:
    """How far one cursor is in an item."""

    __slots__ = ("attempt", "cut", "had", "item")

    def __init__(self, item: Growing, *, late: bool) -> None:
        self.item = item
        self.had: Places | None = None
        """None: the cursor has had nothing of it yet, not even its beginning."""
        self.cut = False
        """Whether it missed text that was dropped."""
        self.attempt = item.attempt
        if late:
            item.attempts += 1
            self.attempt = item.attempts

    def take(self, until: Places | None = None) -> list[Shown]:
        """Return the frames not yet taken. Where a part of them was dropped, the item restarts."""
        item = self.item
        frames: list[Shown] = []
        if self.had is None:
            self.had = {}
            frames.append(item.wire.begun(item, self.attempt))
        elif item.reaches(self.had) if until is None else not _goes_beyond(until, self.had):
            return frames
        if item.lacks(self.had):
            if self.had:
                self.restart(frames)
            self.cut = True
            until = None  # all at once: piece by piece, the item would restart again and again
        frames += item.since(self.had, until, self.attempt)
        self.had = _later(self.had, item.places() if until is None else until)
        return frames

    def of(self, item: Growing) -> Follower:
        """Return a follower of the item that replaced this one, in a later attempt than any shown before."""
        attempts = self.item.attempts
        item.attempts = max(item.attempts, attempts)
        return Follower(item, late=item.attempt <= attempts)

    def restart(self, frames: list[Shown]) -> None:
        """Restart the item for this follower, in a new attempt."""
        self.item.attempts += 1
        self.attempt = self.item.attempts
        frames.append(self.item.wire.begun(self.item, self.attempt))


def _goes_beyond(until: Places, had: Places) -> bool:
    return any(end.offset > had.get(name, NOWHERE).offset for name, end in until.items())


def _later(had: Places, until: Places) -> Places:
    if not had:
        return until
    return {**had, **{name: end for name, end in until.items() if end.offset > had.get(name, NOWHERE).offset}}
