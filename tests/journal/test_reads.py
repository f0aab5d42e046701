"""Reading a log back."""

from __future__ import annotations

import json
import threading
from contextlib import closing
from functools import partial

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from supervisor.journal import queries
from supervisor.journal.errors import SearchTooLong
from supervisor.journal.log import KNOWN_KINDS
from supervisor.journal.rows import Brief, Listing, Stored
from supervisor.journal.storage import queries as sqlite_queries
from supervisor.journal.storage.queries import SqliteQueries
from supervisor.journal.storage.schema import migrate
from supervisor.journal.storage.store import STATEMENT_BYTES, Store, _connect, insert_sizes
from tests.journal.harness import CREATED, put_blob


def ids(items):
    return [None if item is None else item.id for item in items]


def listed(page):
    return Listing(bodies=b",".join(item.body for item in page.items), next_page_id=page.next_page_id)


async def fill(log, make_row):
    rows = [
        make_row(
            json.dumps({"n": n, "text": text}, ensure_ascii=False).encode(),
            id=f"id-{n}",
            kind=kind,
            source=source,
            timestamp=f"2026-11-21T08:00:0{n}.000000Z",
        )
        for n, (kind, source, text) in enumerate(
            [
                ("MessageEvent", "user", "Hello World"),
                ("ActionEvent", "agent", '50% off "quoted"\nline'),
                ("ObservationEvent", "environment", "a_b\\c"),
                ("ActionEvent", "agent", "GRÜẞE aus KÖLN"),
                ("MessageEvent", "agent", "500 off"),
                ("MessageEvent", "user", "aXb"),
            ]
        )
    ]
    log.append(rows)
    await log.flushed()
    return rows


async def test_an_event_is_found_by_its_id(log, make_row):
    rows = await fill(log, make_row)
    assert await log.get("id-0") == Stored(
        id="id-0", kind="MessageEvent", source="user", timestamp=rows[0].timestamp, body=rows[0].body, seq=0
    )
    assert [await log.get(name) for name in ("nobody", "")] == [None, None]


async def test_a_log_reads_only_its_own_events(journal, log, make_log, make_row):
    other = await make_log(journal, "other")
    await fill(log, make_row)
    other.append([make_row(id="id-0", kind="Other")])
    await other.flushed()
    assert [item.kind for item in await other.read(-1, 10)] == ["Other"]
    assert (await log.get("id-0")).kind == "MessageEvent"
    assert await other.get("id-1") is None
    assert await other.count(source="user") == 1


