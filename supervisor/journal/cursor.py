"""A position in a log, and the items after it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import trio

from supervisor.journal import queries
from supervisor.journal.feed import Span, Tail
from supervisor.journal.growing import Follower, Growing
from supervisor.journal.queries import EVERYTHING, Queries
from supervisor.journal.rows import Frame, Item, Shown, Stored, Transient

Again = Callable[[Stored], Growing | None]
"""Returns the growing item that an event came from; None for an event that did not grow."""


class Source(Protocol):
    """The part of a log that a cursor needs."""

    _moved: trio.lowlevel.ParkingLot

    @property
    def high_water(self) -> int:
        """The last durable sequence number."""

    def _check(self) -> None: ...

    async def _read(self, query: Callable[[Queries, int], list[Stored]]) -> list[Stored]: ...


class Cursor:
    """A position in a log, for one task: integers, and a share in the tail of recent items.

    It returns every durable event after its start exactly once and in order, and the transients among them
    unless it has fallen behind the tail. It returns all of a growing item, coalesced into as many pieces as
    it keeps up with, and the last piece before the event that the item becomes.
    """

    __slots__ = (
        "__weakref__",
        "_after_seq",
        "_again",
        "_born",
        "_followed",
        "_follows",
        "_live_seq",
        "_log",
        "_number",
        "_tail",
        "_updates",
        "_waiting",
        "position",
    )

    def __init__(
        self,
        log: Source,
        tail: Tail,
        after_seq: int,
        growing: Iterable[Growing],
        number: int,
        again: Again | None,
        *,
        follows: bool = True,
        updates: bool = False,
    ) -> None:
        self._log = log
        self._tail = tail
        self._after_seq = after_seq
        self._born = tail.visible
        self._number = number
        """The number of the log's next growing item: earlier ones are those in `growing`, or over."""
        self._again = again
        self._live_seq = log.high_water
        self._follows = follows
        self._updates = updates
        self._followed = {
            item.id: Follower(item, late=True) for item in growing if follows and not item.is_over(after_seq)
        }
        self._waiting = [each for each in self._followed.values() if each.item.size]
        """Items that began before this cursor, and of which it has returned nothing yet."""
        found = tail.locate(after_seq)
        # A position before the tail's start means: behind the tail, read the file.
        self.position = tail.start - 1 if found is None else found

    @property
    def after_seq(self) -> int:
        """The last event that this cursor has returned, or the one it started after."""
        return self._after_seq

    async def next(self, max_items: int = 256) -> list[Item]:
        """Wait until something after the cursor is visible; return it in order, at least one item.

        A growing item may yield more frames than `max_items`.

        Cancellation takes nothing: the next call returns what this one would have returned. Raises LogDeleted
        when the conversation is deleted, JournalError when the journal fails.
        """
        log, tail = self._log, self._tail
        if self._waiting or not tail.start <= self.position >= tail.visible:
            await trio.lowlevel.checkpoint()  # otherwise the park below is the checkpoint
        while True:
            log._check()
            items: list[Item] = []
            if self._waiting:
                self._catch_up(items)
                if items:
                    return items
            if self.position < tail.start:
                self._add_farewells(items)
                if items:
                    return items
                found = tail.locate(self._after_seq)
                if found is None:
                    rows = await self._read_file(max_items)
                    if rows:
                        return rows
                    continue
                self.position = found
            entries, self.position = tail.take(self.position, self._born, max_items)
            for entry in entries:
                if isinstance(entry, Stored):
                    self._add_event(entry, items, tail.became(entry.seq))
                elif isinstance(entry, Span):
                    self._follow(entry, items)
                elif self._concerns(entry.frame):
                    items.append(entry)
            exhausted = tail.exhausted(self.position)
            if exhausted:
                tail.settle()
            if items:
                return items
            if exhausted:
                await log._moved.park()

    async def _read_file(self, max_items: int) -> list[Item]:
        log = self._log
        # Only up to where the tail begins, so that the transients in the tail are not skipped.
        until = min(log.high_water, self._tail.first_seq - 1)
        if until <= self._after_seq:
            await log._moved.park()
            return []
        after = self._after_seq
        rows = await log._read(
            lambda asked, key: asked.read(
                key, after, until, max_items, EVERYTHING, queries.CURSOR_MAX_BYTES, updates=self._updates
            )
        )
        items: list[Item] = []
        for row in rows:
            follower = self._followed.get(row.id)
            if follower is not None and follower.item.abandoned:
                del self._followed[row.id]
                items += self._replay(follower, row)
            elif row.seq > self._live_seq and self._again is not None and follower is None:
                missed = self._again(row)
                if missed is not None:
                    items += map(Transient, Follower(missed, late=False).take())
            self._add_event(row, items)
        return items

    def _add_event(self, row: Stored, items: list[Item], item: Growing | None = None) -> None:
        """Add an event, and before it the rest of the growing `item` that became it, where that is known."""
        self._after_seq = row.seq
        if self._followed or item is not None:
            follower = self._followed.pop(row.id, None)
            if follower is None:
                if item is not None and self._follows and item.number >= self._number:
                    follower = Follower(item, late=False)
            elif item is not None and follower.item is not item:
                follower = follower.of(item)
            if follower is not None:
                items += map(Transient, follower.take())
                if follower.cut:
                    # Only for the session socket: the events socket cannot restart an item.
                    items += [
                        Transient(Frame(session=each.frame.session)) for each in self._replay(follower, row)
                    ]
        items.append(row)
        if self._waiting:
            self._catch_up(items)

    def _replay(self, follower: Follower, row: Stored) -> Sequence[Transient]:
        """Replay the whole item after a part was dropped, or after the agent gave an attempt up."""
        if self._again is None:
            return ()
        whole = self._again(row) or Growing(row.id, row.seq - 1, follower.item.wire)
        return [Transient(frame) for frame in follower.of(whole).take()]

    def _follow(self, span: Span, items: list[Item]) -> None:
        item = span.item
        follower = self._followed.get(item.id)
        if follower is not None and follower.item is not item:
            if follower.item.number > item.number:
                return  # from an attempt that the agent has given up since
            follower = self._followed[item.id] = follower.of(item)
        if follower is None:
            if not self._follows or item.number < self._number or item.is_over(self._after_seq):
                return  # over before this cursor existed, or already returned with its event
            self._followed = {each: old for each, old in self._followed.items() if not old.item.abandoned}
            follower = self._followed[item.id] = Follower(item, late=False)
        items += map(Transient, follower.take(span.end))

    def _concerns(self, frame: Shown) -> bool:
        """Whether this cursor needs the frame: it does not end an item that was over before the cursor
        existed, unless that item may have restarted since."""
        if not isinstance(frame, Frame):
            return True
        if frame.piece is not None:
            return self._updates
        ends = frame.ends
        return not 0 <= ends < self._number or any(
            follower.item.number == ends for follower in self._followed.values()
        )

    def _add_farewells(self, items: list[Item]) -> None:
        """Announce the items that ended without an event while this cursor was behind the tail."""
        for follower in list(self._followed.values()):
            item = follower.item.latest
            if item.farewell is not None and self.position <= item.farewell_at < self._tail.start:
                del self._followed[item.id]
                if follower.had is not None:
                    items.append(Transient(item.farewell))

    def _catch_up(self, items: list[Item]) -> None:
        """Begin the items that were growing when this cursor started, once it reaches their anchors."""
        waiting = self._waiting
        while waiting and (waiting[0].had is not None or waiting[0].item.anchor_seq <= self._after_seq):
            follower = waiting.pop(0)
            item = follower.item
            if follower.had is None and not item.abandoned and self._followed.get(item.id) is follower:
                items += map(Transient, follower.take())
