"""Several servers over one database: what a server writes that has lost a conversation, or its connection."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import trio

from supervisor.database.connection import connect
from supervisor.database.schema import migrate
from supervisor.journal.errors import (
    AlreadyExists,
    JournalError,
    JournalUnavailable,
    LeaseLost,
    LogDeleted,
    NotOwner,
    UnknownConversation,
)
from supervisor.journal.postgres import statements
from supervisor.journal.postgres import store as store_module
from supervisor.journal.postgres.opening import open_shared_journal
from supervisor.journal.rows import NewRecord, RecordUpdate
from supervisor.journal.storage import writer
from tests.journal.harness import CREATED, new_log
from tests.journal.places import LIVE, PostgresPlace
from tests.support.postgres import cluster
from tests.support.thorough import everyday

PATIENCE_S = 60
UPDATE = RecordUpdate(record=b"new", status="running", updated_at="2026-11-21T09:00:00.000000Z")
FORK = {"status": "idle", "created_at": CREATED, "updated_at": CREATED}


@pytest.fixture
def journal_place(database):
    return PostgresPlace(database)


async def until(condition):
    with trio.fail_after(PATIENCE_S):
        while not condition():
            await trio.sleep(0.005)


async def ids(log):
    return [item.id for item in await log.read(-1, 100_000)]


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_a_server_that_comes_late_writes_nothing_and_others_are_written(
    journal_place, make_row, monkeypatch
):
    one, two = journal_place.join(), journal_place.join()
    lost = []
    real, batches, gate = writer._write, [], threading.Event()
    gate.set()

    def write(store, ops):
        gate.wait(PATIENCE_S)
        batches.append(len(ops))
        real(store, ops)

    monkeypatch.setattr(writer, "_write", write)
    async with (
        open_shared_journal(journal_place.database, one, live=LIVE) as late,
        open_shared_journal(journal_place.database, two, live=LIVE) as other,
    ):
        late.on_lost = lambda: lost.append(None)
        log, kept = await new_log(late, "c-1"), await new_log(late, "c-2")
        log.append([make_row(id="first")])
        await log.flushed()
        with pytest.raises(NotOwner) as caught:
            await other.log("c-1")
        assert caught.value.owner == one
        journal_place.claim(two, "c-1")
        taken = await other.log("c-1")
        assert (taken.last_seq, taken.generation) == (0, 2)
        gate.clear()
        batches.clear()
        kept.append([make_row(id="before")])
        await trio.sleep(0.05)  # the writer has it, and the rest is one batch
        log.append([make_row(id="late")], UPDATE)
        kept.append([make_row(id="kept")], UPDATE)
        gate.set()
        with trio.fail_after(PATIENCE_S):
            with pytest.raises(LeaseLost):
                await log.flushed()
            await kept.flushed()
        assert batches == [1, 2]
        assert lost == [None]
        assert await ids(kept) == ["before", "kept"]
        # The one that has it now goes on where it ended.
        assert taken.append([make_row(id="second")]) == 1
        await taken.flushed()
        assert await ids(taken) == ["first", "second"]
        first, second = await other.get_records(["c-1", "c-2"])
        assert (first.record, second.record, second.epoch) == (b"{}", b"new", one)
        # Nor is it deleted, forked or loaded; it is read.
        for use in (
            lambda: late.log("c-1"),
            lambda: late.delete("c-1"),
            lambda: late.fork("c-1", "c-3", b"{}", parts=[(0, 0)], **FORK),
        ):
            with pytest.raises(NotOwner):
                await use()
        read = await late.reading("c-1")
        assert await ids(read) == ["first", "second"]
        assert await read.count() == 2
        with pytest.raises(NotOwner):
            read.append([make_row()])
        assert late.failure is late.trouble is None


async def test_a_record_alone_is_fenced_too(journal_place, make_row):
    one, two = journal_place.join(), journal_place.join()
    async with open_shared_journal(journal_place.database, one, live=LIVE) as late:
        log = await new_log(late, "c-1")
        journal_place.claim(two)
        log.update_record(UPDATE)
        with pytest.raises(LeaseLost):
            await log.flushed()
        (record,) = await late.get_records(["c-1"])
        assert record.record == b"{}"


@pytest.mark.parametrize("together", [1, 2])
async def test_what_was_given_up_is_not_written_though_no_other_server_has_it(
    journal_place, make_row, together
):
    """Alone and in a batch of several, which are two statements. The generation is still the same."""
    one = journal_place.join()
    async with open_shared_journal(journal_place.database, one, live=LIVE) as journal:
        logs = [await new_log(journal, f"c-{number}") for number in range(together)]
        with connect(journal_place.database, "test") as connection:
            connection.execute("UPDATE heads SET owner = NULL")
        for log in logs:
            log.append([make_row()], UPDATE)
        for log in logs:
            with pytest.raises(LeaseLost):
                await log.flushed()
        with connect(journal_place.database, "test") as connection:
            assert connection.execute("SELECT count(*) FROM events").fetchone() == (0,)


async def test_one_that_another_server_has_deleted_is_deleted(journal_place, make_row):
    one, two = journal_place.join(), journal_place.join()
    async with (
        open_shared_journal(journal_place.database, one, live=LIVE) as late,
        open_shared_journal(journal_place.database, two, live=LIVE) as other,
    ):
        log = await new_log(late, "c-1")
        journal_place.claim(two)
        assert await other.delete("c-1")
        log.append([make_row()])
        with pytest.raises(LogDeleted):
            await log.flushed()
        with pytest.raises(UnknownConversation):
            await late.reading("c-1")


async def test_what_another_live_server_copies_is_not_erased(journal_place):
    one, two = journal_place.join(), journal_place.join()
    ours = store_module.PostgresStore.open(journal_place.database, one, LIVE)
    theirs = store_module.PostgresStore.open(journal_place.database, two, LIVE)
    try:
        key = theirs.begin_copy()
        assert ours.erase(100) is None
        journal_place.query(f"UPDATE servers SET state = 'dead' WHERE id = {two}")
        assert ours.erase(100) is not None
        assert ours.erase(100) is None
        with pytest.raises(LeaseLost):
            theirs.end_copy(key, record_of("copy"), [])
    finally:
        ours.close()
        theirs.close()


def record_of(name):
    return NewRecord(id=name, record=b"{}", status="idle", created_at=CREATED, updated_at=CREATED)


# -- the connection is lost -------------------------------------


class Losing:
    """A connection that is lost after a statement was committed, and before its answer comes."""

    def __init__(self, real, times=1):
        self._real = real
        self.times = times

    def __getattr__(self, name):
        return getattr(self._real, name)

    def execute(self, statement, *arguments, **options):
        found = self._real.execute(statement, *arguments, **options)
        text = statement.decode() if isinstance(statement, bytes) else statement
        if self.times and text.lstrip().startswith("WITH"):
            self.times -= 1
            self._real.close()
            raise psycopg.OperationalError("the connection is lost")
        return found


def lose(journal):
    store = journal._writer._store
    store._live = Losing(store._live)


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_a_commit_without_an_answer_is_not_written_twice(journal_place, make_row):
    async with journal_place.open() as journal:
        log = await new_log(journal, "c-1")
        lose(journal)
        log.append([make_row(id=f"e-{n}") for n in range(3)], UPDATE)
        log.append([make_row(id="e-3")])
        await log.flushed()
        assert await ids(log) == ["e-0", "e-1", "e-2", "e-3"]
        lose(journal)
        log.update_record(UPDATE)
        await log.flushed()
        assert log.append([make_row(id="e-4")]) == 4
        await log.flushed()
        assert journal.failure is journal.trouble is None


async def test_a_call_without_an_answer_happens_once(journal_place):
    async with journal_place.open() as journal:
        await new_log(journal, "c-0")
        lose(journal)
        await new_log(journal, "c-1")
        with pytest.raises(AlreadyExists):
            await new_log(journal, "c-1")
        lose(journal)
        assert await journal.delete("c-1") is True
        assert await journal.delete("c-1") is False
        assert await journal.count_records() == 1


async def test_a_creation_that_was_refused_is_taken_back(journal_place, monkeypatch):
    """The client was told that nothing is stored: when the database is back, nothing is."""
    async with journal_place.open() as journal:
        await new_log(journal, "c-0")
        dial = store_module.dial
        away = [True]

        def refused(*arguments, **options):
            if away:
                raise psycopg.OperationalError("connection refused")
            return dial(*arguments, **options)

        monkeypatch.setattr(store_module, "dial", refused)
        lose(journal)
        with pytest.raises(JournalUnavailable, match="nothing was stored: the database is away"):
            await new_log(journal, "c-1")
        assert journal_place.count("conversations") == 2
        away.clear()
        await until(lambda: journal.trouble is None)
        assert await journal.get_records(["c-1"]) == [None]
        await new_log(journal, "c-1")


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_connections_that_end_at_any_moment(journal_place, make_row):
    chance = random.Random(1)
    times = everyday(40, 200)
    async with journal_place.open() as journal:
        log, other = await new_log(journal, "c-1"), await new_log(journal, "c-2")
        with psycopg.connect(journal_place.database.conninfo, autocommit=True) as killer:
            for _ in range(times):
                for _ in range(chance.randrange(1, 6)):
                    log.append([make_row(b"x" * 500) for _ in range(chance.randrange(1, 30))], UPDATE)
                    other.append([make_row()])
                    await trio.sleep(chance.random() * 0.004)
                await trio.to_thread.run_sync(
                    killer.execute,
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = "
                    "current_database() AND application_name LIKE 'ostler journal%' AND pid <> "
                    "pg_backend_pid()",
                )
        with trio.fail_after(PATIENCE_S):
            await log.flushed()
            await other.flushed()
        await until(lambda: journal.trouble is None)
        for each in (log, other):
            found = await each.read(-1, 100_000)
            assert [item.seq for item in found] == list(range(each.last_seq + 1))
            assert len({item.id for item in found}) == len(found)
        assert journal.failure is None


@contextmanager
def away(journal_place):
    """Nothing reaches the database."""
    name = journal_place.query("SELECT current_database()")[0][0]
    root = journal_place.database.conninfo.replace(f"/{name}?", "/postgres?")
    with psycopg.connect(root, autocommit=True) as connection:
        connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS false")
        connection.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'")
        try:
            yield
        finally:
            connection.execute(f"ALTER DATABASE {name} ALLOW_CONNECTIONS true")


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_a_database_that_is_away_is_waited_for(journal_place, make_row):
    async with journal_place.open() as journal:
        log = await new_log(journal, "c-1")
        log.append([make_row()])
        await log.flushed()
        with away(journal_place):
            log.append([make_row()])
            await until(lambda: journal.trouble is not None)
            for _ in range(10):
                log.append([make_row()])
            with pytest.raises(JournalUnavailable, match="nothing was stored"):
                journal.accept()
            with pytest.raises(JournalUnavailable, match="cannot be read now"):
                await log.read(-1, 10)
            assert log.high_water == 0
        with trio.fail_after(PATIENCE_S):
            await log.flushed()
        assert [item.seq for item in await log.read(-1, 100)] == list(range(12))
        await until(lambda: journal.trouble is None)


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_a_restart_in_the_middle_of_a_flood(make_row):
    with cluster(durable=True) as postgres:
        journal_place = PostgresPlace(postgres.database())
        with connect(journal_place.database, "test") as connection:
            migrate(connection)
        async with journal_place.open() as journal:
            logs = [await new_log(journal, f"c-{n}") for n in range(5)]
            seen = {log.conversation_id: -1 for log in logs}
            reasons = []
            end = time.monotonic() + 5

            async def follow(log):
                cursor = log.subscribe(None)
                while True:
                    for item in await cursor.next():
                        assert item.seq == seen[log.conversation_id] + 1
                        seen[log.conversation_id] = item.seq

            async def flood(log):
                while time.monotonic() < end:
                    log.append([make_row(b"x" * 300) for _ in range(7)], UPDATE)
                    await log.room()

            async with trio.open_nursery() as nursery:
                for log in logs:
                    nursery.start_soon(follow, log)
                async with trio.open_nursery() as producers:
                    for log in logs:
                        producers.start_soon(flood, log)
                    for _ in range(2):
                        await trio.sleep(0.7)
                        await trio.to_thread.run_sync(postgres.stop)
                        await until(lambda: journal.trouble is not None)
                        reasons.append(journal.trouble.reason)
                        assert max(seen.values()) >= 0
                        await trio.to_thread.run_sync(postgres.start)
                with trio.fail_after(PATIENCE_S):
                    for log in logs:
                        await log.flushed()
                await until(lambda: all(seen[log.conversation_id] == log.last_seq for log in logs))
                nursery.cancel_scope.cancel()
            assert all(reason.startswith("the database is away; check that") for reason in reasons)
            for log in logs:
                found = await log.read(-1, 1_000_000)
                assert [item.seq for item in found] == list(range(log.last_seq + 1))
                assert len({item.id for item in found}) == len(found)


STOPPED = """
import os, sys, trio
from supervisor.database.address import Database
from supervisor.journal.errors import LeaseLost
from supervisor.journal.postgres.opening import open_shared_journal
from supervisor.journal.rows import Row

