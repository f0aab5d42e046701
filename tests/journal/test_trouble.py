"""Failures of the disk and of the database that pass, and those that last."""
# ruff: noqa: PT012  # what raises is the end of the block

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager, suppress

import psycopg
import pytest
import structlog
import trio
import trio.testing

from supervisor.fairness import Gate
from supervisor.journal import log as log_module
from supervisor.journal import trouble
from supervisor.journal.errors import (
    DuplicateEvent,
    JournalError,
    JournalUnavailable,
    LogDeleted,
    TooLarge,
    UnknownConversation,
)
from supervisor.journal.journal import open_journal
from supervisor.journal.rows import RecordUpdate
from supervisor.journal.storage import writer
from supervisor.journal.storage.reserve import Reserve
from supervisor.journal.storage.store import TROUBLED_BUSY_TIMEOUT, Store
from tests.journal.harness import put_blob

PATIENCE_S = 20
UPDATE = RecordUpdate(record=b"new", status="running", updated_at="2026-11-21T09:00:00.000000Z")

HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read(1)
connection.execute("ROLLBACK")
print("free", flush=True)
"""


@contextmanager
def held_by_another_process(path):
    """The database is locked until the block ends."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "held\n"
        try:
            yield
        finally:
            process.stdin.write("x")
            process.stdin.close()
            assert process.stdout.readline() == "free\n"


def writing(journal):
    return journal._writer._store._connection


@contextmanager
def full(journal):
    """The file may grow no more: SQLite reports a full disk."""
    connection = writing(journal)
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    try:
        yield
    finally:
        connection.execute("PRAGMA max_page_count = 1073741823")


POSTGRES = {
    "SQLITE_FULL": psycopg.errors.DiskFull,
    "SQLITE_IOERR_WRITE": psycopg.errors.IoError,
    "SQLITE_IOERR_FSYNC": psycopg.errors.CrashShutdown,
    "SQLITE_CANTOPEN": psycopg.errors.TooManyConnections,
    "SQLITE_NOMEM": psycopg.errors.OutOfMemory,
    "SQLITE_LOCKED": psycopg.errors.LockNotAvailable,
    "SQLITE_CORRUPT": psycopg.errors.DataCorrupted,
    "SQLITE_NOTADB": psycopg.errors.UndefinedTable,
    "SQLITE_READONLY": psycopg.errors.InsufficientPrivilege,
    "SQLITE_IOERR_DATA": psycopg.errors.IndexCorrupted,
}
"""PostgreSQL's errors that have the consequence of SQLite's."""


def injected(store, name):
    if not isinstance(store, Store):
        return POSTGRES[name](f"injected {name}")
    error = sqlite3.OperationalError(f"injected {name}")
    error.sqlite_errorcode = getattr(sqlite3, name)
    error.sqlite_errorname = name
    return error


@pytest.fixture
def failing(monkeypatch):
    """Let writes fail with an error of SQLite's, by its name, while the list holds one, or with PostgreSQL's
    counterpart."""
    names: list[str] = []
    real = writer._write

    def write(store, ops):
        if names:
            raise injected(store, names[0])
        real(store, ops)

    monkeypatch.setattr(writer, "_write", write)
    return names


async def until(condition):
    with trio.fail_after(PATIENCE_S):
        while not condition():
            await trio.sleep(0.005)


BIG = b'"' + b"x" * 1_000_000 + b'"'


