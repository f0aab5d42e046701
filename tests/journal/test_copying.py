"""A copy of a conversation is there as a whole, or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import trio
import trio.testing

from supervisor.journal.errors import AlreadyExists
from supervisor.journal.journal import Journal
from supervisor.journal.log import Log
from supervisor.journal.rows import Blob, NewRecord
from supervisor.journal.storage.store import Store
from tests.journal.harness import CREATED, new_log
from tests.journal.places import Place

FORK = {"status": "idle", "created_at": CREATED, "updated_at": CREATED}


async def everything(log: Log) -> list[tuple[int, str, bytes]]:
    found: list[tuple[int, str, bytes]] = []
    while page := await log.read(found[-1][0] if found else -1, 1000):
        found += [(row.seq, row.id, row.body) for row in page]
    return found


async def test_parts_are_numbered_anew_and_keep_ids_and_bodies(journal: Journal, log: Log, make_row) -> None:
    log.append(
        [make_row(b'{"n":%d}' % n, id=f"e-{n}") for n in range(10)], None, [Blob("b", "text/x", b"12")]
    )
    await log.flushed()
    copy = await journal.fork(
        "c-1", "c-2", b'{"x":1}', parts=[(0, 2), (7, 8)], rows=[make_row(b"{}", id="new")], **FORK
    )
    assert [(seq, name) for seq, name, _ in await everything(copy)] == [
        (0, "e-0"),
        (1, "e-1"),
        (2, "e-2"),
        (3, "e-7"),
        (4, "e-8"),
        (5, "new"),
    ]
    blob = await copy.get_blob("b")
    assert blob is not None
    assert blob.data == b"12"
    copy.append([make_row(id="later")])
    await copy.flushed()
    assert copy.last_seq == 6
    assert await log.count() == 10
    (record,) = await journal.get_records(["c-2"])
    assert record is not None
    assert record.record == b'{"x":1}'


async def test_a_taken_id_is_refused_and_leaves_nothing(
    journal: Journal, journal_place: Place, log: Log, make_row
) -> None:
    log.append([make_row() for _ in range(5)])
    await log.flushed()
    await new_log(journal, "c-2")
    with pytest.raises(AlreadyExists):
        await journal.fork("c-1", "c-2", b"{}", parts=[(0, 4)], **FORK)
    await erased(journal_place, rows=5)


async def erased(journal_place: Place, rows: int) -> None:
    """Wait until the journal holds so many events, and no conversation that is to be removed."""
    with trio.fail_after(20):
        while True:
            if (journal_place.count("events"), journal_place.count("deletions")) == (rows, 0):
                return
            await trio.sleep(0.01)


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
async def test_a_cancelled_copy_leaves_nothing(
    journal: Journal, journal_place: Place, log: Log, make_row
) -> None:
    log.append([make_row() for _ in range(3000)])
    await log.flushed()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:

            async def fork() -> None:
                await journal.fork("c-1", "c-2", b"{}", parts=[(0, 2999)], **FORK)

            nursery.start_soon(fork)
            await trio.testing.wait_all_tasks_blocked()
            scope.cancel()
    assert scope.cancelled_caught
    assert (await journal.get_records(["c-2"])) == [None]
    await erased(journal_place, rows=3000)


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
async def test_others_are_written_while_ten_thousand_events_are_copied(
    journal: Journal, log: Log, make_row
) -> None:
    """The Trio side goes on, and another conversation's writes come between the steps of the copy."""
    for _ in range(10):
        log.append([make_row(b"x" * 2000) for _ in range(1000)])
        await log.flushed()
    other = await new_log(journal, "c-3")
    written = 0
    done = trio.Event()

    async def write_others() -> None:
        nonlocal written
        while not done.is_set():
            other.append([make_row()])
            await other.flushed()
            written += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write_others)
        copy = await journal.fork("c-1", "c-2", b"{}", parts=[(0, 9999)], **FORK)
        done.set()
    assert written >= 3
    assert await everything(copy) == await everything(log)


KILLED = """
import sys, trio
from supervisor.journal.rows import Row
from tests.journal.places import opened_as
NOW = "2026-11-21T08:00:00.000000Z"

async def main():
    async with opened_as(sys.argv[1:]) as journal:
        log = await journal.create("c-1", b"{}", status="idle", created_at=NOW, updated_at=NOW)
        for part in range(4):
            log.append([
                Row(id=f"e-{part}-{n}", kind="MessageEvent", source="user", timestamp=NOW, body=b"x" * 2000)
                for n in range(1000)
            ])
            await log.flushed()
        print("go", flush=True)
        number = 0
        while True:
            number += 1
            await journal.fork(
                "c-1", f"f-{number}", b"{}", parts=[(0, 3_999)], status="idle", created_at=NOW, updated_at=NOW
            )

trio.run(main)
"""


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
@pytest.mark.parametrize("after", [0.0, 0.05])
async def test_a_killed_process_leaves_whole_copies_and_nothing_else(
    journal_place: Place, after: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    if journal_place.kind == "postgres":  # whose last statement may end after the process
        monkeypatch.setattr("supervisor.journal.postgres.store.PostgresStore.erase_seconds", 0.2)
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, *journal_place.arguments()], stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"go\n"
    time.sleep(after)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    child.stdout.close()
    async with journal_place.open() as journal:
        found = await journal.search_records(limit=1000)
        for record in found.items:
            log = await journal.log(record.id)
            assert await log.count() == 4_000
        await erased(journal_place, rows=4_000 * len(found.items))


def test_a_copy_that_is_rolled_back_leaves_its_number_to_others(tmp_path: Path) -> None:
    """The next conversation has it, and is removed when that is deleted."""
    store = Store.open(tmp_path / "journal.sqlite")
    first = NewRecord(id="c-1", record=b"{}", status="idle", created_at=CREATED, updated_at=CREATED)
    try:
        with suppress(RuntimeError), store.transaction():
            key = store.begin_copy()
            raise RuntimeError
        with store.transaction():
            assert store.create(first) == (key, 0)
        with store.transaction():
            store.bury("c-1")
        with store.transaction():
            assert store.erase(100) is not None
        with store.transaction():
            growing = store.begin_copy()
        with suppress(RuntimeError), store.transaction():
            store.forget_copy(growing)
            raise RuntimeError
        assert store.erase(100) is None  # it grows still
    finally:
        store.close()
