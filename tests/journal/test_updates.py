"""Updates that are kept with events: for those that ask for them, at no cost for others."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import attrs
import pytest

from supervisor.journal import feed, queries
from supervisor.journal.journal import open_journal
from supervisor.journal.rows import Stored
from supervisor.journal.storage.store import STATEMENT_BYTES, Store
from tests.journal.harness import CREATED, new_log
from tests.journal.test_schema import V1


def with_updates(row, updates: bytes):
    return attrs.evolve(row, updates=updates)


async def updates_of(log, *, asked: bool = True) -> list[bytes]:
    """What a reader gets that begins at the beginning."""
    cursor = log.subscribe(-1, updates=asked)
    found: list[bytes] = []
    while cursor.after_seq < log.last_seq:
        found += [item.updates for item in await cursor.next() if isinstance(item, Stored)]
    return found


SAID = [b"", b"g\n{}", b"", b'h\n{"a":"\xc3\xa9\\u0000"}\n7\n{}']


@pytest.fixture
async def filled(journal, make_row):
    log = await new_log(journal, "c-1")
    log.append([with_updates(make_row(), each) for each in SAID])
    await log.flushed()
    return log


async def test_they_are_read_from_the_file(filled):
    assert await updates_of(filled) == SAID
    assert await updates_of(filled, asked=False) == [b""] * len(SAID)
    assert [row.updates for row in await filled.read(-1, 10)] == [b""] * len(SAID)


async def test_they_are_read_from_the_tail(journal, make_row):
    log = await new_log(journal, "c-1")
    cursor = log.subscribe(-1, updates=True)
    log.append([with_updates(make_row(), each) for each in SAID])
    found = []
    while cursor.after_seq < log.last_seq:
        found += [item.updates for item in await cursor.next()]
    assert found == SAID


async def test_an_event_is_the_same_with_and_without_them(filled):
    (first, second, *_) = await filled.read(-1, 10)
    assert with_updates(second, b"g\n{}") == second != first


async def test_a_fork_has_those_of_its_part(journal, filled, make_row):
    fork = await journal.fork(
        "c-1", "c-2", b"{}", parts=[(1, 2)], rows=[make_row()], status="idle", created_at=CREATED,
        updated_at=CREATED,
    )  # fmt: skip
    assert await updates_of(fork) == [*SAID[1:3], b""]


async def test_a_deleted_conversation_leaves_none(journal_place, make_row):
    async with journal_place.open() as journal:
        log = await new_log(journal, "c-1")
        log.append([with_updates(make_row(), b"g\n{}")])
        await log.flushed()
        await journal.delete("c-1")
    async with journal_place.open():
        pass  # which removes what is left
    assert journal_place.count("events") == 0


async def test_they_can_be_left_out_of_the_file(journal_place, make_row):
    async with journal_place.open(keep_updates=False) as journal:
        log = await new_log(journal, "c-1")
        cursor = log.subscribe(-1, updates=True)
        log.append([with_updates(make_row(), b"g\n{}")])
        assert [item.updates for item in await cursor.next()] == [b"g\n{}"]
        del cursor
        assert await updates_of(log) == [b""]
        assert not log.keeps_updates


async def test_an_old_file_has_none_and_takes_them(tmp_path, make_row):
    path = tmp_path / "journal.sqlite"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(V1)
    async with open_journal(path) as journal:
        log = await journal.log("old")
        log.append([with_updates(make_row(), b"g\n{}")])
        await log.flushed()
        assert await updates_of(log) == [b"", b"g\n{}"]


@pytest.mark.guarantee(name="a-reader-that-falls-behind-loses-nothing")
async def test_one_read_takes_so_many_bytes_of_them_as_of_events(journal, make_row, monkeypatch):
    monkeypatch.setattr(queries, "CURSOR_MAX_BYTES", 10_000)
    log = await new_log(journal, "c-1")
    log.append([with_updates(make_row(), b"g\n{}" + b" " * 4000) for _ in range(10)])
    await log.flushed()
    assert len(await log.subscribe(-1, updates=True).next()) == 2
    assert len(await log.subscribe(-1).next()) == 10


def test_they_weigh_in_the_tail(make_row):
    tail = feed.Tail(0, -1)
    tail.append(Stored("e", "K", "user", "t", b"1", 0, updates=b"1" * 100))
    assert tail.size == 101 + feed.ITEM_OVERHEAD_BYTES


def test_one_statement_has_so_many_bytes_of_them(tmp_path):
    store = Store.open(tmp_path / "journal.sqlite")
    more = b"1" * (STATEMENT_BYTES // 2)
    rows = [(1, Stored(f"e{seq}", "K", "user", "t", b"1", seq, updates=more)) for seq in range(4)]
    assert len(store.insert_steps(rows)) > 2
    store.close()
