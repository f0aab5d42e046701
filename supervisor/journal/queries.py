"""The reading side: plain functions on a connection, run in reader threads.

They run without a transaction. If the conversation is deleted between two statements, the second finds less,
and `Log` raises LogDeleted afterwards.

Reads of events return their rows packed into one: a thread that reads row by row waits for the GIL after
every row, up to the interpreter's switch interval. Measured for 256 rows of 1 kB next to a busy loop: 338 ms
row by row, 6 ms packed (0.35 and 0.53 ms next to an idle one).
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, Literal, NamedTuple, TypedDict, TypeVar

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
afterwards, in pieces, so that one statement never returns more than `_CHUNK` of these (32 MB)."""

_CHUNK = 500
"""Ids in one IN list."""


def _class_name(kind: str | None) -> str | None:
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

    kind: str | None = attrs.field(default=None, converter=_class_name)
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


EVERYTHING = Filter()
"""The filter that every event passes."""


class PageQuery(NamedTuple):
    """A page of a search: which events, in which order, from which event on, and how many."""

    asked: Filter
    order: Order
    page: str | None
    limit: int


def prepare(connection: sqlite3.Connection) -> None:
    """Set up a connection for the queries of this module; from then on it cannot write."""
    connection.create_function("contains_folded", 2, _contains_folded, deterministic=True)
    connection.create_function("says_folded", 2, _says_folded, deterministic=True)
    # The kernel caches the file, so each reader's own cache stays small (KiB).
    connection.execute("PRAGMA cache_size = -1024")
    connection.execute("PRAGMA query_only = ON")


def _contains_folded(body: bytes, folded: str) -> bool:
    return folded in body.decode("utf-8", "replace").casefold()


TEXTS: Final = frozenset({"text", "reasoning_content"})
"""Properties of an event, at any depth, that hold text for people."""


def _says_folded(body: bytes, folded: str) -> bool:
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


_SIZES = "SELECT json_group_array(json_array(seq, size)) FROM (SELECT seq, {} AS size FROM events {})"

_PACKED = (
    "SELECT json_group_array(json_array(seq, id, kind, source, timestamp, length(body))), "
    "CAST(group_concat(CAST(body AS TEXT), '') AS BLOB) FROM ("
    "SELECT seq, id, kind, source, timestamp, body FROM events "
    "WHERE conversation = ? AND seq IN ({}) ORDER BY seq {})"
)


_PACKED_WITH_UPDATES = (
    "SELECT json_group_array(json_array(seq, id, kind, source, timestamp, length(body), "
    "ifnull(length(updates), 0))), "
    "CAST(group_concat(CAST(body AS TEXT) || ifnull(CAST(updates AS TEXT), ''), '') AS BLOB) FROM ("
    "SELECT seq, id, kind, source, timestamp, body, updates FROM events "
    "WHERE conversation = ? AND seq IN ({}) ORDER BY seq)"
)


_JOINED = (
    "SELECT CAST(group_concat(CAST(body AS TEXT), ',') AS BLOB) FROM ("
    "SELECT body FROM events WHERE conversation = ? AND seq IN ({}) ORDER BY seq {})"
)

# A whole page in one statement, where its events are consecutive: the number of large bodies, which are left
# out; the id of the event after the page; the bodies.
_IN_A_ROW = (
    "SELECT total(length(body) > :small), "
    "(SELECT id FROM events WHERE conversation = :key AND seq = :beyond), "
    "CAST(group_concat(CASE WHEN length(body) <= :small THEN CAST(body AS TEXT) END, ',') AS BLOB) FROM ("
    "SELECT body FROM events WHERE conversation = :key AND seq BETWEEN :begin AND :end ORDER BY seq {})"
)

