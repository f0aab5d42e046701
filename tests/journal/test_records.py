"""Conversations and their records."""

from __future__ import annotations

import sqlite3
import stat
from contextlib import closing

import pytest
import trio

from supervisor.journal.errors import (
    AlreadyExists,
    JournalClosed,
    JournalError,
    JournalInUse,
    UnknownConversation,
)
from supervisor.journal.journal import open_journal
from supervisor.journal.rows import Blob, RecordOrder, RecordUpdate
from supervisor.journal.storage.queries import SqliteQueries
from tests.journal.test_kind_counts import steps_of


def update(record=b"new", status="running", updated_at="2026-11-21T09:00:00.000000Z", title=None):
    return RecordUpdate(record=record, status=status, updated_at=updated_at, title=title)


async def test_a_conversation_is_created_once(journal, log, make_log):
    assert log.last_seq == log.high_water == -1
    with pytest.raises(AlreadyExists):
        await make_log(journal, "c-1")
    assert await journal.log("c-1") is log
    with pytest.raises(UnknownConversation):
        await journal.log("nobody")


async def test_two_at_once_create_one(journal, make_log):
    outcomes = []

    async def create():
        try:
            outcomes.append(await make_log(journal, "twin"))
        except AlreadyExists:
            outcomes.append(None)

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(create)
    assert sum(outcome is not None for outcome in outcomes) == 1


async def test_a_log_is_one_object_while_it_is_used(journal, log, make_row):
    log.append([make_row(), make_row()])
    await log.flushed()
    del log
    found = []

    async def load():
        found.append(await journal.log("c-1"))

    async with trio.open_nursery() as nursery:
        for _ in range(5):
            nursery.start_soon(load)
    assert len({id(each) for each in found}) == 1
    assert found[0].last_seq == found[0].high_water == 1
    assert found[0].append([make_row()]) == 2


async def test_a_log_let_go_with_rows_under_way_gives_out_no_number_twice(journal, log, make_row):
    del log
    for expected in range(50):
        log = await journal.log("c-1")
        assert log.append([make_row()]) == expected
        del log
    log = await journal.log("c-1")
    await log.flushed()
    assert [item.seq for item in await log.read(-1, 100)] == list(range(50))


async def test_the_record_goes_with_the_rows(journal, log, make_row):
    (before,) = await journal.get_records(["c-1"])
    assert (before.record, before.status, before.title, before.epoch) == (b"{}", "idle", None, journal.epoch)
    log.append([make_row()], update(title="first"), [Blob("b", "text/plain", b"data")])
    log.update_record(update(b"newer"))
    await log.flushed()
    (after,) = await journal.get_records(["c-1"])
    assert (after.record, after.status, after.title) == (b"newer", "running", "first")
    assert after.updated_at == "2026-11-21T09:00:00.000000Z"
    assert after.created_at == before.created_at
    assert (await log.get_blob("b")).data == b"data"


async def test_a_status_that_stays_is_not_written(sqlite_journal, make_log):
    """Its index would be: all of an entry is taken out and put in again."""
    journal, log = sqlite_journal, await make_log(sqlite_journal, "c-1")
    written = []
    journal._writer._store._connection.set_trace_callback(written.append)
    for record in (b"1", b"2", b"3"):
        log.update_record(update(record))
        await log.flushed()
    journal._writer._store._connection.set_trace_callback(None)
    changes = [each.partition(" WHERE ")[0] for each in written if each.startswith("UPDATE conversations")]
    assert [change for change in changes[-2:] if " status" in change] == []
    (after,) = await journal.get_records(["c-1"])
    assert (after.record, after.status) == (b"3", "running")


async def several(journal):
    for n, (created, updated, status) in enumerate(
        [("1", "9", "idle"), ("2", "7", "running"), ("2", "8", "idle"), ("3", "1", "idle")]
    ):
        await journal.create(
            f"c{n}",
            b"%d" % n,
            status=status,
            created_at=created,
            updated_at=updated,
            parent_id="p" if n else None,
        )


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        (RecordOrder.CREATED_AT, "0123"),
        (RecordOrder.CREATED_AT_DESC, "3210"),
        (RecordOrder.UPDATED_AT, "3120"),
        (RecordOrder.UPDATED_AT_DESC, "0213"),
        ("updated_at", "3120"),
    ],
)
@pytest.mark.parametrize("limit", [1, 2, 3, 4, 9])
async def test_lists_of_conversations(journal, order, expected, limit):
    await several(journal)
    seen = ""
    page_id = None
    while True:
        page = await journal.search_records(order=order, page=page_id, limit=limit)
        assert page_id is None or page.items[0].id == page_id
        seen += "".join(item.record.decode() for item in page.items)
        page_id = page.next_page_id
        if page_id is None:
            break
    assert seen == expected