async def check_that_all_goes_on(journal, log, other, cursor, make_row, spoil):
    """Nothing is lost, doubled or out of order over a time in which nothing can be written."""
    seen: list[int] = []

    async def follow():
        while len(seen) < 61:
            seen.extend(item.seq for item in await cursor.next())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        with spoil:
            log.append([make_row(BIG)], UPDATE)
            await until(lambda: journal.trouble is not None)
            begun = journal.trouble
            for _ in range(50):
                log.append([make_row()])
                other.append([make_row()])
            # Reading goes on, of what is durable.
            assert [item.seq for item in await log.read(-1, 100)] == list(range(10))
            assert len((await log.search(source="user")).items) == await log.count(source="user") == 10
            assert (await journal.get_records(["c-1"]))[0].record == b"{}"
            await until(lambda: len(seen) >= 10)
            assert seen == list(range(10))
            assert not await log.flushed_unless_troubled()
            # What would begin something is refused, and nothing of it is left.
            for use in (log.accept, journal.accept):
                with pytest.raises(JournalUnavailable, match="nothing was stored"):
                    use()
            with pytest.raises(JournalUnavailable):
                await journal.create("c-3", b"{}", status="idle", created_at="x", updated_at="x")
            with pytest.raises(UnknownConversation):
                await journal.log("c-3")
            await until(lambda: journal.trouble.attempts > begun.attempts)
            assert journal.trouble.since == begun.since <= time.time()
            assert (log.high_water, other.high_water) == (9, -1)
        with trio.fail_after(PATIENCE_S):
            await log.flushed()
            await other.flushed()
    await until(lambda: journal.trouble is None)
    log.accept()
    assert seen == list(range(61))
    assert [item.seq for item in await log.read(-1, 100)] == list(range(61))
    assert [item.seq for item in await other.read(-1, 100)] == list(range(50))
    assert (await journal.get_records(["c-1"]))[0].record == b"new"
    assert journal.waiting_bytes == 0
    assert log.append([make_row()]) == 61
    await log.flushed()


@pytest.fixture
async def quick(journal_place, monkeypatch):
    """It waits for locks a moment only."""
    monkeypatch.setattr("supervisor.database.connection.LOCK_SECONDS", 0.05)
    async with (
        open_journal(journal_place.path, busy_timeout=0.05)
        if journal_place.kind == "sqlite"
        else journal_place.open()
    ) as opened:
        yield opened


@pytest.fixture
async def quick_sqlite(journal_path):
    async with open_journal(journal_path, busy_timeout=0.05) as opened:
        yield opened


@contextmanager
def locked(database):
    """Another program holds the table of events: it can be read, and not be written."""
    with psycopg.connect(database.conninfo) as connection:
        connection.execute("LOCK TABLE events IN SHARE MODE")
        yield


async def two_logs(journal, make_log, make_row):
    log, other = await make_log(journal, "c-1"), await make_log(journal, "c-2")
    log.append([make_row() for _ in range(10)])
    await log.flushed()
    return log, other


async def test_a_full_disk_holds_everything_up_and_nothing_is_lost(quick_sqlite, make_log, make_row):
    quick = quick_sqlite
    log, other = await two_logs(quick, make_log, make_row)
    await check_that_all_goes_on(quick, log, other, log.subscribe(-1), make_row, full(quick))


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_a_lock_of_another_process_holds_everything_up(quick, journal_place, make_log, make_row):
    log, other = await two_logs(quick, make_log, make_row)
    held = (
        held_by_another_process(journal_place.path)
        if journal_place.kind == "sqlite"
        else locked(journal_place.database)
    )
    await check_that_all_goes_on(quick, log, other, log.subscribe(-1), make_row, held)


@pytest.mark.guarantee(name="nothing-is-lost")
@pytest.mark.parametrize(
    "name", ["SQLITE_IOERR_WRITE", "SQLITE_IOERR_FSYNC", "SQLITE_CANTOPEN", "SQLITE_NOMEM", "SQLITE_LOCKED"]
)
async def test_other_failures_that_pass(quick, make_log, make_row, failing, name):
    log, _ = await two_logs(quick, make_log, make_row)
    failing.append(name)
    log.append([make_row()])
    await until(lambda: quick.trouble is not None and quick.trouble.attempts > 1)
    assert f"injected {name}" in quick.trouble.reason
    failing.clear()
    with trio.fail_after(PATIENCE_S):
        await log.flushed()
    assert [item.seq for item in await log.read(9, 10)] == [10]


@pytest.mark.parametrize("name", ["SQLITE_CORRUPT", "SQLITE_NOTADB", "SQLITE_READONLY", "SQLITE_IOERR_DATA"])
async def test_failures_that_last_end_the_journal(journal_place, make_log, make_row, failing, name):
    with pytest.raises(JournalError, match=f"injected {name}"):
        async with journal_place.open() as journal:
            log = await make_log(journal, "c-1")
            failing.append(name)
            log.append([make_row()])
            with trio.fail_after(PATIENCE_S), pytest.raises(JournalError, match="injected") as caught:
                await log.flushed()
            assert not isinstance(caught.value, JournalUnavailable)
            assert journal.failure is not None
            assert journal.trouble is None