async def test_pages_by_sequence_in_both_directions(log, make_row):
    await fill(log, make_row)
    assert [item.seq for item in await log.read(-1, 2)] == [0, 1]
    assert [item.seq for item in await log.read(3, 10)] == [4, 5]
    assert [item.seq for item in await log.read(5, 10)] == []
    assert [item.seq for item in await log.read(0, 100, kind="MessageEvent")] == [4, 5]
    assert [item.seq for item in await log.read(-1, 1, kind="MessageEvent", source="agent")] == [4]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, [0, 1, 2, 3, 4, 5]),
        ({"kind": "ActionEvent"}, [1, 3]),
        ({"kind": "some.module.path.ActionEvent"}, [1, 3]),
        ({"kind": "Action"}, []),
        ({"kind": "actionevent"}, []),
        ({"source": "user"}, [0, 5]),
        ({"kind": "MessageEvent", "source": "agent"}, [4]),
        ({"body": "hello"}, [0]),
        ({"body": "WORLD"}, [0]),
        ({"body": "50%"}, [1]),
        ({"body": "%"}, [1]),
        ({"body": "a_b"}, [2]),
        ({"body": "_B\\"}, [2]),
        ({"body": '"QUOTED"\n'}, [1]),
        ({"body": "köln"}, [3]),
        ({"body": "grüsse"}, [3]),
        ({"body": "x" * 5000}, []),
        ({"text": "WORLD"}, [0]),
        ({"text": "köln"}, [3]),
        ({"text": "text"}, []),
        ({"since": "2026-11-21T08:00:04.000000Z"}, [4, 5]),
        ({"before": "2026-11-21T08:00:02.000000Z"}, [0, 1]),
        ({"since": "2026-11-21T08:00:01.000000Z", "before": "2026-11-21T08:00:03.000000Z"}, [1, 2]),
        ({"body": "off", "source": "agent", "since": "2026-11-21T08:00:02.000000Z"}, [4]),
        ({"kind": "' OR 1 --"}, []),
    ],
)
async def test_filters(log, make_row, asked, expected):
    await fill(log, make_row)
    for order in ("asc", "desc"):
        page = await log.search(**asked, order=order)
        assert [item.seq for item in page.items] == expected[:: 1 if order == "asc" else -1]
        assert await log.listing(**asked, order=order) == listed(page)
    assert await log.count(**asked) == len(expected)


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6, 100])
async def test_the_page_id_is_the_first_event_of_the_next_page(log, make_row, order, limit):
    await fill(log, make_row)
    seen = []
    page_id = None
    while True:
        page = await log.search(order=order, page=page_id, limit=limit)
        assert await log.listing(order=order, page=page_id, limit=limit) == listed(page)
        assert page_id is None or page.items[0].id == page_id
        seen += [item.seq for item in page.items]
        page_id = page.next_page_id
        if page_id is None:
            break
        assert len(page.items) == limit
    assert seen == sorted(range(6), reverse=order == "desc")


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_a_listing_has_the_bytes_of_a_page_of_large_events(log, make_row, monkeypatch, order):
    monkeypatch.setattr(queries, "SMALL_BYTES", 20)
    monkeypatch.setattr(queries, "PAGE_MAX_BYTES", 200)
    sizes = [5, 20, 21, 150, 60, 2, 300, 8, 1, 20]
    log.append([make_row(b"[" + b"1" * (size - 2) + b"]") for size in sizes])
    await log.flushed()
    for page in (None, "e-3", "e-9", "nobody"):
        for limit in (1, 3, 10, 100):
            found = await log.search(order=order, page=page, limit=limit)
            assert await log.listing(order=order, page=page, limit=limit) == listed(found)


class Vanishing:
    """A reader's connection: after so many statements all events are gone, as where they are deleted."""

    def create_function(self, *_, **__):
        pass

    def __init__(self, connection, left):
        self._connection = connection
        self._left = left

    def execute(self, statement, values=()):
        if statement.startswith("PRAGMA"):
            return None
        if not self._left:
            self._connection.execute("DELETE FROM events")
        self._left -= 1
        return self._connection.execute(statement, values)


def searched(asked, order):
    page = asked.search(1, 7, queries.PageQuery(queries.EVERYTHING, order, "id-3", 3))
    return [item.body for item in page.items]


def listed_ones(asked, order):
    page = asked.listing(1, 7, queries.PageQuery(queries.EVERYTHING, order, "id-3", 3))
    return page.bodies.split(b",") if page.bodies else []


def read_ones(asked, order):
    return [item.body for item in asked.read(1, -1, 7, 100, queries.EVERYTHING, 1000)]


def found_ones(asked, order):
    return [body for _, body in asked.bodies(1, 7, [f"id-{n}" for n in range(8)])]


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("query", [searched, listed_ones, read_ones, found_ones])
def test_a_read_of_what_is_deleted_meanwhile_finds_less(monkeypatch, query, order):
    """`Log` says then that it is deleted: so readers need no transaction."""
    monkeypatch.setattr(queries, "SMALL_BYTES", 2)
    monkeypatch.setattr(sqlite_queries, "_CHUNK", 2)
    with closing(_connect(":memory:")) as connection:
        migrate(connection)

        def fill():
            rows = [Stored(f"id-{n}", "K", "user", "t", b"1" * (n + 1), n) for n in range(8)]
            for step in Store(connection, -1, 1).insert_steps([(1, row) for row in rows]):
                step()

        fill()
        whole = query(SqliteQueries(Vanishing(connection, 99)), order)
        assert len(whole) >= 3
        for left in range(8):
            found = query(SqliteQueries(Vanishing(connection, left)), order)
            assert set(found) <= set(whole)
            assert (found == []) if not left else (left < 7 or found == whole)
            connection.execute("DELETE FROM events")
            fill()


