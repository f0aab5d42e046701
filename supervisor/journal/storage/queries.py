"""The reading side of the SQLite file.

Reads of events return their rows packed into one: a thread that reads row by row waits for the GIL after
every row, up to the interpreter's switch interval. Measured for 256 rows of 1 kB next to a busy loop: 338 ms
row by row, 6 ms packed (0.35 and 0.53 ms next to an idle one).
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import attrs
import orjson

from supervisor.journal import queries
from supervisor.journal.queries import (
    RECORDS,
    Filter,
    Head,
    Order,
    Queries,
    contains_folded,
    says_folded,
)
from supervisor.journal.rows import Blob, Brief, Listing, Record, Stored

T = TypeVar("T")

_CHUNK = 500
"""Ids in one IN list."""

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


_COUNT = (
    "SELECT coalesce((SELECT events FROM kind_counts "
    "WHERE conversation = :key AND kind = :kind AND block < :block ORDER BY block DESC LIMIT 1), 0) + "
    "(SELECT count(*) FROM events WHERE conversation = :key AND kind = :kind "
    "AND seq BETWEEN :begin AND :until)"
)


class SqliteQueries(Queries):
    """Queries on a connection, which cannot write from then on."""

    MARK = "?"
    # In this order the index of statuses would make SQLite sort all of that status for one page: `+` keeps
    # that index out.
    STATUS_BY_CHANGE = "+status"
    LEFT_OUT = "id NOT IN (SELECT value FROM json_each(?))"

    def __init__(self, connection: sqlite3.Connection) -> None:
        connection.create_function("contains_folded", 2, contains_folded, deterministic=True)
        connection.create_function("says_folded", 2, says_folded, deterministic=True)
        # The kernel caches the file, so each reader's own cache stays small (KiB).
        connection.execute("PRAGMA cache_size = -1024")
        connection.execute("PRAGMA query_only = ON")
        self.connection = connection

    @classmethod
    def open(cls, path: Path, busy_timeout: float) -> SqliteQueries:
        """Connect to the file. Raises sqlite3.Error."""
        connection = sqlite3.connect(
            path, timeout=busy_timeout, isolation_level=None, check_same_thread=False
        )
        try:
            return cls(connection)
        except BaseException:
            connection.close()
            raise

    def interrupt(self) -> None:
        """End the statement that runs."""
        self.connection.interrupt()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def load(self, conversation_id: str) -> Head | None:
        """Return what a log begins with."""
        found = self.connection.execute(
            "SELECT key, (SELECT coalesce(max(seq), -1) FROM events WHERE conversation = key) "
            "FROM conversations WHERE id = ?",
            (conversation_id,),
        ).fetchone()
        return None if found is None else Head(int(found[0]), int(found[1]), 0, None)

    def newest(self, key: int, until: int, besides: str | None) -> Brief | None:
        """Return the last event of another kind."""
        found = self.connection.execute(
            "SELECT id, timestamp FROM events WHERE conversation = ? AND seq <= ? AND kind IS NOT ? "
            "ORDER BY seq DESC LIMIT 1",
            (key, until, besides),
        ).fetchone()
        return None if found is None else Brief(*found)

    def get(self, key: int, until: int, event_id: str) -> Stored | None:
        """Return the event of this id."""
        found = self.connection.execute(_BY_ID, (key, until, event_id)).fetchone()
        return None if found is None else Stored(*found)

    def _kind_count(self, named: Mapping[str, object]) -> int:
        (number,) = self.connection.execute(_COUNT, named).fetchone()
        return int(number)

    def get_blob(self, key: int, blob_id: str) -> Blob | None:
        """Return a blob of a conversation."""
        found = self.connection.execute(
            "SELECT media_type, data FROM blobs WHERE conversation = ? AND id = ?", (key, blob_id)
        ).fetchone()
        return None if found is None else Blob(blob_id, *found)

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
        condition, values = _where(key, last, asked)
        size = "length(body) + ifnull(length(updates), 0)" if updates else "length(body)"
        clauses = f"WHERE {condition} AND seq >= ? ORDER BY seq {order} LIMIT ?"
        statement = _SIZES.format(size, clauses)
        (found,) = self.connection.execute(statement, (*values, first, limit)).fetchone()
        return [(seq, size) for seq, size in orjson.loads(found)]

    def _count(self, key: int, first: int, last: int, asked: Filter) -> int:
        condition, values = _where(key, last, asked)
        statement = f"SELECT count(*) FROM events WHERE {condition} AND seq >= ?"  # noqa: S608
        (number,) = self.connection.execute(statement, (*values, first)).fetchone()
        return int(number)

    def _rows(self, key: int, seqs: Sequence[int], order: Order, *, updates: bool = False) -> list[Stored]:
        packed = _PACKED_WITH_UPDATES if updates else _PACKED
        rows: list[Stored] = []
        for marks, chunk in _in_lists(seqs):
            meta, content = self.connection.execute(packed.format(marks, order), (key, *chunk)).fetchone()
            at = 0
            for seq, event_id, kind, source, timestamp, length, *more in orjson.loads(meta):
                row = Stored(event_id, kind, source, timestamp, content[at : at + length], seq)
                at += length
                if more and more[0]:
                    row.updates = content[at : at + more[0]]
                    at += more[0]
                rows.append(row)
        return rows

    def _found(
        self, key: int, until: int, ids: Sequence[str]
    ) -> Iterator[tuple[int, str, int, bytes | None]]:
        for marks, chunk in _in_lists(ids):
            values = (queries.SMALL_BYTES, key, until, *chunk)
            meta, joined = self.connection.execute(_FOUND.format(marks), values).fetchone()
            at = 0
            for seq, event_id, length in orjson.loads(meta):
                if length > queries.SMALL_BYTES:
                    yield seq, event_id, length, None
                    continue
                yield seq, event_id, length, joined[at : at + length]
                at += length

    def _in_a_row(self, key: int, begin: int, end: int, beyond: int | None, order: Order) -> Listing | None:
        large, following, joined = self.connection.execute(
            _IN_A_ROW.format(order),
            {"small": queries.SMALL_BYTES, "key": key, "begin": begin, "end": end, "beyond": beyond},
        ).fetchone()
        return None if large else Listing(bodies=joined or b"", next_page_id=following)

    def _joined(self, key: int, seqs: Sequence[int], order: Order) -> bytes:
        parts = [
            self.connection.execute(_JOINED.format(marks, order), (key, *chunk)).fetchone()[0]
            for marks, chunk in _in_lists(seqs)
        ]
        return b",".join(part for part in parts if part is not None)

    def _seq_of(self, key: int, event_id: str) -> int | None:
        found = self.connection.execute(
            "SELECT seq FROM events WHERE conversation = ? AND id = ?", (key, event_id)
        ).fetchone()
        return None if found is None else int(found[0])

    def _id_at(self, key: int, seq: int) -> str | None:
        found = self.connection.execute(
            "SELECT id FROM events WHERE conversation = ? AND seq = ?", (key, seq)
        ).fetchone()
        return None if found is None else str(found[0])

    def get_records(self, ids: Sequence[str]) -> list[Record | None]:
        """Return the records of these conversations, in the order asked."""
        found: dict[str, Record] = {}
        for marks, chunk in _in_lists(ids):
            for row in self.connection.execute(f"{RECORDS} WHERE id IN ({marks})", chunk).fetchall():
                found[row[0]] = self._record(row)
        return [found.get(conversation_id) for conversation_id in ids]

    def _fetch(self, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        return self.connection.execute(statement, values).fetchall()

    def _record(self, row: Sequence[Any]) -> Record:
        names = (field.name for field in attrs.fields(Record))
        return Record(**dict(zip(names, row, strict=True)))

    def _ids(self, ids: Collection[str]) -> object:
        return json.dumps(list(ids))


def _in_lists(ids: Sequence[T]) -> Iterator[tuple[str, list[T]]]:
    """Split unique ids or numbers into chunks for IN lists: the question marks and the values of each."""
    wanted = list(dict.fromkeys(ids))
    for at in range(0, len(wanted), _CHUNK):
        chunk = wanted[at : at + _CHUNK]
        yield ",".join("?" * len(chunk)), chunk


def _where(key: int, until: int, asked: Filter) -> tuple[str, list[object]]:
    terms = ["conversation = ?", "seq <= ?"]
    values: list[object] = [key, until]
    for compared, value in asked.comparisons:
        terms.append(f"{compared} ?")
        values.append(value)
    needle = asked.needle
    if needle is not None:
        text, ascii_alone = needle
        if ascii_alone:
            # LIKE folds the case of ASCII letters only.
            terms.append("CAST(body AS TEXT) LIKE ? ESCAPE '\\'")
            values.append("%" + "".join("\\" + c if c in "\\%_" else c for c in text) + "%")
        else:
            terms.append("contains_folded(body, ?)")
            values.append(text)
    if asked.text is not None:
        terms.append("says_folded(body, ?)")
        values.append(asked.text.casefold())
    return " AND ".join(terms), values