@pytest.mark.parametrize("gone", ["", "-wal"])
async def test_a_file_that_is_gone_ends_the_journal(journal_path, make_log, make_row, gone):
    """SQLite would go on writing into it, and everybody would believe it."""
    with pytest.raises(JournalError, match="deleted or replaced"):
        async with open_journal(journal_path) as journal:
            log = await make_log(journal, "c-1")
            log.append([make_row()])
            await log.flushed()
            os.unlink(f"{journal_path}{gone}")
            log.append([make_row()])
            with trio.fail_after(PATIENCE_S), pytest.raises(JournalError, match="deleted or replaced"):
                await log.flushed()


@pytest.mark.guarantee(name="nothing-is-lost")
@pytest.mark.parametrize("damaged", ["", "-wal"])
async def test_a_read_of_a_damaged_file_ends_the_journal(journal_path, make_log, make_row, damaged):
    """Nothing may be written for long, and everybody who reads would be told to ask again."""
    with pytest.raises(JournalError, match="cannot read the journal"):
        async with open_journal(journal_path) as journal:
            log = await make_log(journal, "c-1")
            log.append([make_row()])
            await log.flushed()
            with open(f"{journal_path}{damaged}", "r+b") as file:
                if damaged:
                    file.truncate(0)
                else:
                    file.write(b"\xff" * os.fstat(file.fileno()).st_size)
            for _ in range(8):  # a connection may have in its cache what it needs
                with suppress(JournalError):
                    await journal.search_records()
            with pytest.raises(JournalError, match="cannot read the journal") as caught:
                journal.accept()
            assert not isinstance(caught.value, JournalUnavailable)


async def test_trouble_is_logged_once_a_minute(quick, make_log, make_row, failing, monkeypatch):
    monkeypatch.setattr(trouble, "FIRST_PAUSE", 0.001)
    logger = structlog.testing.CapturingLogger()
    monkeypatch.setattr(writer, "log", logger)
    log, _ = await two_logs(quick, make_log, make_row)
    for _ in range(3):
        failing.append("SQLITE_FULL")
        log.append([make_row()])
        await until(lambda: quick.trouble is not None and quick.trouble.attempts > 2)
        monkeypatch.setattr(time, "time", lambda: 0.0)  # the clock is set meanwhile
        failing.clear()
        await log.flushed()
        await until(lambda: quick.trouble is None)
    said = [call.args[0] for call in logger.calls]
    assert said == ["journal is not writable; trying again", "journal is writable again"]
    assert all(0 <= call.kwargs["seconds"] < PATIENCE_S for call in logger.calls)


async def test_waiting_holds_up_relays_only_until_trouble_begins(
    quick, make_log, make_row, failing, monkeypatch
):
    gate = Gate()
    monkeypatch.setattr(log_module, "urgent", gate.urgent)
    log, other = await two_logs(quick, make_log, make_row)
    begin = threading.Event()
    real = writer._write

    def write(store, ops):
        assert begin.wait(PATIENCE_S)
        real(store, ops)

    monkeypatch.setattr(writer, "_write", write)
    failing.append("SQLITE_FULL")
    log.append([make_row()])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(log.flushed)
        await until(lambda: gate._urgent == 1)
        begin.set()
        await until(lambda: quick.trouble is not None)
        await trio.testing.wait_all_tasks_blocked()
        assert gate._urgent == 0
        other.append([make_row()])  # whoever comes meanwhile is not urgent either
        nursery.start_soon(other.flushed)
        await trio.testing.wait_all_tasks_blocked()
        assert gate._urgent == 0
        failing.clear()
    assert log.settled
    assert other.settled


async def test_a_create_under_way_is_told_that_nothing_was_stored(quick, make_log, failing):
    failing.append("SQLITE_FULL")
    with trio.fail_after(PATIENCE_S), pytest.raises(JournalUnavailable, match="nothing was stored"):
        await make_log(quick, "c-1")
    await until(lambda: quick.trouble is None)  # by itself: nobody has to write for that
    failing.clear()
    assert (await make_log(quick, "c-1")).last_seq == -1