async def test_bodies_by_id_are_formed_once_each_in_the_order_asked(log, make_row, monkeypatch):
    monkeypatch.setattr(queries, "SMALL_BYTES", 32)
    rows = await fill(log, make_row)
    formed = []

    def form(body):
        formed.append(body)
        return body.upper()

    asked = ["id-3", "nobody", "id-0", "id-3", ""]
    large, small = rows[3].body, rows[0].body
    assert len(small) <= 32 < len(large)
    assert await log.bodies(asked, form) == [large.upper(), None, small.upper(), large.upper(), None]
    assert sorted(formed) == sorted([large, small])
    assert await log.bodies([], form) == []
    assert (await log.bodies([f"no-{n}" for n in range(1500)] + ["id-5"], form))[-1] == rows[5].body.upper()


async def test_a_kind_is_counted_again_only_when_something_was_stored(
    journal_place, log, make_row, monkeypatch
):
    looked = []
    count = journal_place.queries.count
    monkeypatch.setattr(journal_place.queries, "count", lambda *asked: looked.append(asked) or count(*asked))
    await fill(log, make_row)
    for _ in range(3):
        assert await log.count(kind="MessageEvent") == 3
        assert await log.count(kind="some.module.ActionEvent") == 2
        assert await log.count(kind="Nothing") == 0
    assert [asked[3] for asked in looked].count("MessageEvent") == 1
    log.append([make_row(kind="MessageEvent")])
    assert await log.count(kind="MessageEvent") == 3  # it is not durable yet
    await log.flushed()
    assert await log.count(kind="MessageEvent") == 4
    # Names come from clients: what there is none of is not remembered, and no more than so many of the rest.
    log.append([make_row(kind=f"Kind{n}") for n in range(2 * KNOWN_KINDS)])
    await log.flushed()
    for n in range(2 * KNOWN_KINDS):
        assert await log.count(kind=f"Kind{n}") == 1
    assert len(log._counted) <= KNOWN_KINDS
    assert await log.count(kind="MessageEvent") == 4


async def test_pages_of_a_filtered_search(log, make_row):
    await fill(log, make_row)
    page = await log.search(kind="MessageEvent", limit=2)
    assert (ids(page.items), page.next_page_id) == (["id-0", "id-4"], "id-5")
    page = await log.search(kind="MessageEvent", limit=2, page=page.next_page_id)
    assert (ids(page.items), page.next_page_id) == (["id-5"], None)


async def test_an_unknown_page_starts_from_the_beginning(log, make_row):
    await fill(log, make_row)
    assert ids((await log.search(page="nobody", limit=1)).items) == ["id-0"]


async def test_reads_end_where_the_sockets_do(log, make_row, monkeypatch):
    """What is committed but not yet announced does not show up in a read either."""
    await fill(log, make_row)
    committed = trio.Event()
    monkeypatch.setattr(log, "settle", lambda *_: committed.set())
    log.append([make_row(id="late")])
    await committed.wait()
    assert await log.get("late") is None
    assert len(await log.read(-1, 10)) == len((await log.search()).items) == await log.count() == 6
    assert await log.count(source="user") == 2


@pytest.mark.parametrize("order", ["asc", "desc"])
async def test_pages_of_large_events_are_shorter(log, make_row, monkeypatch, order):
    """SQLite hands out a gigabyte at the most, and a server has less to give."""
    monkeypatch.setattr(queries, "PAGE_MAX_BYTES", 1000)
    sizes = [400, 400, 400, 5000, 10, 10]
    rows = [make_row(b"x" * size, id=f"e{n}") for n, size in enumerate(sizes)]
    log.append(rows)
    await log.flushed()
    pages, page = [], None
    while True:
        found = await log.search(order=order, page=page, limit=4)
        pages.append([item.seq for item in found.items])
        page = found.next_page_id
        if page is None:
            break
    shown = [[0, 1], [2], [3], [4, 5]] if order == "asc" else [[5, 4], [3], [2, 1], [0]]
    assert pages == shown
    assert [item.seq for item in await log.read(-1, 10)] == [0, 1]
    assert [item.seq for item in await log.read(2, 10)] == [3]
    assert await log.bodies([f"e{n}" for n in range(6)], bytes) == [row.body for row in rows]


async def test_the_newest(log, make_row):
    assert await log.newest() is None
    rows = await fill(log, make_row)
    assert await log.newest() == Brief("id-5", rows[5].timestamp)
    assert await log.newest(besides="MessageEvent") == Brief("id-3", rows[3].timestamp)


