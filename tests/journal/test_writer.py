"""Group commit, backpressure, and what happens when the disk does not play along."""
# ruff: noqa: PT012  # what raises is the end of the block

from __future__ import annotations

import threading

import psycopg
import pytest
import trio

from supervisor.fairness import share
from supervisor.journal.errors import DuplicateEvent, JournalClosed, JournalError
from supervisor.journal.rows import Frame, RecordUpdate, Stored
from supervisor.journal.storage import writer
from supervisor.journal.storage.store import Store
from tests.journal.harness import put_blob

UPDATE = RecordUpdate(record=b"new", status="running", updated_at="2026-11-21T09:00:00.000000Z")


@pytest.fixture
def hold(journal, monkeypatch):
    """Hold the writer thread before its next transaction; count transactions."""
    gate = threading.Event()
    gate.set()
    real = writer._write
    batches = []

    def write(store, ops):
        gate.wait(10)
        batches.append(len(ops))
        real(store, ops)

    monkeypatch.setattr(writer, "_write", write)
    yield gate, batches
    gate.set()


def spoil(journal):
    """Let every write fail, and for good."""
    store = journal._writer._store
    if isinstance(store, Store):
        store._connection.execute("PRAGMA query_only = ON")
        return

    class Broken:
        closed = False

        def execute(self, *_, **__):
            raise psycopg.errors.UndefinedTable("readonly: the relation is gone")

        pgconn = property(execute)

        def close(self):
            real.close()

    real, store._live = store._live, Broken()


async def test_what_gathers_is_one_transaction_and_one_wake_up(journal, log, make_log, make_row, hold):
    gate, batches = hold
    other = await make_log(journal, "c-2")
    batches.clear()
    wakes = []
    post = journal._writer._post
    journal._writer._post = lambda *arguments: (wakes.append(arguments), post(*arguments))
    gate.clear()
    log.append([make_row()])
    await trio.sleep(0.02)  # the writer has taken it and is held
    for _ in range(100):
        log.append([make_row(), make_row()], UPDATE)
        other.append([make_row()])
    assert (log.last_seq, log.high_water) == (200, -1)
    gate.set()
    await log.flushed()
    await other.flushed()
    assert batches == [1, 200]
    assert len(wakes) == 2
    assert (log.high_water, other.high_water) == (200, 99)
    assert (await journal.get_records(["c-1"]))[0].record == b"new"


@pytest.mark.parametrize("cancelled", [False, True])
async def test_relays_are_held_back_while_somebody_waits_for_the_disk(
    log, make_row, hold, mock_clock, cancelled
):
    """On a clock that stands still: how long at most is the gate's own matter."""
    gate, _ = hold
    relayed = []

    async def wait(scope):
        with scope:
            await log.flushed()

    async def relay():
        await share().turn()
        relayed.append(log.high_water)

    gate.clear()
    log.append([make_row()])
    async with trio.open_nursery() as nursery:
        waiting = trio.CancelScope()
        nursery.start_soon(wait, waiting)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(relay)
        await trio.testing.wait_all_tasks_blocked()
        assert relayed == []
        if cancelled:
            waiting.cancel()
        else:
            gate.set()
    assert relayed == [-1 if cancelled else 0]


async def test_flushed_waits_for_what_was_appended_before_it(log, make_row, hold):
    gate, _ = hold
    gate.clear()
    for write in (lambda: log.append([make_row()]), lambda: log.update_record(UPDATE)):
        write()
        with trio.move_on_after(0.02) as scope:
            await log.flushed()
        assert scope.cancelled_caught
    gate.set()
    await log.flushed()
    assert log.high_water == 0
    with trio.fail_after(30):
        await log.flushed()


async def test_where_many_come_more_may_gather_and_nobody_who_waits_is_held_up(
    journal, log, make_log, make_row, hold, monkeypatch
):
    monkeypatch.setattr(writer, "CROWD_SECONDS", 600)
    gate, _ = hold

    async def settled(seconds):
        with trio.move_on_after(seconds):
            while not log.settled:
                await trio.sleep(0.001)
        return log.settled

    async def crowd(name):
        """Afterwards the writer rests, and nobody has said yet that somebody waits."""
        gate.clear()
        log.append([make_row(f"{name}-first".encode())])
        await trio.sleep(0.05)  # the writer has it, all others are one transaction
        for number in range(3 * writer.CROWD):
            log.append([make_row(f"{name}-{number}".encode())])
        journal._writer._hurry.clear()
        gate.set()
        assert await settled(20)

    with trio.fail_after(60):
        await crowd("crowd")
        last = log.append([make_row(b"nobody waits for it")])
        rested = not await settled(0.2)
        await log.flushed()
        assert log.high_water == last
        await crowd("another")
        await make_log(journal, "made meanwhile")
        await crowd("third")
        assert await log.flushed_unless_troubled()
    assert rested