# The index is named: without statistics SQLite chooses the one by sequence number and reads every event of
# the conversation. Measured, 500 ids among a million events take 320 ms that way and 3 ms this way.
_FOUND = (
    "SELECT json_group_array(json_array(seq, id, size)), "
    "CAST(group_concat(CASE WHEN size <= ? THEN CAST(body AS TEXT) ELSE '' END, '') AS BLOB) FROM ("
    "SELECT seq, id, body, length(body) AS size FROM events INDEXED BY events_by_id "
    "WHERE conversation = ? AND seq <= ? AND id IN ({}))"
)

_BY_ID = (
    "SELECT id, kind, source, timestamp, body, seq FROM events INDEXED BY events_by_id "
    "WHERE conversation = ? AND seq <= ? AND id = ?"
)


def _sizes(
    connection: sqlite3.Connection, clauses: str, values: Sequence[object], size: str = "length(body)"
) -> list[tuple[int, int]]:
    """Return (sequence number, size in bytes) of the events that the clauses select, in their order."""
    (found,) = connection.execute(_SIZES.format(size, clauses), values).fetchone()
    return [(seq, size) for seq, size in orjson.loads(found)]


def _first(sizes: Sequence[tuple[int, int]], most: int) -> list[int]:
    """Return as many leading sequence numbers as fit `most` bytes together; at least one, if there is one."""
    total = 0
    taken: list[int] = []
    for seq, size in sizes:
        total += size
        if taken and total > most:
            break
        taken.append(seq)
    return taken


def _fetch(connection: sqlite3.Connection, key: int, seqs: Sequence[int], order: Order) -> list[Stored]:
    """Return the events of these sequence numbers, which are in that order. Reads them packed."""
    rows: list[Stored] = []
    for marks, chunk in _in_lists(seqs):
        meta, bodies = connection.execute(_PACKED.format(marks, order), (key, *chunk)).fetchone()
        at = 0
        for seq, event_id, kind, source, timestamp, length in orjson.loads(meta):
            body = bodies[at : at + length]
            rows.append(
                Stored(id=event_id, kind=kind, source=source, timestamp=timestamp, body=body, seq=seq)
            )
            at += length
    return rows


def _fetch_with_updates(connection: sqlite3.Connection, key: int, seqs: Sequence[int]) -> list[Stored]:
    """The same in ascending order, with the updates of each event."""
    rows: list[Stored] = []
    for marks, chunk in _in_lists(seqs):
        meta, content = connection.execute(_PACKED_WITH_UPDATES.format(marks), (key, *chunk)).fetchone()
        at = 0
        for seq, event_id, kind, source, timestamp, length, more in orjson.loads(meta):
            body = content[at : at + length]
            at += length
            rows.append(Stored(event_id, kind, source, timestamp, body, seq, updates=content[at : at + more]))
            at += more
    return rows


def _in_lists(ids: Sequence[T]) -> Iterator[tuple[str, list[T]]]:
    """Split unique ids or numbers into chunks for IN lists: the question marks and the values of each."""
    wanted = list(dict.fromkeys(ids))
    for at in range(0, len(wanted), _CHUNK):
        chunk = wanted[at : at + _CHUNK]
        yield ",".join("?" * len(chunk)), chunk


def load(connection: sqlite3.Connection, conversation_id: str) -> tuple[int, int] | None:
    """Return the key of a conversation and its last sequence number (-1 for an empty log)."""
    found = connection.execute(
        "SELECT key, (SELECT coalesce(max(seq), -1) FROM events WHERE conversation = key) "
        "FROM conversations WHERE id = ?",
        (conversation_id,),
    ).fetchone()
    return None if found is None else (int(found[0]), int(found[1]))


def read(
    connection: sqlite3.Connection,
    key: int,
    after: int,
    until: int,
    limit: int,
    asked: Filter,
    most: int,
    *,
    updates: bool = False,
) -> list[Stored]:
    """Return matching events with after < seq <= until, oldest first: not more than `limit`, nor than `most`
    bytes of bodies, but at least one. `updates`: with those of each, which count."""
    condition, values = _where(key, until, asked)
    clauses = f"WHERE {condition} AND seq > ? ORDER BY seq LIMIT ?"
    size = "length(body) + ifnull(length(updates), 0)" if updates else "length(body)"
    sizes = _sizes(connection, clauses, (*values, after, limit), size)
    seqs = _first(sizes, most)
    return _fetch_with_updates(connection, key, seqs) if updates else _fetch(connection, key, seqs, "asc")