async def test_lists_by_status_and_parent(journal):
    await several(journal)
    page = await journal.search_records(status="idle", limit=2)
    assert ([item.id for item in page.items], page.next_page_id) == (["c3", "c2"], "c0")
    page = await journal.search_records(status="idle", limit=2, page="c0")
    assert ([item.id for item in page.items], page.next_page_id) == (["c0"], None)
    # A page that starts at a conversation which has left the list starts in its place.
    page = await journal.search_records(status="idle", page="c1")
    assert [item.id for item in page.items] == ["c0"]
    page = await journal.search_records(page="nobody", limit=1)
    assert [item.id for item in page.items] == ["c3"]
    assert [item.id for item in (await journal.search_records(parent_id="p")).items] == ["c3", "c2", "c1"]
    assert [await journal.count_records(status) for status in (None, "idle", "stuck")] == [4, 3, 0]
    assert await journal.count_records(parent_id="p") == 3
    # What is left out leaves no gap in a page, also where the page begins with it.
    page = await journal.search_records(limit=2, without=["c3", "c1", "c9"])
    assert ([item.id for item in page.items], page.next_page_id) == (["c2", "c0"], None)
    page = await journal.search_records(status="idle", page="c2", limit=1, without={"c2": 1.0})
    assert ([item.id for item in page.items], page.next_page_id) == (["c0"], None)
    assert await journal.count_records("idle", without=["c2"]) == 2
    with pytest.raises(ValueError, match="sideways"):
        await journal.search_records(order="sideways")
    found = await journal.get_records(["c2", "nobody", "c2"])
    assert [record and record.id for record in found] == ["c2", None, "c2"]


async def test_deleting_leaves_nothing(journal_place, journal, log, make_log, make_row):
    other = await make_log(journal, "c-2")
    other.append([make_row()])
    log.append([make_row()], blobs=[Blob("b", "text/plain", b"data")])
    assert await journal.delete("c-1")
    assert not await journal.delete("c-1")
    assert await journal.get_records(["c-1"]) == [None]
    with pytest.raises(UnknownConversation):
        await journal.log("c-1")
    await other.flushed()

    # Erased a little at a time, between other writes.
    with trio.fail_after(20):
        while [journal_place.count("events"), journal_place.count("blobs")] != [1, 0]:
            await trio.sleep(0.01)
    again = await make_log(journal, "c-1")
    assert again.append([make_row()]) == 0
    await again.flushed()
    assert await again.get_blob("b") is None


async def test_a_cancelled_create_or_delete_is_finished(journal, make_log):
    with trio.CancelScope() as scope:
        scope.cancel()
        await make_log(journal, "cancelled")
    with trio.move_on_after(5):
        log = await make_log(journal, "c-9")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.delete, "c-9")
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
    assert await journal.get_records(["c-9"]) == [None]
    assert log.last_seq == -1


async def test_everything_is_there_after_a_restart(journal_place, make_log, make_row):
    async with journal_place.open() as journal:
        epoch = journal.epoch
        log = await make_log(journal, "c-1")
        log.append([make_row(b"%d" % n) for n in range(2500)], update(title="kept"))
        # Not flushed: leaving the block does that.
    with pytest.raises(JournalClosed):
        log.append([make_row()])
    with pytest.raises(JournalClosed):
        await log.read(-1, 1)
    async with journal_place.open() as journal:
        assert journal.epoch == epoch + 1
        log = await journal.log("c-1")
        assert log.last_seq == 2499
        assert [item.body for item in await log.read(-1, 100_000)] == [b"%d" % n for n in range(2500)]
        (record,) = await journal.get_records(["c-1"])
        assert (record.title, record.epoch) == ("kept", epoch)


async def test_nobody_else_reads_or_writes_the_file(sqlite_journal, journal_path, make_log):
    await make_log(sqlite_journal, "c-1")
    assert stat.S_IMODE(journal_path.parent.stat().st_mode) == 0o700
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in journal_path.parent.iterdir()}
    assert set(modes.values()) == {0o600}, modes
    with pytest.raises(JournalInUse):
        async with open_journal(journal_path):
            pass


async def test_a_commit_survives_the_death_of_the_process(sqlite_journal):
    connection = sqlite_journal._writer._store._connection
    assert connection.execute("PRAGMA synchronous").fetchone() == (1,)  # NORMAL
    assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


@pytest.mark.parametrize("content", [b"not a database at all, but long enough to be looked at" * 100])
async def test_a_file_of_something_else_is_refused_untouched(journal_path, content):
    journal_path.parent.mkdir()
    journal_path.write_bytes(content)
    with pytest.raises(JournalError, match="cannot open"):
        async with open_journal(journal_path):
            pass
    assert journal_path.read_bytes() == content


async def test_a_place_that_cannot_be_written_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(JournalError, match="cannot open"):
        async with open_journal(tmp_path / "file" / "journal.sqlite"):
            pass


@pytest.mark.parametrize(
    ("status", "order"),
    [
        ("running", RecordOrder.CREATED_AT_DESC),  # for which a start looks
        ("running", RecordOrder.CREATED_AT),
        *(("idle", order) for order in RecordOrder),
    ],
)
async def test_a_page_of_a_status_is_no_more_work_among_many(journal_path, status, order):
    taken = []
    async with open_journal(journal_path):
        pass
    with closing(sqlite3.connect(journal_path, isolation_level=None)) as connection:
        asked = SqliteQueries(connection)
        connection.execute("PRAGMA query_only = OFF")
        for many in (500, 5_000):
            insert = """
            WITH RECURSIVE n (i) AS (SELECT :first UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :many)
            INSERT INTO conversations (id, record, status, created_at, updated_at, epoch)
            SELECT 'c-' || i, '{}', CASE WHEN i % 100 THEN 'idle' ELSE 'finished' END, i, i, 1 FROM n
            """
            connection.execute(insert, {"first": 500 if many > 500 else 0, "many": many})
            taken.append(
                steps_of(
                    connection,
                    lambda: asked.search_records(status, None, order, None, 20) is not None,
                )
            )
    assert taken[1] <= taken[0] + 10
