"""How many events of a kind there are is known of whole blocks, and costs the same however many there are."""

from __future__ import annotations

import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import attrs
import pytest

from supervisor.journal import queries
from supervisor.journal.journal import open_journal
from supervisor.journal.port import Append, Made
from supervisor.journal.rows import NewRecord, Stored
from supervisor.journal.storage import schema
from supervisor.journal.storage.queries import SqliteQueries
from supervisor.journal.storage.schema import BLOCK_EVENTS
from supervisor.journal.storage.store import Store
from tests.journal.harness import new_log
from tests.journal.places import LIVE, SqlitePlace

KINDS = ("ActionEvent", "MessageEvent", "ObservationEvent", "PauseEvent")
FEW, MANY = 2 * BLOCK_EVENTS + 100, 60 * BLOCK_EVENTS + 100
MOST_RATIO = 2.0
NOW = "2026-11-21T08:00:00.000000Z"


def record_of(name: str) -> NewRecord:
    return NewRecord(id=name, record=b"{}", status="idle", created_at=NOW, updated_at=NOW)


# As an agent would have written them, but at once.
FILL = """
WITH RECURSIVE n (seq) AS (SELECT 0 UNION ALL SELECT seq + 1 FROM n WHERE seq + 1 < :many)
INSERT INTO events SELECT
    :key, seq, 'id-' || seq, CASE WHEN seq % 10 THEN 'ActionEvent' ELSE 'MessageEvent' END, 'agent',
    '2026-11-21T08:00:00.000000Z', CAST('{"n":' || seq || '}' AS BLOB), NULL FROM n
"""


def kind_of(seq: int) -> str:
    rare = seq % (3 * BLOCK_EVENTS) == 7  # some blocks have none of it
    return "PauseEvent" if rare else KINDS[seq * seq % 7 % 3]


def rows(make_row, first: int, last: int):
    return [make_row(kind=kind_of(seq)) for seq in range(first, last + 1)]


def expected(until: int) -> dict[str, int]:
    return dict.fromkeys(KINDS, 0) | Counter(map(kind_of, range(until + 1)))


async def counted(log) -> dict[str, int]:
    return {kind: await log.count(kind=kind) for kind in KINDS}


def stored_counts(journal_place, conversation: int = 1):
    return journal_place.query(
        f"SELECT block, kind, events FROM kind_counts WHERE conversation = {conversation} ORDER BY 1, 2"
    )