async def test_records_alone_are_a_crowd_too(journal, log, hold, monkeypatch):
    monkeypatch.setattr(writer, "CROWD_SECONDS", 600)
    gate, batches = hold
    with trio.fail_after(60):
        gate.clear()
        log.update_record(UPDATE)
        await trio.sleep(0.05)
        for _ in range(writer.CROWD):
            log.update_record(UPDATE)
        before = len(batches)
        journal._writer._hurry.clear()
        gate.set()
        while len(batches) < before + 1 or not log.settled:
            await trio.sleep(0.001)
        log.update_record(UPDATE)
        with trio.move_on_after(0.2):
            while not log.settled:
                await trio.sleep(0.001)
        assert not log.settled  # the writer lets more gather
        await log.flushed()


async def test_room_holds_producers_back(log, make_row, hold, monkeypatch):
    monkeypatch.setattr(writer, "MAX_PENDING_BYTES", 10_000)
    gate, _ = hold
    gate.clear()
    log.append([make_row(b"x" * 5_000)])
    with trio.fail_after(30):
        await log.room()
    log.append([make_row(b"x" * 5_000)])
    with trio.move_on_after(0.02) as scope:
        await log.room()
    assert scope.cancelled_caught
    gate.set()
    with trio.fail_after(30):
        await log.room()
    await log.flushed()
    assert journal_pending(log) == 0


def journal_pending(log):
    return log._writer._pending_bytes


async def test_a_failure_that_lasts_is_told_to_everybody_and_nothing_hangs(journal_place, make_log, make_row):
    told = []

    async def expect(wait):
        with pytest.raises(JournalError) as caught:
            while True:
                await wait()
        told.append(str(caught.value))

    with pytest.raises(JournalError, match="readonly"):
        async with journal_place.open() as journal:
            log = await make_log(journal, "c-1")
            other = await make_log(journal, "c-2")
            log.append([make_row()])
            await log.flushed()
            cursor = log.subscribe(0)
            spoil(journal)
            with trio.fail_after(30):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(expect, cursor.next)
                    await trio.testing.wait_all_tasks_blocked()
                    log.append([make_row(b"x" * 1_000_000)])
                    other.append([make_row()])
                    nursery.start_soon(expect, log.flushed)
                    nursery.start_soon(expect, other.flushed)
            assert len(told) == 3
            assert all("readonly" in text for text in told)
            for use in (
                lambda: log.append([make_row()]),
                lambda: other.append([make_row()]),
                lambda: log.update_record(UPDATE),
                lambda: log.publish(Frame()),
            ):
                with pytest.raises(JournalError, match="readonly"):
                    use()
            with trio.fail_after(30):
                for wait in (
                    log.room,
                    lambda: make_log(journal, "c-3"),
                    lambda: journal.delete("c-1"),
                    lambda: put_blob(log, "b", b""),
                ):
                    with pytest.raises(JournalError, match="readonly"):
                        await wait()
            assert log.high_water == 0
    # What was visible is there.
    async with journal_place.open() as journal:
        log = await journal.log("c-1")
        assert [item.seq for item in await log.read(-1, 10)] == [0]
        assert log.append([make_row()]) == 1


@pytest.mark.parametrize("call", ["create", "delete"])
async def test_a_call_under_way_fails_with_the_journal(journal_place, make_log, make_row, call):
    with pytest.raises(JournalError, match="readonly"):
        async with journal_place.open() as journal:
            await make_log(journal, "c-1")
            spoil(journal)
            with trio.fail_after(30), pytest.raises(JournalError, match="readonly"):
                await (make_log(journal, "c-2") if call == "create" else journal.delete("c-1"))


async def test_an_error_that_nobody_foresaw_is_told_too(journal_place, make_log, make_row, monkeypatch):
    def write(store, ops):
        raise ZeroDivisionError("a mistake")

    with pytest.raises(JournalError, match="a mistake") as caught:
        async with journal_place.open() as journal:
            log = await make_log(journal, "c-1")
            monkeypatch.setattr(writer, "_write", write)
            log.append([make_row()])
            with trio.fail_after(30), pytest.raises(JournalError, match="a mistake"):
                await log.flushed()
    assert isinstance(caught.value.__cause__.__cause__, ZeroDivisionError)


async def test_rows_that_fail_only_while_closing_are_told(journal_place, make_log, make_row):
    with pytest.raises(JournalError, match="readonly"):
        async with journal_place.open() as journal:
            log = await make_log(journal, "c-1")
            spoil(journal)
            log.append([make_row(b"x" * 1_000_000)])