def newest(connection: sqlite3.Connection, key: int, until: int, besides: str | None) -> Brief | None:
    """Return the last event with seq <= until that is of another kind than `besides`."""
    found = connection.execute(
        "SELECT id, timestamp FROM events WHERE conversation = ? AND seq <= ? AND kind IS NOT ? "
        "ORDER BY seq DESC LIMIT 1",
        (key, until, besides),
    ).fetchone()
    return None if found is None else Brief(*found)


def get(connection: sqlite3.Connection, key: int, until: int, event_id: str) -> Stored | None:
    """Return the event of this id, if its seq <= until."""
    found = connection.execute(_BY_ID, (key, until, event_id)).fetchone()
    return None if found is None else Stored(*found)


def bodies(
    connection: sqlite3.Connection, key: int, until: int, ids: Sequence[str]
) -> Iterator[tuple[str, bytes]]:
    """Yield id and body of those of these events that exist with seq <= until, in any order."""
    large: list[tuple[int, int]] = []
    for marks, chunk in _in_lists(ids):
        values = (SMALL_BYTES, key, until, *chunk)
        meta, joined = connection.execute(_FOUND.format(marks), values).fetchone()
        at = 0
        for seq, event_id, length in orjson.loads(meta):
            if length > SMALL_BYTES:
                large.append((seq, length))
                continue
            yield event_id, joined[at : at + length]
            at += length
    while large:
        seqs = _first(large, PAGE_MAX_BYTES)
        for row in _fetch(connection, key, seqs, "asc"):
            yield row.id, row.body
        large = large[len(seqs) :]


def search(connection: sqlite3.Connection, key: int, until: int, wanted: PageQuery) -> Page:
    """Return one page of the matching events with seq <= until: shorter than `limit` where the events are
    very large, or where the time to search is over."""
    first, last = _bounds(connection, key, until, wanted)
    seqs, following = _chosen(connection, key, first, last, wanted)
    return Page(items=tuple(_fetch(connection, key, seqs, wanted.order)), next_page_id=following)


def listing(connection: sqlite3.Connection, key: int, until: int, wanted: PageQuery) -> Listing:
    """Return the same page as `search`, as the bodies alone: no row becomes an object."""
    first, last = _bounds(connection, key, until, wanted)
    asked, order, _, limit = wanted
    if asked == EVERYTHING and limit * SMALL_BYTES <= PAGE_MAX_BYTES:
        if order == "asc":
            begin, end = first, min(last, first + limit - 1)
            beyond = end + 1 if end < last else None
        else:
            begin, end = max(first, last - limit + 1), last
            beyond = begin - 1 if begin > first else None
        large, following, joined = connection.execute(
            _IN_A_ROW.format(order),
            {"small": SMALL_BYTES, "key": key, "begin": begin, "end": end, "beyond": beyond},
        ).fetchone()
        if not large:
            return Listing(bodies=joined or b"", next_page_id=following)
    seqs, following = _chosen(connection, key, first, last, wanted)
    parts = [
        connection.execute(_JOINED.format(marks, order), (key, *chunk)).fetchone()[0]
        for marks, chunk in _in_lists(seqs)
    ]
    return Listing(bodies=b",".join(part for part in parts if part is not None), next_page_id=following)


def _bounds(connection: sqlite3.Connection, key: int, until: int, wanted: PageQuery) -> tuple[int, int]:
    """Return the first and the last sequence number among which the page is."""
    if wanted.page is not None:
        found = connection.execute(
            "SELECT seq FROM events WHERE conversation = ? AND id = ?", (key, wanted.page)
        ).fetchone()
        if found is not None:
            return (found[0], until) if wanted.order == "asc" else (0, min(until, found[0]))
    return 0, until


