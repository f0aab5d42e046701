"""The reading side of the tables in PostgreSQL."""
# ruff: noqa: S608  # statements are put together of texts in this module alone

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, TypeVar

import psycopg
import trio

from supervisor.database.address import Database
from supervisor.database.connection import Connection
from supervisor.journal import queries
from supervisor.journal.postgres.dialling import dial
from supervisor.journal.postgres.values import Bigints, Texts, given, stored
from supervisor.journal.queries import RECORDS, Filter, Head, Order, Queries
from supervisor.journal.rows import Blob, Brief, Listing, Record, Stored

T = TypeVar("T")

NAME: Final = "ostler journal reader"

READ_SECONDS: Final = 30.0
"""The longest that one statement may take. The usual ones take milliseconds, and scans are cut into parts."""

CANCEL_SECONDS: Final = 2.0
"""Seconds to ask the database to end a statement; the read has been given up already."""

IDS_AT_ONCE: Final = 500
"""Ids in one statement, which returns up to `SMALL_BYTES` for each: 32 MB."""

SCAN_BYTES: Final = 4 * 1024 * 1024
"""Bytes of bodies that are fetched at once to be looked at here. One body may be larger."""

_COUNT: Final = (
    "SELECT coalesce((SELECT events FROM kind_counts "
    "WHERE conversation = %(key)s AND kind = %(kind)s AND block < %(block)s ORDER BY block DESC LIMIT 1), 0) "
    "+ (SELECT count(*) FROM events WHERE conversation = %(key)s AND kind = %(kind)s "
    "AND seq BETWEEN %(begin)s AND %(until)s)"
)

_IN_A_ROW: Final = (
    "SELECT count(*) FILTER (WHERE octet_length(body) > %(small)s), "
    "(SELECT id FROM events WHERE conversation = %(key)s AND seq = %(beyond)s::bigint), "
    "string_agg(body, ',' ORDER BY seq {}) FILTER (WHERE octet_length(body) <= %(small)s) "
    "FROM events WHERE conversation = %(key)s AND seq BETWEEN %(begin)s AND %(end)s"
)