async def test_what_is_queued_is_bounded_by_those_who_wait_for_room(quick, make_log, make_row, failing):
    log, _ = await two_logs(quick, make_log, make_row)
    failing.append("SQLITE_FULL")
    with trio.move_on_after(0.5):
        while True:
            log.append([make_row(BIG)])
            await log.room()
    assert writer.MAX_PENDING_BYTES < quick.waiting_bytes < writer.MAX_PENDING_BYTES + 2 * len(BIG)
    failing.clear()
    await log.flushed()


async def test_far_too_much_to_write_refuses_what_would_begin(quick, make_log, make_row, monkeypatch):
    """Also before anybody knows of trouble: a disk that hangs tells nothing."""
    log, _ = await two_logs(quick, make_log, make_row)
    gate = threading.Event()
    real = writer._write
    monkeypatch.setattr(writer, "_write", lambda *given: (gate.wait(PATIENCE_S), real(*given)))
    monkeypatch.setattr(writer, "REFUSE_PENDING_BYTES", 2_500_000)
    for _ in range(2):
        log.append([make_row(BIG)])
    log.accept()
    log.append([make_row(BIG)])
    with pytest.raises(JournalUnavailable, match="is behind"):
        log.accept()
    gate.set()
    await log.flushed()
    log.accept()


async def test_closing_in_trouble_is_bounded_and_tells_what_is_lost(
    journal_place, make_log, make_row, failing
):
    begin = time.monotonic()
    with pytest.raises(JournalError, match=r"3 events of 2 conversations are lost: the .*disk is full"):
        async with journal_place.open() as journal:
            log, other = await make_log(journal, "c-1"), await make_log(journal, "c-2")
            failing.append("SQLITE_FULL")
            log.append([make_row()])
            await until(lambda: journal.trouble is not None)
            log.append([make_row()])
            other.append([make_row()])
    assert time.monotonic() - begin < 5


async def test_closing_tries_once_more(journal_place, make_log, make_row, failing):
    async with journal_place.open() as journal:
        log = await make_log(journal, "c-1")
        failing.append("SQLITE_FULL")
        log.append([make_row()])
        await until(lambda: journal.trouble is not None)
        log.append([make_row()])
        failing.clear()
    async with journal_place.open() as journal:
        assert (await journal.log("c-1")).last_seq == 1


async def test_opening_waits_for_a_lock(journal_path, make_log, monkeypatch):
    async with open_journal(journal_path) as journal:
        await make_log(journal, "c-1")
    held = held_by_another_process(journal_path)
    held.__enter__()
    timer = threading.Timer(0.5, held.__exit__, (None, None, None))
    timer.start()
    async with open_journal(journal_path, busy_timeout=0.01) as journal:
        assert (await journal.log("c-1")).last_seq == -1
    timer.join()
    monkeypatch.setattr("supervisor.journal.storage.store.OPEN_SECONDS", 0.1)
    with held_by_another_process(journal_path), pytest.raises(JournalError, match="locked"):
        async with open_journal(journal_path, busy_timeout=0.01):
            pass


async def test_a_culprit_among_others_while_the_disk_is_full(quick, make_log, make_row, monkeypatch):
    """A batch that is written handle by handle and fails in the middle goes on where it failed."""
    log, other = await two_logs(quick, make_log, make_row)
    third = await make_log(quick, "c-4")
    third.append([make_row(id="twice")])
    await third.flushed()
    real, calls = writer._write, []
    gate = threading.Event()

    def write(store, ops):
        gate.wait(PATIENCE_S)
        calls.append(len(ops))
        if len(calls) == 4:  # first a batch of one, then all together, then the first handle, and now
            raise injected(store, "SQLITE_FULL")
        real(store, ops)

    monkeypatch.setattr(writer, "_write", write)
    log.append([make_row()])
    await trio.sleep(0.02)
    log.append([make_row()])
    other.append([make_row()])
    third.append([make_row(id="twice")])
    gate.set()
    with trio.fail_after(PATIENCE_S):
        await log.flushed()
        await other.flushed()
        with pytest.raises(DuplicateEvent):
            await third.flushed()
    assert [item.seq for item in await log.read(-1, 100)] == list(range(12))
    assert [item.seq for item in await other.read(-1, 100)] == [0]
    assert len(calls) > 4