def _chosen(
    connection: sqlite3.Connection, key: int, first: int, last: int, wanted: PageQuery
) -> tuple[list[int], str | None]:
    """Return the sequence numbers of a page's events, and the id of the next page's first event."""
    sizes, looked = _look(connection, key, first, last, wanted)
    seqs = _first(sizes[: wanted.limit], PAGE_MAX_BYTES)
    if len(sizes) > len(seqs):
        next_seq: int | None = sizes[len(seqs)][0]
    elif wanted.order == "asc":
        next_seq = looked + 1 if looked < last else None
    else:
        next_seq = looked - 1 if looked > first else None
    if next_seq is None:
        return seqs, None
    following = connection.execute(
        "SELECT id FROM events WHERE conversation = ? AND seq = ?", (key, next_seq)
    ).fetchone()
    return seqs, None if following is None else following[0]


def _look(
    connection: sqlite3.Connection, key: int, first: int, last: int, wanted: PageQuery
) -> tuple[list[tuple[int, int]], int]:
    """Return (seq, size) of matching events from `first` to `last`, up to one more than the page has, and the
    last event looked at: before the end where there are so many, or where the time is over."""
    asked, order, most = wanted.asked, wanted.order, wanted.limit + 1
    condition, values = _where(key, last, asked)
    clauses = f"WHERE {condition} AND seq BETWEEN ? AND ? ORDER BY seq {order} LIMIT ?"
    if not asked.scans:
        found = _sizes(connection, clauses, (*values, first, last, most))
        return found, last if order == "asc" else first
    found = []
    looked = first - 1 if order == "asc" else last + 1
    for part in _parts(first, last, order):
        found += _sizes(connection, clauses, (*values, *part, most - len(found)))
        looked = part[1] if order == "asc" else part[0]
        if len(found) >= most:
            break
    return found, looked


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


def count(connection: sqlite3.Connection, key: int, until: int, kind: str) -> int:
    """Return how many events are of that kind, among those with seq <= until.

    The file stores the count up to the end of each whole block, so the time does not grow with the events.
    """
    begin = (until + 1) // BLOCK_EVENTS * BLOCK_EVENTS
    (number,) = connection.execute(
        "SELECT coalesce((SELECT events FROM kind_counts "
        "WHERE conversation = :key AND kind = :kind AND block < :block ORDER BY block DESC LIMIT 1), 0) + "
        "(SELECT count(*) FROM events WHERE conversation = :key AND kind = :kind "
        "AND seq BETWEEN :begin AND :until)",
        {
            "key": key,
            "kind": _class_name(kind),
            "block": begin // BLOCK_EVENTS,
            "begin": begin,
            "until": until,
        },
    ).fetchone()
    return int(number)


def count_some(
    connection: sqlite3.Connection, key: int, after: int, until: int, asked: Filter
) -> tuple[int, int]:
    """Count matching events with after < seq <= until for a bounded time (`SCAN_SECONDS`). Return the count
    and the last event looked at."""
    condition, values = _where(key, until, asked)
    statement = f"SELECT count(*) FROM events WHERE {condition} AND seq BETWEEN ? AND ?"  # noqa: S608
    found = 0
    for part in _parts(after + 1, until, "asc"):
        (number,) = connection.execute(statement, (*values, *part)).fetchone()
        found, after = found + int(number), part[1]
    return found, after


def _where(key: int, until: int, asked: Filter) -> tuple[str, list[object]]:
    terms = ["conversation = ?", "seq <= ?"]
    values: list[object] = [key, until]
    for term, value in (
        ("kind = ?", asked.kind),
        ("source = ?", asked.source),
        ("timestamp >= ?", asked.since),
        ("timestamp < ?", asked.before),
    ):
        if value is not None:
            terms.append(term)
            values.append(value)
    if asked.body is not None:
        # Bodies are JSON, where quotes and line breaks are escaped: escape the searched text too.
        text = json.dumps(asked.body, ensure_ascii=False)[1:-1]
        if text.isascii() and len(text) <= LIKE_MAX_CHARACTERS:
            terms.append("CAST(body AS TEXT) LIKE ? ESCAPE '\\'")
            values.append("%" + "".join("\\" + c if c in "\\%_" else c for c in text) + "%")
        else:
            # LIKE folds the case of ASCII letters only.
            terms.append("contains_folded(body, ?)")
            values.append(text.casefold())
    if asked.text is not None:
        terms.append("says_folded(body, ?)")
        values.append(asked.text.casefold())
    return " AND ".join(terms), values


