"""What is asked of the events and records, and how a page of them is found. The SQL is that of a store.

Queries run in reader threads, without a transaction. If the conversation is deleted between two statements,
the second finds less, and `Log` raises LogDeleted afterwards.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypedDict, TypeVar

import attrs
import orjson

from supervisor.journal.rows import Blob, Brief, Listing, Page, Record, RecordOrder, RecordPage, Stored
from supervisor.journal.storage.schema import BLOCK_EVENTS

T = TypeVar("T")

Order = Literal["asc", "desc"]

CURSOR_MAX_BYTES = 1024 * 1024
"""Bytes of bodies that a cursor takes from the file at once; one event may be larger. With a handful of
readers this bounds what slow subscribers can make the server hold."""

PAGE_MAX_BYTES = 64 * 1024 * 1024
"""Bytes of bodies in a page whose size was given as a number of events: far more than a hundred of the usual
size, and far below what SQLite can return in one piece (1 GB). One event may be larger."""

LIKE_MAX_CHARACTERS = 4096
"""Longest text handed to LIKE: SQLite refuses patterns of more than 50,000 bytes."""

SCAN_SECONDS = 0.5
"""Seconds that one read may look at events without an index. A million of the usual size take one to three
seconds; text beyond ASCII takes the longest."""

SCAN_ROWS = 2000
"""Events looked at by the first statement of such a read, some milliseconds. The following statements look at
more or fewer, depending on the time it took."""

STATEMENT_SECONDS = 0.05
"""Seconds that one such statement should take."""

SMALL_BYTES = 64 * 1024
"""Bodies up to this size are read by the statement that finds events by their ids. Larger ones are fetched
afterwards, in pieces, so that one statement never returns more than 500 of these (32 MB)."""


RECORDS: Final = (
    "SELECT id, record, status, title, created_at, updated_at, parent_id, epoch FROM conversations"
)
"""Records in all stores, in the order of the fields of Record."""


def class_name(kind: str | None) -> str | None:
    """A kind without the path before it."""
    return None if kind is None else kind.rpartition(".")[2]


class Wanted(TypedDict, total=False):
    """The filters of a search for events, by their names. See `Log.search`."""

    kind: str | None
    source: str | None
    body: str | None
    text: str | None
    since: str | None
    before: str | None


@attrs.frozen(kw_only=True)
class Filter:
    """The filters of `Wanted`; `None` filters nothing."""

    kind: str | None = attrs.field(default=None, converter=class_name)
    source: str | None = None
    body: str | None = None
    text: str | None = None
    since: str | None = None
    before: str | None = None

    @property
    def scans(self) -> bool:
        """Whether every event (of the kind) has to be looked at: only the kind has an index."""
        return any(
            value is not None for value in (self.source, self.body, self.text, self.since, self.before)
        )

    @property
    def needle(self) -> tuple[str, bool] | None:
        """The text to look for in bodies, and whether only the case of ASCII letters is to be folded. None
        for no such filter."""
        if self.body is None:
            return None
        # Bodies are JSON, where quotes and line breaks are escaped: escape the searched text too.
        text = json.dumps(self.body, ensure_ascii=False)[1:-1]
        ascii_alone = text.isascii() and len(text) <= LIKE_MAX_CHARACTERS
        return (text if ascii_alone else text.casefold()), ascii_alone

    @property
    def comparisons(self) -> Iterator[tuple[str, str]]:
        """The filters that compare a column of `events`: the left side with its operator, and the value."""
        for compared, value in (
            ("kind =", self.kind),
            ("source =", self.source),
            ("timestamp >=", self.since),
            ("timestamp <", self.before),
        ):
            if value is not None:
                yield compared, value

    @property
    def reads(self) -> bool:
        """Whether bodies have to be read."""
        return self.body is not None or self.text is not None

    def matches(self, body: bytes) -> bool:
        """Whether an event of this body passes the filters that read bodies."""
        needle = self.needle
        if needle is not None:
            text, ascii_alone = needle
            if not (text.lower().encode() in body.lower() if ascii_alone else contains_folded(body, text)):
                return False
        return self.text is None or says_folded(body, self.text.casefold())


EVERYTHING = Filter()
"""The filter that every event passes."""


class PageQuery(NamedTuple):
    """A page of a search: which events, in which order, from which event on, and how many."""

    asked: Filter
    order: Order
    page: str | None
    limit: int


class Head(NamedTuple):
    """A conversation's number in the database, its last event (-1 for an empty log), how often it had a new
    owner, and the owner: None where there is one server."""

    key: int
    last_seq: int
    generation: int
    owner: int | None


def contains_folded(body: bytes, folded: str) -> bool:
    """Whether a body contains a text, in upper or lower case."""
    return folded in body.decode("utf-8", "replace").casefold()


TEXTS: Final = frozenset({"text", "reasoning_content"})
"""Properties of an event, at any depth, that hold text for people."""


def says_folded(body: bytes, folded: str) -> bool:
    """Whether an event says a text (`TEXTS`), in upper or lower case."""
    try:
        waiting: list[object] = [orjson.loads(body)]
    except orjson.JSONDecodeError:  # nested deeper than orjson parses
        return False
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            for name, item in value.items():
                if name in TEXTS and isinstance(item, str):
                    if folded in item.casefold():
                        return True
                else:
                    waiting.append(item)
    return False


class Queries(ABC):
    """The reading side, over one connection. Synchronous: used by one reader thread at a time.

    `interrupt` alone is called by others, meanwhile. Raises what the store's `Faults` understand.
    """

    MARK: ClassVar[str]
    """What stands for a value in a statement."""

    STATUS_BY_CHANGE: ClassVar[str] = "status"
    """How the status is written in a search that is ordered by the last change."""

    LEFT_OUT: ClassVar[str]
    """The condition that leaves out ids, which are one value: a list of values has a bound."""

    @abstractmethod
    def interrupt(self) -> None:
        """End the statement that runs. Does not wait. Another thread runs it."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""

    def answer(self, query: Callable[[Queries], T]) -> T:
        """Run a query."""
        return query(self)

    # Events.

    @abstractmethod
    def load(self, conversation_id: str) -> Head | None:
        """Return what a log begins with."""

    @abstractmethod
    def newest(self, key: int, until: int, besides: str | None) -> Brief | None:
        """Return the last event with seq <= until that is of another kind than `besides`."""

    @abstractmethod
    def get(self, key: int, until: int, event_id: str) -> Stored | None:
        """Return the event of this id, if its seq <= until."""

    def count(self, key: int, until: int, kind: str) -> int:
        """Return how many events are of that kind, among those with seq <= until.

        The count up to the end of each whole block is stored, so the time does not grow with the events.
        """
        block = (until + 1) // BLOCK_EVENTS
        named = {"key": key, "kind": class_name(kind), "block": block, "until": until}
        return self._kind_count({**named, "begin": block * BLOCK_EVENTS})

    @abstractmethod
    def _kind_count(self, named: Mapping[str, object]) -> int:
        """Return the stored count before `block`, and those from `begin` on together."""

    @abstractmethod
    def get_blob(self, key: int, blob_id: str) -> Blob | None:
        """Return a blob of a conversation."""

    def read(
        self,
        key: int,
        after: int,
        until: int,
        limit: int,
        asked: Filter,
        most: int,
        *,
        updates: bool = False,
    ) -> list[Stored]:
        """Return matching events with after < seq <= until, oldest first: not more than `limit`, nor than
        `most` bytes of bodies, but at least one. `updates`: with those of each, which count."""
        sizes = self._sizes(key, after + 1, until, asked, "asc", limit, updates=updates)
        return self._rows(key, leading(sizes, most), "asc", updates=updates)

    def bodies(self, key: int, until: int, ids: Sequence[str]) -> Iterator[tuple[str, bytes]]:
        """Yield id and body of those of these events that exist with seq <= until, in any order."""
        large: list[tuple[int, int]] = []
        for seq, event_id, size, body in self._found(key, until, list(dict.fromkeys(ids))):
            if body is None:
                large.append((seq, size))
            else:
                yield event_id, body
        while large:
            seqs = leading(large, PAGE_MAX_BYTES)
            for row in self._rows(key, seqs, "asc"):
                yield row.id, row.body
            large = large[len(seqs) :]

    def search(self, key: int, until: int, wanted: PageQuery) -> Page:
        """Return one page of the matching events with seq <= until: shorter than `limit` where the events are
        very large, or where the time to search is over."""
        first, last = self._bounds(key, until, wanted)
        seqs, following = self._chosen(key, first, last, wanted)
        return Page(items=tuple(self._rows(key, seqs, wanted.order)), next_page_id=following)

    def listing(self, key: int, until: int, wanted: PageQuery) -> Listing:
        """Return the same page as `search`, as the bodies alone: no row becomes an object."""
        first, last = self._bounds(key, until, wanted)
        asked, order, _, limit = wanted
        if asked == EVERYTHING and limit * SMALL_BYTES <= PAGE_MAX_BYTES:
            if order == "asc":
                begin, end = first, min(last, first + limit - 1)
                beyond = end + 1 if end < last else None
            else:
                begin, end = max(first, last - limit + 1), last
                beyond = begin - 1 if begin > first else None
            whole = self._in_a_row(key, begin, end, beyond, order)
            if whole is not None:
                return whole
        seqs, following = self._chosen(key, first, last, wanted)
        return Listing(bodies=self._joined(key, seqs, order), next_page_id=following)

    def count_some(self, key: int, after: int, until: int, asked: Filter) -> tuple[int, int]:
        """Count matching events with after < seq <= until for a bounded time (`SCAN_SECONDS`). Return the
        count and the last event looked at."""
        found = 0
        for first, last in _parts(after + 1, until, "asc"):
            found, after = found + self._count(key, first, last, asked), last
        return found, after

    def _bounds(self, key: int, until: int, wanted: PageQuery) -> tuple[int, int]:
        """Return the first and the last sequence number among which the page is."""
        if wanted.page is not None:
            found = self._seq_of(key, wanted.page)
            if found is not None:
                return (found, until) if wanted.order == "asc" else (0, min(until, found))
        return 0, until

    def _chosen(self, key: int, first: int, last: int, wanted: PageQuery) -> tuple[list[int], str | None]:
        """Return the sequence numbers of a page's events, and the id of the next page's first event."""
        sizes, looked = self._look(key, first, last, wanted)
        seqs = leading(sizes[: wanted.limit], PAGE_MAX_BYTES)
        if len(sizes) > len(seqs):
            next_seq: int | None = sizes[len(seqs)][0]
        elif wanted.order == "asc":
            next_seq = looked + 1 if looked < last else None
        else:
            next_seq = looked - 1 if looked > first else None
        return seqs, None if next_seq is None else self._id_at(key, next_seq)

    def _look(self, key: int, first: int, last: int, wanted: PageQuery) -> tuple[list[tuple[int, int]], int]:
        """Return (seq, size) of matching events from `first` to `last`, up to one more than the page has, and
        the last event looked at: before the end where there are so many, or where the time is over."""
        asked, order, most = wanted.asked, wanted.order, wanted.limit + 1
        if not asked.scans:
            return self._sizes(key, first, last, asked, order, most), last if order == "asc" else first
        found: list[tuple[int, int]] = []
        looked = first - 1 if order == "asc" else last + 1
        for part in _parts(first, last, order):
            found += self._sizes(key, *part, asked, order, most - len(found))
            looked = part[1] if order == "asc" else part[0]
            if len(found) >= most:
                break
        return found, looked

    @abstractmethod
    def _sizes(
        self,
        key: int,
        first: int,
        last: int,
        asked: Filter,
        order: Order,
        limit: int,
        *,
        updates: bool = False,
    ) -> list[tuple[int, int]]:
        """Return (sequence number, bytes) of up to `limit` matching events from `first` to `last`, in that
        order. `updates`: with the bytes of those."""

    @abstractmethod
    def _count(self, key: int, first: int, last: int, asked: Filter) -> int:
        """Return how many events from `first` to `last` match."""

    @abstractmethod
    def _rows(self, key: int, seqs: Sequence[int], order: Order, *, updates: bool = False) -> list[Stored]:
        """Return the events of these sequence numbers, which are in that order."""

    @abstractmethod
    def _found(
        self, key: int, until: int, ids: Sequence[str]
    ) -> Iterator[tuple[int, str, int, bytes | None]]:
        """Yield sequence number, id, size and body of those of these events that exist, without bodies of
        more than `SMALL_BYTES`."""

    @abstractmethod
    def _in_a_row(self, key: int, begin: int, end: int, beyond: int | None, order: Order) -> Listing | None:
        """Return the events from `begin` to `end`, and the id of the event `beyond` them. None if one has
        more than `SMALL_BYTES`."""

    @abstractmethod
    def _joined(self, key: int, seqs: Sequence[int], order: Order) -> bytes:
        """Return the bodies of these events, which are in that order, joined by commas."""

    @abstractmethod
    def _seq_of(self, key: int, event_id: str) -> int | None: ...

    @abstractmethod
    def _id_at(self, key: int, seq: int) -> str | None: ...

    # Conversations.

    @abstractmethod
    def get_records(self, ids: Sequence[str]) -> list[Record | None]:
        """Return the records of these conversations, in the order asked."""

    def search_records(
        self,
        status: str | None,
        parent_id: str | None,
        order: RecordOrder,
        page: str | None,
        limit: int,
        without: Collection[str] = (),
    ) -> RecordPage:
        """Return one page of conversations. An unknown page id starts from the beginning."""
        column, direction, mark = order.column, order.direction, self.MARK
        condition, values = self._records_where(status, parent_id, without, column)
        if page is not None:
            place = f"SELECT {column}, key FROM conversations WHERE id = {mark}"  # noqa: S608 - one of two names
            for found in self._fetch(place, (self._stored(page),)):
                condition += f" AND ({column}, key) {'<=' if direction == 'DESC' else '>='} ({mark}, {mark})"
                values += found
        clauses = f"WHERE {condition} ORDER BY {column} {direction}, key {direction} LIMIT {mark}"
        records = list(map(self._record, self._fetch(f"{RECORDS} {clauses}", (*values, limit + 1))))
        following = records[limit].id if len(records) > limit else None
        return RecordPage(items=tuple(records[:limit]), next_page_id=following)

    def count_records(self, status: str | None, parent_id: str | None, without: Collection[str] = ()) -> int:
        """Return the number of conversations."""
        condition, values = self._records_where(status, parent_id, without)
        statement = f"SELECT count(*) FROM conversations WHERE {condition}"  # noqa: S608 - terms from here alone
        ((number,),) = self._fetch(statement, values)
        return int(number)

    def _records_where(
        self, status: str | None, parent_id: str | None, without: Collection[str], column: str = ""
    ) -> tuple[str, list[object]]:
        """Return the condition of these conversations, and its values. `column`: what they are ordered by."""
        terms = ["1 = 1"]
        values: list[object] = []
        named = self.STATUS_BY_CHANGE if column == "updated_at" else "status"
        for name, value in ((named, status), ("parent_id", parent_id)):
            if value is not None:
                terms.append(f"{name} = {self.MARK}")
                values.append(self._stored(value))
        if without:
            terms.append(self.LEFT_OUT)
            values.append(self._ids(without))
        return " AND ".join(terms), values

    @abstractmethod
    def _fetch(self, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]: ...

    @abstractmethod
    def _record(self, row: Sequence[Any]) -> Record: ...

    @abstractmethod
    def _ids(self, ids: Collection[str]) -> object: ...

    def _stored(self, text: str) -> str:
        """Return a text as it is stored."""
        return text


def leading(sizes: Sequence[tuple[int, int]], most: int) -> list[int]:
    """Return as many leading sequence numbers as fit `most` bytes together; at least one, if there is one."""
    total = 0
    taken: list[int] = []
    for seq, size in sizes:
        total += size
        if taken and total > most:
            break
        taken.append(seq)
    return taken


def _parts(first: int, last: int, order: Order) -> Iterator[tuple[int, int]]:
    """Cut a range into parts for one statement each, until all of it has been looked at, or the time to scan
    is over. The sizes follow the time that the caller takes for each."""
    rows = SCAN_ROWS
    end = time.monotonic() + SCAN_SECONDS
    while first <= last:
        begin = time.monotonic()
        if order == "asc":
            part = (first, min(last, first + rows - 1))
            first = part[1] + 1
        else:
            part = (max(first, last - rows + 1), last)
            last = part[0] - 1
        yield part
        now = time.monotonic()
        if now >= end:
            return
        if now - begin > STATEMENT_SECONDS:
            rows = max(1, rows // 2)
        elif now - begin < STATEMENT_SECONDS / 2:
            rows *= 2