class PostgresQueries(Queries):
    """Queries over one connection, which is made again when it was lost. `interrupt` alone is called by the
    Trio thread, all else by one reader thread at a time."""

    MARK = "%s"
    LEFT_OUT = "id <> ALL(%s)"

    def __init__(self, database: Database) -> None:
        """Connect. Raises psycopg.Error."""
        self._database = database
        self._interrupted = False
        self._connection: Connection | None = self._connect()

    def _connect(self) -> Connection:
        return dial(self._database, NAME, READ_SECONDS)

    def execute(self, statement: str, values: Any = ()) -> psycopg.Cursor[tuple[Any, ...]]:
        """Run a statement, over a new connection if there is none. Raises psycopg.Error."""
        if self._connection is None:
            self._connection = self._connect()
        if self._interrupted:
            raise psycopg.errors.QueryCanceled("interrupted")
        # From the first time on, not psycopg's sixth: each connection would plan each statement so often.
        return self._connection.execute(statement.encode(), values, prepare=True, binary=True)

    def answer(self, query: Callable[[Queries], T]) -> T:
        """Run a query; a second time where the connection turns out to be an old one that was lost."""
        old = self._connection is not None
        try:
            try:
                return query(self)
            except psycopg.OperationalError:
                if not old or self._interrupted or self._connection is None or not self._connection.closed:
                    raise
                self._connection = None
            return query(self)
        finally:
            # A request to end a statement may come late, and would end another one.
            if self._interrupted or (self._connection is not None and self._connection.closed):
                self.close()
            self._interrupted = False

    def interrupt(self) -> None:
        """End the statement that runs: another thread asks the database."""
        self._interrupted = True
        connection = self._connection
        if connection is not None:
            trio.lowlevel.start_thread_soon(
                lambda: connection.cancel_safe(timeout=CANCEL_SECONDS), lambda _: None, "journal-cancel"
            )

    def close(self) -> None:
        """Close the connection."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(psycopg.Error):
                connection.close()

    def load(self, conversation_id: str) -> Head | None:
        """Return what a log begins with."""
        found = self.execute(
            "SELECT conversations.key, last_seq, generation, owner FROM conversations "
            "JOIN heads ON heads.key = conversations.key WHERE id = %s",
            (stored(conversation_id),),
        ).fetchone()
        return None if found is None else Head(*found)

    def newest(self, key: int, until: int, besides: str | None) -> Brief | None:
        """Return the last event of another kind."""
        found = self.execute(
            "SELECT id, timestamp FROM events WHERE conversation = %s AND seq <= %s "
            "AND kind IS DISTINCT FROM %s::text ORDER BY seq DESC LIMIT 1",
            (key, until, None if besides is None else stored(besides)),
        ).fetchone()
        return None if found is None else Brief(*map(given, found))

    def get(self, key: int, until: int, event_id: str) -> Stored | None:
        """Return the event of this id."""
        found = self.execute(
            "SELECT id, kind, source, timestamp, body, seq FROM events WHERE conversation = %s AND id = %s",
            (key, stored(event_id)),
        ).fetchone()
        # With a condition on the number, PostgreSQL may choose the index by number, and read all events.
        return None if found is None or found[5] > until else _event(found)

    def _kind_count(self, named: Mapping[str, object]) -> int:
        return _number(self.execute(_COUNT, {**named, "kind": stored(str(named["kind"]))}).fetchone())

    def get_blob(self, key: int, blob_id: str) -> Blob | None:
        """Return a blob of a conversation."""
        found = self.execute(
            "SELECT media_type, data FROM blobs WHERE conversation = %s AND id = %s", (key, stored(blob_id))
        ).fetchone()
        return None if found is None else Blob(blob_id, given(found[0]), found[1])

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
        if asked.reads:
            return self._matching(key, first, last, asked, order, limit)
        condition, values = _where(key, first, last, asked)
        size = "octet_length(body)" + (" + coalesce(octet_length(updates), 0)" if updates else "")
        statement = f"SELECT seq, {size} FROM events WHERE {condition} ORDER BY seq {order} LIMIT %s"
        return self.execute(statement, (*values, limit)).fetchall()

    def _count(self, key: int, first: int, last: int, asked: Filter) -> int:
        if asked.reads:
            return len(self._matching(key, first, last, asked, "asc", last - first + 1))
        condition, values = _where(key, first, last, asked)
        return _number(self.execute(f"SELECT count(*) FROM events WHERE {condition}", values).fetchone())

    def _matching(
        self, key: int, first: int, last: int, asked: Filter, order: Order, limit: int
    ) -> list[tuple[int, int]]:
        """Return what `_sizes` does for filters that read bodies: they are looked at here, as SQLite's are,
        since upper and lower case of all alphabets are Python's."""
        condition, values = _where(key, first, last, asked)
        statement = f"SELECT seq, octet_length(body) FROM events WHERE {condition} ORDER BY seq {order}"
        sizes = self.execute(statement, values).fetchall()
        found: list[tuple[int, int]] = []
        while sizes and len(found) < limit:
            seqs = queries.leading(sizes, SCAN_BYTES)
            bodies = dict(
                self.execute(
                    "SELECT seq, body FROM events WHERE conversation = %s AND seq = ANY(%s)",
                    (key, Bigints(seqs)),
                ).fetchall()
            )
            found += [
                (seq, size)
                for seq, size in sizes[: len(seqs)]
                if seq in bodies and asked.matches(bodies[seq])
            ]
            sizes = sizes[len(seqs) :]
        return found[:limit]

    def _rows(self, key: int, seqs: Sequence[int], order: Order, *, updates: bool = False) -> list[Stored]:
        if not seqs:
            return []
        more = ", updates" if updates else ""
        statement = (
            f"SELECT id, kind, source, timestamp, body, seq{more} FROM events "
            "WHERE conversation = %s AND seq = ANY(%s)"
        )
        rows = [_event(each) for each in self.execute(statement, (key, Bigints(seqs))).fetchall()]
        # PostgreSQL would sort by reading the whole conversation in order.
        return sorted(rows, key=lambda row: row.seq, reverse=order == "desc")

    def _found(
        self, key: int, until: int, ids: Sequence[str]
    ) -> Iterator[tuple[int, str, int, bytes | None]]:
        for at in range(0, len(ids), IDS_AT_ONCE):
            found = self.execute(
                "SELECT seq, id, octet_length(body), CASE WHEN octet_length(body) <= %s THEN body END "
                "FROM events WHERE conversation = %s AND id = ANY(%s)",
                (queries.SMALL_BYTES, key, Texts(ids[at : at + IDS_AT_ONCE])),
            ).fetchall()
            for seq, event_id, size, body in found:
                if seq <= until:
                    yield seq, given(event_id), size, body

    def _in_a_row(self, key: int, begin: int, end: int, beyond: int | None, order: Order) -> Listing | None:
        values = {"small": queries.SMALL_BYTES, "key": key, "begin": begin, "end": end, "beyond": beyond}
        found = self.execute(_IN_A_ROW.format(order), values).fetchone()
        assert found is not None
        large, following, joined = found
        return None if large else Listing(bodies=joined or b"", next_page_id=_given(following))

    def _joined(self, key: int, seqs: Sequence[int], order: Order) -> bytes:
        found = self.execute(
            f"SELECT string_agg(body, ',' ORDER BY seq {order}) FROM events "
            "WHERE conversation = %s AND seq = ANY(%s)",
            (key, Bigints(seqs)),
        ).fetchone()
        assert found is not None
        return found[0] or b""

    def _seq_of(self, key: int, event_id: str) -> int | None:
        found = self.execute(
            "SELECT seq FROM events WHERE conversation = %s AND id = %s", (key, stored(event_id))
        ).fetchone()
        return None if found is None else int(found[0])

    def _id_at(self, key: int, seq: int) -> str | None:
        found = self.execute(
            "SELECT id FROM events WHERE conversation = %s AND seq = %s", (key, seq)
        ).fetchone()
        return None if found is None else given(found[0])

    def get_records(self, ids: Sequence[str]) -> list[Record | None]:
        """Return the records of these conversations, in the order asked."""
        rows = self.execute(f"{RECORDS} WHERE id = ANY(%s)", (Texts(ids),)).fetchall()
        found = {each.id: each for each in map(self._record, rows)}
        return [found.get(conversation_id) for conversation_id in ids]

    def _fetch(self, statement: str, values: Sequence[object]) -> list[tuple[Any, ...]]:
        return self.execute(statement, values).fetchall()

    def _record(self, row: Sequence[Any]) -> Record:
        name, record, status, title, created_at, updated_at, parent_id, epoch = row
        return Record(
            id=given(name),
            record=record,
            status=given(status),
            title=_given(title),
            created_at=given(created_at),
            updated_at=given(updated_at),
            parent_id=_given(parent_id),
            epoch=epoch,
        )

    def _ids(self, ids: Collection[str]) -> object:
        return Texts(list(ids))

    def _stored(self, text: str) -> str:
        return stored(text)


def _number(row: tuple[Any, ...] | None) -> int:
    assert row is not None
    return int(row[0])


def _given(text: str | None) -> str | None:
    return None if text is None else given(text)


def _event(row: Sequence[Any]) -> Stored:
    found = Stored(given(row[0]), given(row[1]), given(row[2]), given(row[3]), row[4], row[5])
    if len(row) > 6 and row[6]:
        found.updates = row[6]
    return found


def _where(key: int, first: int, last: int, asked: Filter) -> tuple[str, list[object]]:
    terms = ["conversation = %s", "seq BETWEEN %s AND %s"]
    values: list[object] = [key, first, last]
    for compared, value in asked.comparisons:
        terms.append(f"{compared} %s")
        values.append(stored(value))
    needle = asked.needle
    if needle is not None and needle[1]:
        # Finds all that match, and some more where a number looks like an escaped byte: so fewer are fetched.
        terms.append("""strpos(lower(encode(body, 'escape') COLLATE "C"), %s) > 0""")
        values.append(needle[0].lower().replace("\\", "\\\\"))
    return " AND ".join(terms), values
