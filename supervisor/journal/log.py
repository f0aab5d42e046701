"""One conversation's log, and the cursors that follow it."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TypeVar, Unpack

import trio

from supervisor.fairness import urgent
from supervisor.journal import queries
from supervisor.journal.cursor import Again, Cursor
from supervisor.journal.errors import (
    DuplicateEvent,
    JournalError,
    LogDeleted,
    NotOwner,
    SearchTooLong,
    TooLarge,
    again,
)
from supervisor.journal.feed import ITEM_OVERHEAD_BYTES, Tail
from supervisor.journal.growing import Growing
from supervisor.journal.port import Append
from supervisor.journal.queries import EVERYTHING, Filter, Order, PageQuery, Queries, Wanted
from supervisor.journal.readers import Readers
from supervisor.journal.rows import Blob, Brief, Frame, Listing, Page, RecordUpdate, Row, Stored
from supervisor.journal.storage.writer import Writer
from supervisor.journal.trouble import Trouble

T = TypeVar("T")

MAX_VALUE_BYTES = 512 * 1024 * 1024
"""Largest event, record or blob. SQLite takes 1,000,000,000 bytes in a row and breaks off at more, PostgreSQL
at 1 GiB; this is half of it, and far more than the limits on agents and clients allow."""

COUNT_SECONDS = 10.0
"""Seconds that counting may scan events: some ten million events."""


KNOWN_KINDS = 32
"""Kinds whose counts a log caches. Few logs have more; the built-in agent may name its own kinds."""


class Log:
    """The events of one conversation. The journal keeps one object while it is in use.

    An idle log, without cursors and queued writes, is a handful of integers. It is freed with its last
    reference.
    """

    def __init__(
        self,
        conversation_id: str,
        *,
        key: int | None,
        last_seq: int,
        writer: Writer,
        readers: Readers,
        generation: int = 0,
    ) -> None:
        self.conversation_id = conversation_id
        self.key = key
        self.generation = generation
        self.broken: JournalError | None = None
        self._writer = writer
        self._readers = readers
        self._last_seq = last_seq
        self._high_water = last_seq
        self._ticket = 0
        self._durable_ticket = 0
        self._error: JournalError | None = None
        self._tail: weakref.ref[Tail] | None = None
        self._growing: list[Growing] = []
        self._grown = 0
        self._moved = trio.lowlevel.ParkingLot()
        self._counted: dict[str, tuple[int, int]] = {}
        """For each kind: the event up to which it was counted, and the count."""

    @property
    def last_seq(self) -> int:
        """The last assigned sequence number, -1 before the first."""
        return self._last_seq

    @property
    def high_water(self) -> int:
        """The last durable sequence number, -1 before the first. Reads and cursors end here."""
        return self._high_water

    @property
    def deleted(self) -> bool:
        """Whether the conversation is deleted, or its deletion is under way."""
        return isinstance(self._error, LogDeleted)

    # Writing.

    def append(
        self, rows: Sequence[Row], record: RecordUpdate | None = None, blobs: Sequence[Blob] = ()
    ) -> int:
        """Assign sequence numbers to the events and queue them, with record and blobs in one transaction.

        Returns the last sequence number of the log. Does not wait: see `flushed` and `room`. Events are
        queued even while the journal is not writable: see `accept`.

        Raises DuplicateEvent if an id occurs twice here, TooLarge, LogDeleted, or JournalError if the journal
        failed; then nothing is queued.
        """
        self._check()
        _check_sizes(rows, record, blobs)
        if len(rows) > 1 and len({row.id for row in rows}) < len(rows):
            raise DuplicateEvent("an event id occurs twice in one append")
        seq = self._last_seq
        size = 0
        stored: list[Stored] = []
        for row in rows:
            seq += 1
            size += len(row.body) + ITEM_OVERHEAD_BYTES
            item = Stored(row.id, row.kind, row.source, row.timestamp, row.body, seq)
            if row.updates:
                item.updates = row.updates
                size += len(row.updates)
            stored.append(item)
        if record is not None:
            size += len(record.record)
        if blobs:
            size += sum(len(blob.data) for blob in blobs)
        # Before the numbers move: an append that is refused changes nothing here.
        self._writer.enqueue(
            Append(
                handle=self,
                rows=stored,
                record=record,
                blobs=blobs,
                size=size,
                last_seq=seq,
                ticket=self._ticket + 1,
            )
        )
        self._ticket += 1
        self._last_seq = seq
        tail = self._live_tail()
        if tail is not None:
            tail.extend(stored)
        if self._growing:
            self._note_ends(stored, tail)
        return seq

    def publish(self, frame: Frame) -> None:
        """Show a frame to the present cursors, after everything appended so far. Never stored.

        A cursor that falls far behind misses it. Raises as `append` does.
        """
        self._check()
        tail = self._live_tail()
        if tail is not None and tail.publish(frame):
            self._moved.unpark_all()

    def begin(self, item: Growing, *, alongside: bool = False) -> None:
        """Begin a growing item: it is shown, in its place, to the present cursors and to those that come
        before its event is durable. Raises as `append` does.

        One item grows at a time unless it is `alongside` the others: otherwise an open one before it is
        abandoned, and later cursors do not see it.
        """
        self._check()
        for each in self._growing:
            each.abandoned = each.abandoned or (each.open and (not alongside or each.id == item.id))
            if each.id == item.id:  # a client that reconnects may have had a part of it
                item.attempts = max(item.attempts, each.attempts)
                each.successor = item
        # Later cursors begin with the newest attempt alone.
        self._growing = [each for each in self._growing if not each.abandoned]
        item.number = self._grown
        self._grown += 1
        self._growing.append(item)

    def grow(self, item: Growing) -> None:
        """Show what was added to an item, after everything appended so far. Raises as `append` does."""
        self._check()
        tail = self._live_tail()
        if tail is not None and tail.grow(item):
            self._moved.unpark_all()

    def abandon(self, item: Growing, farewell: Frame | None = None) -> None:
        """Note that an item never becomes an event, and show `farewell` to the present cursors. A cursor that
        falls behind gets it too, if it knows of the item. Raises as `append` does."""
        item.abandoned = True
        self._growing = [each for each in self._growing if each is not item]
        tail = self._live_tail()
        if farewell is not None:
            self.publish(farewell)
            if tail is not None:
                item.farewell, item.farewell_at = farewell, tail.end - 1

    def _note_ends(self, rows: Sequence[Stored], tail: Tail | None) -> None:
        for item in self._growing:
            for row in rows:
                if row.id == item.id:
                    item.last_seq = row.seq
                    if tail is not None:
                        tail.ended(item, row.seq)

    def update_record(self, record: RecordUpdate) -> None:
        """Queue a new state of the conversation's record. Raises as `append` does."""
        self.append((), record)

    @property
    def trouble(self) -> Trouble | None:
        """Why nothing can be written at the moment, although writing is retried; None if it can."""
        return self._writer.trouble

    def accept(self) -> None:
        """Check that new work is accepted, before anything is queued.

        Raises JournalUnavailable while the journal is not writable, JournalError if it failed, LogDeleted.
        """
        self._check()
        self._writer.check()

    @property
    def settled(self) -> bool:
        """Whether everything appended so far is durable."""
        return self._durable_ticket == self._ticket

    async def flushed_unless_troubled(self) -> bool:
        """As `flushed`, but return False as soon as the journal is in trouble, because that takes a while."""
        return await self._flushed(gives_up=True)

    async def flushed(self) -> None:
        """Wait until everything appended so far is durable.

        Raises JournalError if it was lost, LogDeleted if the conversation was deleted meanwhile.

        Cancellation takes nothing back: what was appended is still written.
        """
        await self._flushed(gives_up=False)

    async def _flushed(self, *, gives_up: bool) -> bool:
        wanted = self._ticket
        if self.settled:
            await trio.lowlevel.checkpoint()
            return True
        self._writer.hurry()
        while self._durable_ticket < wanted:
            self._check()
            if gives_up and self._writer.trouble is not None:
                await trio.lowlevel.checkpoint()
                return False
            # The wait is not urgent during trouble.
            with urgent() if self._writer.trouble is None else nullcontext():
                await self._moved.park()
        return True

    @property
    def roomy(self) -> bool:
        """Whether `room` returns at once."""
        return self._error is None and self._writer.roomy

    async def room(self) -> None:
        """Wait while the undurable bytes of all conversations exceed a limit (backpressure). Raises as
        `append` does."""
        await self._writer.room()
        self._check()

    # Reading: only what is durable. All of these can be cancelled and raise LogDeleted or JournalError.

    async def get(self, event_id: str) -> Stored | None:
        """Return the event of this id, None if it is unknown."""
        until = self._high_water
        return await self._read(lambda asked, key: asked.get(key, until, event_id))

    async def bodies(self, ids: Sequence[str], form: Callable[[bytes], bytes]) -> list[bytes | None]:
        """Return `form(body)` for each of these events, in the given order, None for an unknown one. `form`
        runs in the reader's thread, on one body after the other, each once."""
        until = self._high_water

        def find(asked: Queries, key: int) -> list[bytes | None]:
            found = {each: form(body) for each, body in asked.bodies(key, until, ids)}
            return [found.get(each) for each in ids]

        return await self._read(find)

    async def read(
        self, after_seq: int, limit: int, *, kind: str | None = None, source: str | None = None
    ) -> list[Stored]:
        """Return events after a sequence number (-1 = all), oldest first.

        Returns up to `limit` events, fewer if they are very large, none if there is none. `kind` and `source`
        are as in `search`.
        """
        wanted = Filter(kind=kind, source=source)
        until, most = self._high_water, queries.PAGE_MAX_BYTES
        return await self._read(lambda asked, key: asked.read(key, after_seq, until, limit, wanted, most))

    async def newest(self, *, besides: str | None = None) -> Brief | None:
        """Return id and time of the last event whose kind is not `besides`."""
        until = self._high_water
        return await self._read(lambda asked, key: asked.newest(key, until, besides))

    async def search(
        self, *, order: Order = "asc", page: str | None = None, limit: int = 100, **wanted: Unpack[Wanted]
    ) -> Page:
        """Return a page of matching events in log order, or with `order="desc"` newest first.

        `kind`: a class name, alone or at the end of a dotted path. `body`: text that occurs in the event's
        JSON, `text`: text that occurs in what the event says (`queries.TEXTS`), both in upper or
        lower case. `since` (inclusive) and `before` (exclusive): timestamps in the form of
        the events. `page`: the id of the first event of the page; an unknown one starts from the beginning.

        A page has up to `limit` events, fewer if they are very large. A search by anything but `kind` looks
        at events for a bounded time (`queries.SCAN_SECONDS`). Its page may then be short or empty, and the
        next one continues at `next_page_id`. Only a page without `next_page_id` is the last.
        """
        return await self._page(Queries.search, PageQuery(Filter(**wanted), order, page, limit))

    async def listing(
        self, *, order: Order = "asc", page: str | None = None, limit: int = 100, **wanted: Unpack[Wanted]
    ) -> Listing:
        """Return the page that `search` returns for the same arguments, as the bodies alone."""
        return await self._page(Queries.listing, PageQuery(Filter(**wanted), order, page, limit))

    async def _page(self, query: Callable[[Queries, int, int, PageQuery], T], wanted: PageQuery) -> T:
        until = self._high_water
        return await self._read(lambda asked, key: query(asked, key, until, wanted), scans=wanted.asked.scans)

    async def count(self, **wanted: Unpack[Wanted]) -> int:
        """Return how many events match; the filters are those of `search`.

        Raises SearchTooLong when that would take more than `COUNT_SECONDS` (of real time).
        """
        filters = Filter(**wanted)
        until = self._high_water
        if filters == EVERYTHING:
            self._check()
            await trio.lowlevel.checkpoint_if_cancelled()
            return until + 1
        if filters.kind is not None and not filters.scans:
            return await self._count_kind(filters.kind, until)
        found, seen = 0, -1
        end = time.monotonic() + COUNT_SECONDS
        while seen < until:
            if time.monotonic() > end:
                raise SearchTooLong(
                    f"Counting took longer than {COUNT_SECONDS:g} s, with {until - seen} events to go. "
                    "Count by kind alone, or search page by page."
                )
            more, seen = await self._count_some(seen, until, filters)
            found += more
        return found

    async def _count_some(self, after: int, until: int, filters: Filter) -> tuple[int, int]:
        return await self._read(lambda asked, key: asked.count_some(key, after, until, filters), scans=True)

    async def _count_kind(self, kind: str, until: int) -> int:
        """Count the events of one kind. The cached count holds until an event is stored after it."""
        known = self._counted.get(kind)
        if known is not None and known[0] == until:
            self._check()
            await trio.lowlevel.checkpoint_if_cancelled()
            return known[1]
        number = await self._read(lambda asked, key: asked.count(key, until, kind))
        if number:  # a client may ask for any name: only kinds that occur are cached
            if known is None and len(self._counted) >= KNOWN_KINDS:
                self._counted.clear()
            self._counted[kind] = until, number
        return number

    async def get_blob(self, blob_id: str) -> Blob | None:
        """Return the bytes stored under this id."""
        return await self._read(lambda asked, key: asked.get_blob(key, blob_id))

    async def _read(self, query: Callable[[Queries, int], T], *, scans: bool = False) -> T:
        self._check()
        key = self.key
        assert key is not None
        found = await self._readers.run(lambda asked: query(asked, key), scans=scans)
        # If the conversation was deleted in between, the query may have found only a part of it.
        self._check()
        return found

    # Following.

    def subscribe(
        self,
        after_seq: int | None,
        *,
        again: Again | None = None,
        follows: bool = True,
        updates: bool = False,
    ) -> Cursor:
        """Return a cursor that starts after a sequence number: -1 = all, None = only what is new.

        A number beyond the end of the log means its end. Transients shown before now are not shown again; the
        cursor gets all of the items that are growing now. `again` returns the growing item that an event came
        from, for a cursor that fell so far behind that it missed the item. Without `follows` the cursor gets
        nothing of growing items. With `updates` its events have their updates, and it gets pieces of those
        to come.

        The cursor needs no closing: it is freed with its last reference. Raises as `append` does.
        """
        self._check()
        tail = self._live_tail()
        if tail is None:
            tail = Tail(self._last_seq + 1, self._high_water)
            self._tail = weakref.ref(tail)
        after = self._high_water if after_seq is None else min(max(after_seq, -1), self._last_seq)
        cursor = Cursor(
            self, tail, after, self._growing, self._grown, again, follows=follows, updates=updates
        )
        tail.cursors.add(cursor)
        if updates:
            tail.update_cursors.add(cursor)
        return cursor

    @property
    def shows_updates(self) -> bool:
        """Whether a cursor reads updates."""
        tail = self._live_tail()
        return tail is not None and bool(tail.update_cursors)

    @property
    def keeps_updates(self) -> bool:
        """Whether updates are stored."""
        return self._writer.keeps_updates

    def _live_tail(self) -> Tail | None:
        return None if self._tail is None else self._tail()

    def _check(self) -> None:
        if self._error is not None:
            raise again(self._error)

    # Notifications from the writer and the journal.

    def settle(self, last_seq: int, ticket: int) -> None:
        """Everything up to here is durable: move the high-water mark and wake the waiting tasks."""
        self._high_water = last_seq
        self._durable_ticket = ticket
        if self._growing:
            self._growing = [
                each for each in self._growing if each.last_seq is None or each.last_seq > last_seq
            ]
        tail = self._live_tail()
        if tail is not None:
            tail.commit(last_seq)
        self._moved.unpark_all()

    def fail(self, error: JournalError) -> None:
        """Make every use of this object raise, pending waits included."""
        if self._error is None:
            self._error = error
        self._moved.unpark_all()

    def revive(self) -> None:
        """The deletion failed: uses from now on do not raise."""
        if isinstance(self._error, LogDeleted):
            self._error = None

    def look_again(self) -> None:
        """Trouble has begun: wake the waiting tasks, which may give up."""
        self._moved.unpark_all()


def _check_sizes(rows: Sequence[Row], record: RecordUpdate | None, blobs: Sequence[Blob]) -> None:
    for row in rows:
        if len(row.body) > MAX_VALUE_BYTES:
            raise _too_large(f"an event ({row.kind})", row.body)
    if record is not None and len(record.record) > MAX_VALUE_BYTES:
        raise _too_large("the conversation's record", record.record)
    for blob in blobs:
        if len(blob.data) > MAX_VALUE_BYTES:
            raise _too_large("a blob", blob.data)


def _too_large(what: str, data: bytes) -> TooLarge:
    return TooLarge(
        f"{what} of {len(data)} bytes is too large for the journal, which takes {MAX_VALUE_BYTES}"
    )


class ReadingLog(Log):
    """A log of a conversation that another server may have: it is read, and nothing is appended."""

    def append(
        self, rows: Sequence[Row], record: RecordUpdate | None = None, blobs: Sequence[Blob] = ()
    ) -> int:
        """Raises NotOwner."""
        raise NotOwner(self.conversation_id, None)
