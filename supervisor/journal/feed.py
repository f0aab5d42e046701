"""The in-memory tail of a log, shared by all its cursors. Pure: no I/O, no waiting.

The tail is a window on the sequence of items (events and transients, in the order in which they came). A
*position* counts items since the tail was made. Four marks, in this order::

    start <= visible <= end          positions: first item kept; first one not yet shown; one past the last
    first_seq <= next_seq            events kept are first_seq ... next_seq - 1, without gaps

An item is visible once every event before it, and itself if it is one, is durable. When the tail grows too
large its oldest items go, shown or not: events come back from the file, transients do not.

A growing item (`growing`) appears as spans, one for each part that came between two other items. The last
span is open while nothing has come after it: it grows in its place, so a cursor that has taken some of it
stays on it.
"""

from __future__ import annotations

import weakref
from bisect import bisect_right
from collections.abc import Sequence
from typing import Protocol

from supervisor.journal.growing import Growing, Places
from supervisor.journal.rows import Frame, Stored, Transient

TAIL_MAX_BYTES = 5 * 1024 * 1024
"""Bytes kept in memory for one conversation with subscribers; a cursor that is further behind reads the file.
More than the writer lets gather, so that a cursor which keeps up never has to: measured with ten cursors on
one flooding log, 41,000 rows/s reach all of them, and 16,000 when a batch is larger than the tail."""

TAIL_TRIMMED_BYTES = TAIL_MAX_BYTES * 3 // 4
"""A tail that grew too large is cut to this: a quarter at once, since cutting the front moves the rest."""

TAIL_SETTLED_BYTES = 64 * 1024
"""When every cursor has everything, a tail larger than this is released: an idle conversation with an open
socket uses little memory, and a reader's short pause does not force it to read the file."""

ITEM_OVERHEAD_BYTES = 400
"""What an item costs besides its payload: measured, an event's object and its four short strings."""


class Span:
    """The part of a growing item that came between two others. `end` is None while it is last and open."""

    __slots__ = ("end", "item")

    def __init__(self, item: Growing) -> None:
        self.item = item
        self.end: Places | None = None


Entry = Stored | Transient | Span


class Positioned(Protocol):
    """The part of a cursor that the tail needs."""

    position: int