def by_blocks(events: int, first: int = 0):
    """What is stored of so many events from `first` on."""
    found: list[tuple[int, str, int]] = []
    total: Counter[str] = Counter()
    for block in range(events // BLOCK_EVENTS):
        begin = first + block * BLOCK_EVENTS
        kinds = Counter(map(kind_of, range(begin, begin + BLOCK_EVENTS)))
        total += kinds
        found += [(block, kind, total[kind]) for kind in sorted(kinds)]
    return found


@pytest.mark.parametrize("batch", [1000, BLOCK_EVENTS, BLOCK_EVENTS - 1, 3 * BLOCK_EVENTS + 5])
async def test_kinds_are_counted_over_blocks(journal_place, make_row, batch):
    events = 3 * BLOCK_EVENTS + 5
    async with journal_place.open() as journal:
        log = await new_log(journal, "c-1")
        for first in range(0, events, batch):
            last = min(events, first + batch) - 1
            log.append(rows(make_row, first, last))
            await log.flushed()
            assert await counted(log) == expected(last)
        assert await log.count(kind="openhands.sdk.event.ActionEvent") == expected(events - 1)["ActionEvent"]
        assert await log.count(kind="NoEvent") == 0
    assert stored_counts(journal_place) == by_blocks(events)


def counted_until(asked, key, until, kind):
    return asked.count(key, until, kind)


@pytest.mark.parametrize("around", [BLOCK_EVENTS, 2 * BLOCK_EVENTS])
async def test_no_event_beyond_what_is_visible_is_counted(log, make_row, around):
    log.append(rows(make_row, 0, 2 * BLOCK_EVENTS))
    await log.flushed()
    for until in range(around - 3, around + 1):
        found = {
            kind: await log._read(partial(counted_until, until=until, kind=kind))  # as `Log.count` calls it
            for kind in KINDS
        }
        assert found == expected(until)


@pytest.mark.guarantee(name="nothing-hangs")
def test_a_copy_has_counts_of_its_own(journal_place):
    store = opened_store(journal_place)
    made_one = store.create(record_of("source"))
    assert made_one is not None
    source = made_one.key
    store.write([appended(made_one, made(0, 2 * BLOCK_EVENTS + 10))])
    # From its eleventh event on, in pieces that end anywhere, one event that is new at the end of a block.
    copy = store.begin_copy()
    last = 10 + 2 * BLOCK_EVENTS - 2
    for first in range(10, last + 1, 1500):
        store.copy_events(source, copy, first, min(last, first + 1499), 10)
    (end,) = made(last + 1, last + 1)
    new = Stored(id="new", kind=end.kind, source="agent", timestamp=end.timestamp, body=b"{}", seq=last - 9)
    assert store.end_copy(copy, record_of("copy"), [new])
    assert stored_counts(journal_place, copy) == by_blocks(2 * BLOCK_EVENTS, first=10)
    store.forget_copy(copy)
    assert store.bury("copy")
    while store.erase(BLOCK_EVENTS) is not None:
        pass
    store.close()
    assert stored_counts(journal_place, copy) == []
    assert stored_counts(journal_place, source) == by_blocks(2 * BLOCK_EVENTS)


def opened_store(journal_place):
    if journal_place.kind == "sqlite":
        return Store.open(journal_place.path)
    from supervisor.journal.postgres.store import PostgresStore

    return PostgresStore.open(journal_place.database, journal_place.take_over(), LIVE)


def appended(made_one: Made, rows: list[Stored]) -> Append:
    log = SimpleNamespace(key=made_one.key, generation=made_one.generation, broken=None)
    return Append(
        handle=log,  # type: ignore[arg-type]
        rows=rows,
        record=None,
        blobs=(),
        size=0,
        last_seq=rows[-1].seq,
        ticket=1,
    )


def made(first: int, last: int) -> list[Stored]:
    when = "2026-11-21T08:00:00.000000Z"
    return [
        Stored(id=f"id-{n}", kind=kind_of(n), source="agent", timestamp=when, body=b"{}", seq=n)
        for n in range(first, last + 1)
    ]


@pytest.mark.guarantee(name="nothing-hangs")
@pytest.mark.parametrize("events", [BLOCK_EVENTS - 1, BLOCK_EVENTS, 2 * BLOCK_EVENTS + 17])
async def test_a_file_of_version_2_gets_the_counts_that_it_would_have(tmp_path, make_row, events):
    path = tmp_path / "journal.sqlite"
    store = Store.open(path, schema.MIGRATIONS[:2])
    made_one = store.create(record_of("c-1"))
    assert made_one is not None
    key = made_one.key
    with closing(sqlite3.connect(path)) as connection:
        for row in made(0, events - 1):
            values = (key, row.seq, row.id, row.kind, row.source, row.timestamp, row.body)
            connection.execute("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)", values)
        connection.commit()
    store.close()
    async with open_journal(path) as journal:
        assert stored_counts(SqlitePlace(path)) == by_blocks(events)
        log = await journal.log("c-1")
        assert await counted(log) == expected(events - 1)
        log.append(rows(make_row, events, events + BLOCK_EVENTS))
        await log.flushed()
        assert await counted(log) == expected(events + BLOCK_EVENTS)
    assert stored_counts(SqlitePlace(path)) == by_blocks(events + BLOCK_EVENTS + 1)


@pytest.fixture(scope="module")
def filled_path(tmp_path_factory):
    """A journal with few events under the number 1, and many under the number 2."""
    path = tmp_path_factory.mktemp("filled") / "journal.sqlite"
    store = Store.open(path)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(FILL, {"key": 1, "many": FEW})
        connection.execute(FILL, {"key": 2, "many": MANY})
    for key, events in ((1, FEW), (2, MANY)):
        store._count_blocks(key, 0, events - 1)
    store.close()
    return path


@pytest.fixture(scope="module")
def filled(filled_path):
    asked = SqliteQueries.open(filled_path, 0)
    yield asked
    asked.close()


def steps_of(connection, action) -> int:
    """The work of an action in tens of steps of SQLite's machine, which are the same on every computer."""
    taken = 0

    def step() -> int:
        nonlocal taken
        taken += 1
        return 0

    connection.set_progress_handler(step, 10)
    try:
        assert action() is not False
    finally:
        connection.set_progress_handler(None, 0)
    return taken


def page(asked, key, until, order="asc", kind=None):
    middle = f"id-{until // 2 // 10 * 10}"
    return asked.search(key, until, queries.PageQuery(queries.Filter(kind=kind), order, middle, 100))


READS = {
    "one": lambda asked, key, until: asked.get(key, until, f"id-{until // 2}"),
    "batch": lambda asked, key, until: [
        *asked.bodies(key, until, [f"id-{n * until // 500}" for n in range(500)])
    ],
    "page": page,
    "page from the end": partial(page, order="desc"),
    "page of a kind": partial(page, kind="MessageEvent"),
    "count of a kind": partial(SqliteQueries.count, kind="MessageEvent"),
    "newest": partial(SqliteQueries.newest, besides="ConversationStateUpdateEvent"),
}


@pytest.mark.guarantee(name="nothing-hangs")
@pytest.mark.parametrize("name", READS)
def test_a_read_is_no_more_work_among_many_events(filled, name):
    read = READS[name]
    few = steps_of(filled.connection, lambda: bool(read(filled, 1, FEW - 1)))
    many = steps_of(filled.connection, lambda: bool(read(filled, 2, MANY - 1)))
    assert many <= MOST_RATIO * few + 10


def test_an_event_is_no_more_work_to_store_among_many(filled_path, tmp_path):
    """Whole blocks, so that the counting of their kinds is in it."""
    path = shutil.copy(filled_path, tmp_path)
    with closing(Store.open(Path(path))) as store:

        def stored(key: int, first: int) -> int:
            rows = [
                (key, attrs.evolve(row, id=f"new-{row.seq}")) for row in made(first, first + BLOCK_EVENTS - 1)
            ]
            work = 0
            for step in store.insert_steps(rows):
                work += steps_of(store._connection, step)
            return work

        assert stored(2, MANY) <= MOST_RATIO * stored(1, FEW)


def test_a_batch_has_large_events_too(filled, monkeypatch):
    monkeypatch.setattr(queries, "SMALL_BYTES", 8)
    monkeypatch.setattr(queries, "PAGE_MAX_BYTES", 30)
    asked = ["id-3", "id-1000", "id-7", "none", "id-1001", "id-3", "id-8000"]
    assert dict(filled.bodies(1, FEW - 1, asked)) == {
        name: b'{"n":%s}' % name[3:].encode() for name in asked if name != "none"
    }