async def test_blobs(journal, log, make_log):
    await put_blob(log, "b", b"\x00\xff", "image/png")
    blob = await log.get_blob("b")
    assert (blob.data, blob.media_type) == (b"\x00\xff", "image/png")
    await put_blob(log, "b", b"newer")
    assert (await log.get_blob("b")).data == b"newer"
    assert await log.get_blob("other") is None
    assert await (await make_log(journal, "c-2")).get_blob("b") is None


def never_ending(asked):
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    execute = asked.connection.execute if isinstance(asked, SqliteQueries) else asked.execute
    return execute(endless).fetchone()


async def test_a_cancelled_read_is_interrupted(log, make_row, journal, monkeypatch):
    for _ in range(6):  # more than there are readers: each must come back
        with trio.move_on_after(0.02) as scope:
            await journal._readers.run(never_ending)
        assert scope.cancelled_caught
    with trio.fail_after(30):
        assert await log.read(-1, 1) == []


async def test_closing_does_not_wait_for_a_long_read(journal_place):
    started = trio.current_time()
    async with journal_place.open() as journal:
        with trio.move_on_after(0.02):
            await journal._readers.run(never_ending)
    assert trio.current_time() - started < 2


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.binary(max_size=50), st.text(st.characters(exclude_categories=["Cs"]))), max_size=20
    )
)
def test_whatever_bytes_and_names_come_back_as_they_were(content):
    connection = _connect(":memory:")
    try:
        migrate(connection)
        rows = [
            Stored(id=f"{n}{name}", kind=name, source=name, timestamp=name, body=body, seq=n)
            for n, (body, name) in enumerate(content)
        ]
        for step in Store(connection, -1, 1).insert_steps([(1, row) for row in rows]):
            step()
        asked = SqliteQueries(connection)
        assert asked.read(1, -1, 100, 100, queries.EVERYTHING, 10_000) == rows
        back = asked.search(1, 100, queries.PageQuery(queries.EVERYTHING, "desc", None, 100))
        assert list(back.items) == rows[::-1]
        assert [asked.get(1, 100, row.id) for row in rows] == rows
        found = dict(asked.bodies(1, 100, [row.id for row in rows]))
        assert found == {row.id: row.body for row in rows}
    finally:
        connection.close()


@pytest.mark.parametrize(
    "sizes", [[100_000] * 40, [10, STATEMENT_BYTES + 1, 10], [STATEMENT_BYTES] * 3, [1] * 5000]
)
def test_a_statement_keeps_few_bytes(sizes):
    """Each prepared one has its last values until it is used again: forty of large ones are megabytes."""
    connection = _connect(":memory:")
    try:
        migrate(connection)
        rows = [
            Stored(id=str(seq), kind="k", source="s", timestamp="t", body=bytes(size), seq=seq)
            for seq, size in enumerate(sizes)
        ]
        steps = Store(connection, -1, 1).insert_steps([(1, row) for row in rows])
        for step in steps:
            step()
        statements = [step.args[1] for step in steps if isinstance(step.args[0], str)]
        assert statements
        for values in statements:
            held = [len(value) for value in values if isinstance(value, bytes)]
            assert len(held) == 1 or sum(held) <= STATEMENT_BYTES
        found = connection.execute("SELECT seq, length(body) FROM events ORDER BY seq").fetchall()
        assert found == list(enumerate(sizes))
    finally:
        connection.close()


@given(st.integers(0, 100_000))
def test_statements_add_up(count):
    assert sum(insert_sizes(count)) == count


@pytest.mark.guarantee(name="nothing-hangs")
@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("limit", [1, 2, 100])
@pytest.mark.parametrize(
    "asked", [{"body": "off"}, {"source": "user"}, {"since": "2026-11-21T08:00:03.000000Z"}, {"body": "none"}]
)
async def test_a_search_that_looks_at_much_says_how_far_it_looked(
    log, make_row, monkeypatch, order, limit, asked
):
    await fill(log, make_row)
    (whole,) = [(await log.search(**asked, order=order, limit=100)).items]
    monkeypatch.setattr(queries, "SCAN_SECONDS", 0)
    monkeypatch.setattr(queries, "SCAN_ROWS", 2)
    found, pages, page_id = [], 0, None
    while True:
        page = await log.search(**asked, order=order, limit=limit, page=page_id)
        assert len(page.items) <= limit
        found += page.items
        pages += 1
        page_id = page.next_page_id
        if page_id is None:
            break
    assert found == list(whole)
    assert pages >= 3  # of the six events, it looked at two each time
    assert await log.count(**asked) == len(whole)