async def test_the_error_of_the_block_goes_first(journal_place, make_log, make_row):
    with pytest.raises(KeyError):
        async with journal_place.open() as journal:
            log = await make_log(journal, "c-1")
            spoil(journal)
            log.append([make_row(b"x" * 1_000_000)])
            raise KeyError


async def test_the_same_id_twice_in_one_append_is_refused_before_anything_happens(log, make_row):
    with pytest.raises(DuplicateEvent):
        log.append([make_row(id="a"), make_row(id="b"), make_row(id="a")])
    assert log.last_seq == -1
    assert log.append([make_row(id="a")]) == 0
    await log.flushed()


async def test_a_repeated_id_breaks_one_log_and_no_other(journal, log, make_log, make_row, hold):
    gate, _ = hold
    other = await make_log(journal, "c-2")
    log.append([make_row(id="a")])
    await log.flushed()
    cursor = log.subscribe(0)
    gate.clear()
    other.append([make_row()])
    await trio.sleep(0.02)
    log.append([make_row(), make_row()])
    log.append([make_row(id="a")])
    for _ in range(50):
        other.append([make_row()], UPDATE)
    fresh = []

    async def create():
        fresh.append(await make_log(journal, "c-3"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(create)
        await trio.testing.wait_all_tasks_blocked()
        gate.set()
        with trio.fail_after(30):
            for wait in (log.flushed, cursor.next):
                with pytest.raises(DuplicateEvent):
                    await wait()
    with pytest.raises(DuplicateEvent):
        log.append([make_row()])
    await other.flushed()
    assert (other.high_water, log.high_water, fresh[0].last_seq) == (50, 0, -1)
    assert await other.count(source="user") == 51
    # Fetched anew, the log goes on without a gap.
    again = await journal.log("c-1")
    assert again is not log
    assert again.append([make_row()]) == 1
    await again.flushed()
    assert [item.seq for item in await again.read(-1, 10)] == [0, 1]
    assert journal_pending(other) == 0


async def test_rows_queued_for_a_log_that_broke_are_dropped(journal, log, make_row, hold):
    gate, _ = hold
    log.append([make_row(id="a")])
    await log.flushed()
    gate.clear()
    log.append([make_row(id="a")])
    await trio.sleep(0.02)
    log.append([make_row()])  # in the next batch, with a number that must not come true
    gate.set()
    with trio.fail_after(30), pytest.raises(DuplicateEvent):
        await log.flushed()
    while journal_pending(log):
        await trio.sleep(0)
    assert log.high_water == 0
    again = await journal.log("c-1")
    assert [item.seq for item in await again.read(-1, 10)] == [0]


async def test_leaving_writes_what_is_queued_also_when_cancelled(journal_place, make_log, make_row):
    before = threading.active_count()
    with trio.CancelScope() as scope:
        async with journal_place.open() as journal:
            log = await make_log(journal, "c-1")
            log.append([make_row() for _ in range(3000)])
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert not any(thread.name == "journal-writer" for thread in threading.enumerate())
    assert threading.active_count() <= before + 8  # Trio's idle threads
    async with journal_place.open() as journal:
        assert (await journal.log("c-1")).last_seq == 2999


async def test_a_disk_that_never_answers_does_not_hold_up_the_end(
    journal_place, make_log, make_row, hold_forever, monkeypatch
):
    monkeypatch.setattr("supervisor.journal.journal.CLOSE_TIMEOUT", 0.05)
    with trio.fail_after(30), pytest.raises(JournalError, match="still writing"):
        async with journal_place.open() as journal:
            log = await make_log(journal, "c-1")
            hold_forever(True)
            log.append([make_row()])
            waiter = log
    with pytest.raises(JournalClosed):
        await waiter.read(-1, 1)


@pytest.fixture
def hold_forever(monkeypatch):
    gate = threading.Event()
    holding = []
    real = writer._write

    def write(store, ops):
        if holding:
            gate.wait(20)
        real(store, ops)

    monkeypatch.setattr(writer, "_write", write)
    yield holding.append
    gate.set()
    for thread in threading.enumerate():
        if thread.name == "journal-writer":
            thread.join(5)


async def test_a_test_clock_does_not_cut_closing_short(journal_place, make_row, make_log, autojump_clock):
    async with journal_place.open() as journal:
        log = await make_log(journal, "c-1")
        for _ in range(20):
            log.append([make_row(b"x" * 1000) for _ in range(1000)])
    async with journal_place.open() as journal:
        assert (await journal.log("c-1")).last_seq == 19_999


async def test_rows_are_stored_values(log, make_row):
    row = make_row(b'{"a":1}')
    log.append([row])
    await log.flushed()
    (stored,) = await log.read(-1, 1)
    assert stored == Stored(
        id=row.id, kind=row.kind, source=row.source, timestamp=row.timestamp, body=row.body, seq=0
    )