# -- SQLite's limits --------------------------------------------


async def test_what_is_too_large_is_refused_before_anything_happens(log, make_row, monkeypatch):
    monkeypatch.setattr(log_module, "MAX_VALUE_BYTES", 1000)
    for large in (
        lambda: log.append([make_row(), make_row(b"x" * 1001)]),
        lambda: log.append([], RecordUpdate(record=b"x" * 1001, status="idle", updated_at="t")),
    ):
        with pytest.raises(TooLarge, match="1001 bytes"):
            large()
    with pytest.raises(TooLarge):
        await put_blob(log, "b", b"x" * 1001)
    assert log.last_seq == -1
    assert log.append([make_row(b"x" * 1000)]) == 0
    await log.flushed()


def test_the_limit_is_below_that_of_sqlite():
    with closing(sqlite3.connect(":memory:")) as connection:
        assert connection.getlimit(sqlite3.SQLITE_LIMIT_LENGTH) / log_module.MAX_VALUE_BYTES > 1.5


@pytest.mark.guarantee(name="nothing-is-lost")
@pytest.mark.parametrize("what", ["length", "text"])
async def test_what_the_store_does_not_take_breaks_one_conversation(
    journal_place, journal, log, make_log, make_row, monkeypatch, what
):
    other = await make_log(journal, "c-2")
    log.append([make_row()])
    await log.flushed()
    if what == "length":
        if journal_place.kind == "sqlite":
            writing(journal).setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 5000)
        else:
            monkeypatch.setattr("supervisor.journal.postgres.store.APPEND_MAX_BYTES", 5000)
            monkeypatch.setattr("supervisor.journal.postgres.store.STATEMENT_BYTES", 5000)
        log.append([make_row(b"x" * 6000)])
    else:
        log.append([make_row(kind="\ud800")])
    for _ in range(20):
        other.append([make_row()])
    with trio.fail_after(PATIENCE_S):
        with pytest.raises(JournalError, match=r"larger than|cannot be stored"):
            await log.flushed()
        await other.flushed()
    assert journal.failure is journal.trouble is None
    fresh = await journal.log("c-1")
    assert fresh.append([make_row()]) == 1
    await fresh.flushed()


# -- deleting ---------------------------------------------------


