"""Who copies the write-ahead log into the database, and that it does not grow for ever."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
import trio

from supervisor.journal.journal import open_journal
from supervisor.journal.storage.checkpointer import CHECKPOINT_PAGES, WRITER_PAGES, Checkpointer, copy
from supervisor.journal.storage.store import PAGE_BYTES

PATIENCE_S = 20
FRAME_BYTES = PAGE_BYTES + 24
"""A page in the log has a head (https://sqlite.org/walformat.html)."""
BODY = b'"' + b"x" * 1000 + b'"'


def pages_of(path: Path) -> int:
    """How many pages the log's file has room for."""
    return Path(f"{path}-wal").stat().st_size // FRAME_BYTES


async def one_by_one(log, make_row, count, body=BODY):
    for _ in range(count):
        log.append([make_row(body)])
        await log.flushed()


def connect(path):
    return closing(sqlite3.connect(path, isolation_level=None))


async def test_the_log_is_copied_beside_the_writer_and_begun_anew(
    journal_path, make_log, make_row, monkeypatch
):
    """Here the writer copies nothing, so the log would have all pages that were written."""
    copied: list[tuple[str, bool]] = []
    made: list[Checkpointer] = []

    def noted(connection, give_way):
        copied.append((threading.current_thread().name, copy(connection, give_way)))

    def making(path, page_bytes):
        made.append(Checkpointer(path, page_bytes))
        return made[0]

    monkeypatch.setattr("supervisor.journal.storage.checkpointer.copy", noted)
    monkeypatch.setattr("supervisor.journal.storage.store.Checkpointer", making)
    for module in ("checkpointer", "store"):
        monkeypatch.setattr(f"supervisor.journal.storage.{module}.WRITER_PAGES", 10**6)
    async with open_journal(journal_path) as journal:
        log = await make_log(journal, "c-1")
        for _ in range(50):
            await one_by_one(log, make_row, 10, BODY * 20)  # six pages each
            with trio.fail_after(PATIENCE_S):
                while made[0]._wanted.is_set() or made[0]._copying.locked():
                    await trio.sleep(0.001)  # the disk may be slower than the writer
        assert {name for name, _ in copied} == {"journal-checkpointer"}
        assert any(whole for _, whole in copied)
        assert pages_of(journal_path) < 2 * CHECKPOINT_PAGES
        events = log.last_seq + 1
        assert len(await log.read(events - 10, 100)) == 9
    assert "journal-checkpointer" not in {thread.name for thread in threading.enumerate()}
    with connect(journal_path) as connection:
        assert connection.execute("SELECT count(*) FROM events").fetchone() == (events,)
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)


async def test_without_its_thread_the_writer_copies_the_log(journal_path, make_log, make_row, monkeypatch):
    def refused(_thread):
        raise RuntimeError("can't start new thread")

    async with open_journal(journal_path) as journal:
        log = await make_log(journal, "c-1")
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refused)
            for _ in range(6):
                log.append([make_row(BODY * 1000) for _ in range(10)])  # 1,200 pages each time
                await log.flushed()
        assert pages_of(journal_path) < 2 * WRITER_PAGES
        assert journal_path.stat().st_size > WRITER_PAGES * PAGE_BYTES


async def test_a_writer_that_never_pauses_waits_for_the_log_to_be_copied(journal_path, make_log, make_row):
    """The thread has SQLite's lock nearly all of the time, and never gets the last page."""
    largest = 0
    async with open_journal(journal_path) as journal:
        log = await make_log(journal, "c-1")
        for _ in range(80):
            for _ in range(8):
                log.append([make_row(BODY * 20) for _ in range(16)])  # 40 pages
            await log.flushed()
            largest = max(largest, pages_of(journal_path))
        assert largest < 2 * WRITER_PAGES  # of 25,000 that were written


def test_while_the_writer_makes_room_the_thread_copies_nothing(journal_path, written):
    checkpointer = Checkpointer(journal_path, PAGE_BYTES)
    size = journal_path.stat().st_size
    with checkpointer.paused():
        checkpointer.note(CHECKPOINT_PAGES * PAGE_BYTES, 1)
        assert written.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)
    assert journal_path.stat().st_size > size
    checkpointer.stop()


@pytest.fixture
def written(journal_path):
    """A database with something in its log."""
    journal_path.parent.mkdir()
    with connect(journal_path) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA wal_autocheckpoint = 0")
        connection.execute("CREATE TABLE t (x)")
        connection.execute("INSERT INTO t VALUES (1)")
        yield connection


def test_a_transaction_under_way_holds_nobody_up(journal_path, written):
    written.execute("BEGIN IMMEDIATE")
    written.execute("INSERT INTO t VALUES (2)")
    with closing(sqlite3.connect(journal_path, timeout=0, isolation_level=None)) as other:
        assert copy(other)
    written.execute("COMMIT")
    assert written.execute("SELECT count(*) FROM t").fetchone() == (2,)


def test_what_a_reader_still_needs_is_not_all_copied(journal_path, written):
    with connect(journal_path) as reader, connect(journal_path) as other:
        reader.execute("BEGIN")
        assert reader.execute("SELECT count(*) FROM t").fetchone() == (1,)
        written.execute("INSERT INTO t VALUES (2)")
        assert not copy(other)
        assert reader.execute("SELECT count(*) FROM t").fetchone() == (1,)
        reader.execute("ROLLBACK")
        assert copy(other)


def test_a_file_that_is_gone_is_not_made_anew(tmp_path):
    checkpointer = Checkpointer(tmp_path / "gone.sqlite3", PAGE_BYTES)
    checkpointer.note(CHECKPOINT_PAGES * PAGE_BYTES, 1)
    thread = checkpointer._thread
    assert thread is not None
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    checkpointer.note(CHECKPOINT_PAGES * PAGE_BYTES, 1)  # nobody is there, and nobody minds
    checkpointer.stop()
    assert not list(tmp_path.iterdir())


async def test_a_place_with_any_name_is_found(tmp_path):
    path = tmp_path / "a b?c#d%41.sqlite3"
    with connect(path) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("CREATE TABLE t (x)")
        size = path.stat().st_size
        checkpointer = Checkpointer(path, PAGE_BYTES)
        checkpointer.note(CHECKPOINT_PAGES * PAGE_BYTES, 1)
        with trio.fail_after(PATIENCE_S):
            while path.stat().st_size == size:
                await trio.sleep(0.01)
        checkpointer.stop()