class Tail:
    """The tail of a log. Its cursors share it: the last one to go takes the tail with it."""

    def __init__(self, next_seq: int, high_water: int) -> None:
        self.first_seq = next_seq
        self.next_seq = next_seq
        self.high_water = high_water
        self.start = 0
        self.visible = 0
        self.cursors: weakref.WeakSet[Positioned] = weakref.WeakSet()
        self.update_cursors: weakref.WeakSet[Positioned] = weakref.WeakSet()
        """Those that read updates."""
        # (seq, is_transient) sorts: a transient goes with the event before it.
        self._keys: list[tuple[int, bool]] = []
        self._items: list[Entry] = []
        self._sizes: list[int] = []
        self._bytes = 0
        self._ended: dict[int, Growing] = {}

    @property
    def end(self) -> int:
        """The position after the last item."""
        return self.start + len(self._items)

    @property
    def size(self) -> int:
        """Size of the items in bytes."""
        return self._bytes

    def append(self, row: Stored) -> None:
        """Add an event; it becomes visible when it is durable. Its `seq` must be `next_seq`."""
        self.extend((row,))

    def extend(self, rows: Sequence[Stored]) -> None:
        """Add events whose numbers continue from `next_seq`."""
        if not rows:
            return
        assert rows[0].seq == self.next_seq
        self.next_seq += len(rows)
        self._close_last()
        self._keys += [(row.seq, False) for row in rows]
        self._items += rows
        sizes = [len(row.body) + len(row.updates) + ITEM_OVERHEAD_BYTES for row in rows]
        self._sizes += sizes
        self._bytes += sum(sizes)
        if self._bytes > TAIL_MAX_BYTES:
            self._trim()

    def publish(self, frame: Frame) -> bool:
        """Add a transient. Return whether it is visible at once, because nothing before it is undurable."""
        self._add((self.next_seq - 1, True), Transient(frame), frame.size)
        return self._advance()

    def grow(self, item: Growing) -> bool:
        """Note that an item has grown. Return whether that is visible at once."""
        last = self._items[-1] if self._items else None
        if isinstance(last, Span) and last.end is None and last.item is item:
            return self.visible == self.end
        self._add((self.next_seq - 1, True), Span(item), 0)
        return self._advance()

    def ended(self, item: Growing, seq: int) -> None:
        """Note which event an item has become: its spans may be dropped before the event is."""
        self._ended[seq] = item

    def became(self, seq: int) -> Growing | None:
        """The growing item that became this event of the tail; None for an event that did not grow."""
        return self._ended.get(seq)

    def exhausted(self, position: int) -> bool:
        """Whether a cursor at this position has to wait once it has taken all of an open span."""
        left = self.visible - position
        return left <= 0 or (left == 1 and self._is_open(position))

    def _is_open(self, position: int) -> bool:
        entry = self._items[position - self.start]
        return isinstance(entry, Span) and entry.end is None

    def commit(self, high_water: int) -> bool:
        """Note that events up to this one are durable. Return whether something became visible."""
        self.high_water = high_water
        return self._advance()

    def locate(self, after_seq: int) -> int | None:
        """Return the position right after an event, or None when events after it are no longer kept."""
        if after_seq + 1 < self.first_seq:
            return None
        return self.start + bisect_right(self._keys, (after_seq, False))

    def take(self, position: int, born: int, max_items: int) -> tuple[list[Entry], int]:
        """Return visible items from a kept position on, and the position after them, or on an open span.

        Transients before `born` are skipped: they were shown before the cursor existed.
        """
        items, position = self._take(position, born, max_items)
        if items and position == self.end and isinstance(items[-1], Span) and items[-1].end is None:
            position -= 1
        return items, position

    def _take(self, position: int, born: int, max_items: int) -> tuple[list[Entry], int]:
        if position >= born:
            # A cursor may wait at a position that is not visible yet.
            stop = max(position, min(self.visible, position + max_items))
            return self._items[position - self.start : stop - self.start], stop
        items: list[Entry] = []
        while position < self.visible and len(items) < max_items:
            item = self._items[position - self.start]
            if position >= born or not isinstance(item, Transient):
                items.append(item)
            position += 1
        return items, position

    def settle(self) -> None:
        """Release what every cursor has taken, if that is worth the work."""
        if self._bytes > TAIL_SETTLED_BYTES:
            had = min((cursor.position for cursor in self.cursors), default=self.visible)
            if had > self.start:
                self._drop(min(had, self.visible) - self.start)

    def _add(self, key: tuple[int, bool], item: Entry, size: int) -> None:
        self._close_last()
        self._keys.append(key)
        self._items.append(item)
        self._sizes.append(size + ITEM_OVERHEAD_BYTES)
        self._bytes += size + ITEM_OVERHEAD_BYTES
        if self._bytes > TAIL_MAX_BYTES:
            self._trim()

    def _trim(self) -> None:
        over = self._bytes - TAIL_TRIMMED_BYTES
        count = 0
        # The newest stays, however large.
        while over > 0 and count < len(self._sizes) - 1:
            over -= self._sizes[count]
            count += 1
        self._drop(count)

    def _close_last(self) -> None:
        span = self._items[-1] if self._items else None
        if type(span) is not Span or span.end is not None:
            return
        span.end = span.item.places()
        came = span.item.uncounted()
        self._sizes[-1] += came
        self._bytes += came

    def _drop(self, count: int) -> None:
        dropped = self._keys[:count]
        self._bytes -= sum(self._sizes[:count])
        del self._keys[:count], self._items[:count], self._sizes[:count]
        self.start += count
        self.visible = max(self.visible, self.start)
        for seq, transient in dropped:
            if not transient:
                self.first_seq = seq + 1
                self._ended.pop(seq, None)

    def _advance(self) -> bool:
        before = self.visible
        visible = bisect_right(self._keys, (self.high_water, True))
        self.visible = max(before, self.start + visible)
        return self.visible > before