async def fill(log, make_row, count, size=200):
    for _ in range(count // 1000):
        log.append([make_row(b"x" * size) for _ in range(1000)])
        await log.room()
    await log.flushed()


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_deleting_goes_on_beside_other_writes(journal_place, journal, log, make_log, make_row):
    other = await make_log(journal, "c-2")
    await fill(log, make_row, 60_000)
    await put_blob(log, "b", b"x" * 100_000)
    assert await journal.delete("c-1") is True
    # Gone at once and for good; its id can be taken again.
    with pytest.raises(UnknownConversation):
        await journal.log("c-1")
    with pytest.raises(LogDeleted):
        log.accept()
    assert await journal.count_records() == 1
    again = await make_log(journal, "c-1")
    writes = 0
    while journal_place.count("deletions"):
        again.append([make_row()])
        other.append([make_row()])
        await again.flushed()
        await other.flushed()
        writes += 1
    assert writes > 3  # it took many transactions, with others between them
    assert journal_place.count("events") == 2 * writes
    assert journal_place.count("blobs") == 0
    assert await again.count() == await other.count() == writes


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_a_deletion_that_was_cut_off_goes_on_at_the_next_start(journal_place, make_log, make_row):
    async with journal_place.open() as journal:
        log = await make_log(journal, "c-1")
        await fill(log, make_row, 20_000)
        await journal.delete("c-1")
    assert journal_place.count("events") > 0
    async with journal_place.open() as journal:
        await until(lambda: journal_place.count("deletions") == 0)
        assert journal_place.count("events") == 0
        assert await journal.count_records() == 0


async def test_a_delete_while_nothing_can_be_written_leaves_everything(
    quick_sqlite, journal_path, make_log, make_row
):
    quick = quick_sqlite
    log, other = await two_logs(quick, make_log, make_row)
    with held_by_another_process(journal_path):
        other.append([make_row()])
        await until(lambda: quick.trouble is not None)
        log.append([make_row()])
        with trio.fail_after(PATIENCE_S), pytest.raises(JournalUnavailable, match="still exists"):
            await quick.delete("c-1")
    with trio.fail_after(PATIENCE_S):
        await log.flushed()
        await other.flushed()
    assert await quick.log("c-1") is log
    assert await log.count() == 11
    assert await quick.delete("c-1") is True


def test_the_reserve_takes_a_part_of_what_is_free(tmp_path):
    reserve = Reserve(tmp_path / "r", most=200_000)
    reserve.fill()
    assert (reserve.held, os.stat(tmp_path / "r").st_blocks * 512 >= 200_000) == (200_000, True)
    reserve.fill()
    assert reserve.release() is True
    assert (reserve.held, os.stat(tmp_path / "r").st_blocks, reserve.release()) == (0, 0, False)
    reserve.remove()
    assert list(tmp_path.iterdir()) == []


# -- a disk that is really full ---------------------------------


@pytest.fixture
def small_disk(tmp_path):
    """A file system of its own, of 48 MB."""
    journal_place = tmp_path / "disk"
    journal_place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(journal_place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small file system is not permitted here")
    yield journal_place
    subprocess.run(["umount", "-l", str(journal_place)], check=True)


def fill_up(journal_place):
    """Take all that is left of the disk, with a file that can be removed."""
    with (journal_place / "filler").open("wb", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                continue


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_a_disk_that_is_really_full(small_disk, make_log, make_row):
    async with open_journal(small_disk / "journal.sqlite", busy_timeout=0.05) as journal:
        log, other = await two_logs(journal, make_log, make_row)

        @contextmanager
        def filled():
            fill_up(small_disk)
            yield
            (small_disk / "filler").unlink()

        await check_that_all_goes_on(journal, log, other, log.subscribe(-1), make_row, filled())


async def test_conversations_can_be_deleted_on_a_full_disk(small_disk, make_log, make_row):
    """That is how people make room: the space for it is set aside."""
    async with open_journal(small_disk / "journal.sqlite") as journal:
        log, other = await two_logs(journal, make_log, make_row)
        assert journal._writer._store.reserve.held > 1 << 20
        while journal.trouble is None:
            log.append([make_row(b"x" * 1000) for _ in range(100)])
            while journal.waiting_bytes > 1_000_000 and journal.trouble is None:  # room would wait for ever
                await trio.sleep(0.001)
        fill_up(small_disk)
        written = other.append([make_row() for _ in range(2000)])
        with pytest.raises(JournalUnavailable):
            journal.accept()
        with trio.fail_after(PATIENCE_S):
            assert await journal.delete("c-1") is True
            await other.flushed()
        assert await other.count() == written + 1
        await until(lambda: journal.trouble is None)
        with pytest.raises(LogDeleted):
            await log.flushed()
        third = await make_log(journal, "c-3")
        third.append([make_row(b"x" * 1000) for _ in range(1000)])
        with trio.fail_after(PATIENCE_S):
            await third.flushed()
    async with open_journal(small_disk / "journal.sqlite") as journal:  # which starts on a full disk, too
        assert await (await journal.log("c-3")).count() == 1000
        assert await journal.count_records() == 2


async def test_a_journal_opens_on_a_full_disk(small_disk, make_log, make_row):
    path = small_disk / "journal.sqlite"
    async with open_journal(path) as journal:
        log = await make_log(journal, "c-1")
        log.append([make_row()])
    Reserve(path.with_name(path.name + "-reserve")).fill()  # as a server leaves it that is killed
    fill_up(small_disk)
    async with open_journal(path) as journal:
        assert await (await journal.log("c-1")).count() == 1


def test_during_trouble_a_lock_is_waited_for_a_moment_only(journal_path):
    for usual, troubled in ((5.0, TROUBLED_BUSY_TIMEOUT), (0.05, 0.05)):
        store = Store.open(journal_path, busy_timeout=usual)
        try:
            for patient, seconds in ((False, troubled), (True, usual)):
                store.be_patient(patient)
                (found,) = store._connection.execute("PRAGMA busy_timeout").fetchone()
                assert found == seconds * 1000
        finally:
            store.close()