async def test_a_kind_is_found_by_its_index(sqlite_journal, make_log, make_row, monkeypatch):
    """However many events there are of others."""
    log = await make_log(sqlite_journal, "c-1")
    await fill(log, make_row)
    monkeypatch.setattr(queries, "SCAN_SECONDS", 0)
    monkeypatch.setattr(queries, "SCAN_ROWS", 1)
    page = await log.search(kind="MessageEvent", order="desc", limit=2)
    assert (ids(page.items), page.next_page_id) == (["id-5", "id-4"], "id-0")

    def plan(asked):
        condition, values = sqlite_queries._where(1, 5, queries.Filter(kind="MessageEvent"))
        sql = f"EXPLAIN QUERY PLAN SELECT seq FROM events WHERE {condition} AND seq >= 0 ORDER BY seq DESC"
        return asked.connection.execute(sql, values).fetchall()

    (step,) = await log._readers.run(plan)
    assert "COVERING INDEX events_by_kind (conversation=? AND kind=? AND seq" in step[3]


@pytest.mark.guarantee(name="nothing-hangs")
async def test_counting_has_an_end(log, make_row, monkeypatch):
    await fill(log, make_row)
    monkeypatch.setattr(queries, "SCAN_SECONDS", 0)
    monkeypatch.setattr(queries, "SCAN_ROWS", 1)
    monkeypatch.setattr("supervisor.journal.log.COUNT_SECONDS", -1)
    with pytest.raises(SearchTooLong, match="6 events to go"):
        await log.count(body="off")
    assert await log.count(kind="MessageEvent") == 3
    assert await log.count() == 6


@pytest.mark.guarantee(name="nothing-hangs")
async def test_reads_after_each_other_use_one_connection(journal):
    used = [await journal._readers.run(lambda queries: queries) for _ in range(5)]
    assert len(set(used)) == 1


async def test_statements_are_prepared_at_their_first_use(journal_place, make_log):
    if journal_place.kind != "postgres":
        pytest.skip("SQLite prepares each statement")
    async with journal_place.open() as journal:
        await make_log(journal, "c-1")
        await journal.get_records(["c-1"])
        text = "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE 'SELECT id, record%%'"
        found = await journal._readers.run(lambda queries: queries.execute(text).fetchone())
        assert found == (1,)


async def test_long_searches_leave_readers_for_others(log, make_row, monkeypatch):
    await fill(log, make_row)
    gate = threading.Event()
    parts = queries._parts
    monkeypatch.setattr(queries, "_parts", lambda *range_: (gate.wait(20), parts(*range_))[1])
    async with trio.open_nursery() as nursery:
        for _ in range(8):
            nursery.start_soon(partial(log.count, body="off"))
        await trio.sleep(0.05)
        with trio.fail_after(30):
            for _ in range(8):
                assert len(await log.read(-1, 10)) == 6
                assert await log.count(kind="ActionEvent") == 2
        gate.set()


@pytest.mark.parametrize("character", ["\0", "\1", "\1\1", "a\0\1b"])
async def test_every_character_is_stored_and_found(journal_place, make_row, character):
    name = f"x{character}y"
    async with journal_place.open() as journal:
        log = await journal.create(
            "c-1", b"{}", status="idle", created_at=CREATED, updated_at=CREATED, title=name
        )
        row = make_row(id=name, kind=name, source=name)
        log.append([row])
        await log.flushed()
        assert (await log.get(name)).kind == name
        assert [item.id for item in (await log.search(source=name, page=name)).items] == [name]
        assert await log.count(kind=name) == await log.count(since=row.timestamp, body="{}") == 1
        assert await log.bodies([name, "x"], bytes) == [b"{}", None]
        assert await log.get(f"{name}!") is None
        (record,) = await journal.get_records(["c-1"])
        assert record.title == name
        assert (await journal.search_records(page="c-1")).items == (record,)