async def main():
    async with open_shared_journal(Database(sys.argv[1]), int(sys.argv[2]), live=()) as journal:
        log = await journal.create("c", b"{}", status="idle", created_at="1", updated_at="1")
        number = 0
        while True:
            number += 1
            try:
                log.append([Row(id=f"late-{number}", kind="K", source="s", timestamp="t", body=b"{}")])
                await log.flushed()
            except LeaseLost:
                os.write(1, b"lost\\n")
                return
            os.write(1, b"%d\\n" % number)

trio.run(main)
"""


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_a_stopped_server_that_wakes_up_writes_nothing(journal_place, make_row):
    one = journal_place.join()
    command = [sys.executable, "-c", STOPPED, journal_place.database.conninfo, str(one)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        for _ in range(20):
            child.stdout.readline()
        child.send_signal(signal.SIGSTOP)
        async with journal_place.open() as journal:
            log = await journal.log("c")
            mine = [make_row() for _ in range(5)]
            log.append(mine)
            await log.flushed()
            child.send_signal(signal.SIGCONT)
            said = (await trio.to_thread.run_sync(child.stdout.read)).split()
            assert said[-1] == b"lost"
            last = int(said[-2]) if len(said) > 1 else 20
            log.append([make_row()])
            await log.flushed()
            found = await ids(log)
            late = [name for name in found if name.startswith("late-")]
            # The last commit before the stop may have had no time for its answer.
            assert len(late) in (last, last + 1)
            assert found[: len(late)] == late
            assert found[len(late) : len(late) + 5] == [row.id for row in mine]
            assert len(found) == len(late) + 6


def test_a_commit_notifies_nobody():
    """It would serialise the commits of all servers."""
    made = statements._statement(True, True, True, True).decode()
    text = (made + Path(store_module.__file__).read_text()).lower()
    assert "pg_notify" not in text
    assert "notify " not in text


async def test_a_database_that_cannot_be_used_says_so(postgres, database):
    with pytest.raises(JournalError, match="does not exist"):
        async with open_shared_journal(postgres.address("nothing"), 1, live=()):
            pass
    with psycopg.connect(database.conninfo, autocommit=True) as connection:
        connection.execute(
            "CREATE DATABASE latin TEMPLATE template0 ENCODING 'LATIN1' LC_COLLATE 'C' LC_CTYPE 'C'"
        )
    with pytest.raises(JournalError, match="encoding LATIN1"):
        async with open_shared_journal(postgres.address("latin"), 1, live=()):
            pass