def get_blob(connection: sqlite3.Connection, key: int, blob_id: str) -> Blob | None:
    """Return a blob of a conversation."""
    found = connection.execute(
        "SELECT media_type, data FROM blobs WHERE conversation = ? AND id = ?", (key, blob_id)
    ).fetchone()
    return None if found is None else Blob(blob_id, *found)


_RECORD = "SELECT id, record, status, title, created_at, updated_at, parent_id, epoch FROM conversations"


def _record(row: Sequence[Any]) -> Record:
    names = (field.name for field in attrs.fields(Record))
    return Record(**dict(zip(names, row, strict=True)))


def get_records(connection: sqlite3.Connection, ids: Sequence[str]) -> list[Record | None]:
    """Return the records of these conversations, in the order asked."""
    found: dict[str, Record] = {}
    for marks, chunk in _in_lists(ids):
        for row in connection.execute(f"{_RECORD} WHERE id IN ({marks})", chunk).fetchall():
            found[row[0]] = _record(row)
    return [found.get(conversation_id) for conversation_id in ids]


def search_records(
    connection: sqlite3.Connection,
    status: str | None,
    parent_id: str | None,
    order: RecordOrder,
    page: str | None,
    limit: int,
    without: Collection[str] = (),
) -> RecordPage:
    """Return one page of conversations. An unknown page id starts from the beginning."""
    column = "created_at" if order in {RecordOrder.CREATED_AT, RecordOrder.CREATED_AT_DESC} else "updated_at"
    descending = order in {RecordOrder.CREATED_AT_DESC, RecordOrder.UPDATED_AT_DESC}
    condition, values = _records_where(status, parent_id, without)
    if status is not None and column == "updated_at":
        # In this order the index of statuses would make SQLite sort all of that status for one page: `+`
        # keeps that index out.
        condition = condition.replace("status = ?", "+status = ?")
    if page is not None:
        place = f"SELECT {column}, key FROM conversations WHERE id = ?"  # noqa: S608  # one of two names
        found = connection.execute(place, (page,)).fetchone()
        if found is not None:
            condition += f" AND ({column}, key) {'<=' if descending else '>='} (?, ?)"
            values += found
    direction = "DESC" if descending else "ASC"
    rows = connection.execute(
        f"{_RECORD} WHERE {condition} ORDER BY {column} {direction}, key {direction} LIMIT ?",
        (*values, limit + 1),
    ).fetchall()
    following = rows[limit][0] if len(rows) > limit else None
    return RecordPage(items=tuple(map(_record, rows[:limit])), next_page_id=following)


def count_records(
    connection: sqlite3.Connection, status: str | None, parent_id: str | None, without: Collection[str] = ()
) -> int:
    """Return the number of conversations."""
    condition, values = _records_where(status, parent_id, without)
    (number,) = connection.execute(f"SELECT count(*) FROM conversations WHERE {condition}", values).fetchone()  # noqa: S608
    return int(number)


def _records_where(
    status: str | None, parent_id: str | None, without: Collection[str]
) -> tuple[str, list[object]]:
    terms = ["1"]
    values: list[object] = []
    if status is not None:
        terms.append("status = ?")
        values.append(status)
    if parent_id is not None:
        terms.append("parent_id = ?")
        values.append(parent_id)
    if without:
        terms.append("id NOT IN (SELECT value FROM json_each(?))")  # a list of its own has a bound
        values.append(json.dumps(list(without)))
    return " AND ".join(terms), values
