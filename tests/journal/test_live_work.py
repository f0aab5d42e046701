"""The mark of live work, by which servers find what another has left: it is set with the status, always."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from supervisor.database.connection import connect
from supervisor.journal.errors import LeaseLost
from supervisor.journal.port import Append
from supervisor.journal.postgres.opening import open_shared_journal
from supervisor.journal.postgres.store import PostgresStore
from supervisor.journal.rows import NewRecord, RecordUpdate, Stored
from supervisor.machines import directory
from supervisor.machines.directory import Claimant
from tests.journal.harness import CREATED, new_log
from tests.journal.places import LIVE, PostgresPlace


@pytest.fixture
def journal_place(database):
    return PostgresPlace(database)


def record(status):
    return RecordUpdate(record=b"new", status=status, updated_at=CREATED)


def marked(journal_place):
    """Ids of the conversations with the mark."""
    found = journal_place.query("SELECT id FROM conversations JOIN heads USING (key) WHERE live ORDER BY id")
    return [each for (each,) in found]


async def test_the_mark_follows_the_status(journal_place, make_row):
    async with journal_place.open() as journal:
        log, other = await new_log(journal, "c-1"), await new_log(journal, "c-2")
        assert marked(journal_place) == []
        log.append([make_row()], record("running"))
        await log.flushed()
        assert marked(journal_place) == ["c-1"]
        log.append([make_row()])
        other.append([make_row()], record("finished"))
        await log.flushed()
        await other.flushed()
        assert marked(journal_place) == ["c-1"]
        other.append([make_row()], record("finished"))
        other.append(
            [make_row()], record("waiting_for_confirmation")
        )  # perhaps in one batch: the last counts
        log.update_record(record("idle"))
        await log.flushed()
        await other.flushed()
        assert marked(journal_place) == ["c-2"]
        await journal.fork(
            "c-1", "c-3", b"{}", parts=[(0, 1)], status="running", created_at=CREATED, updated_at=CREATED
        )
        await journal.create("c-4", b"{}", status="running", created_at=CREATED, updated_at=CREATED)
        assert marked(journal_place) == ["c-2", "c-3", "c-4"]


@pytest.mark.guarantee(name="another-takes-over")
async def test_work_that_a_server_stores_after_it_was_declared_dead_is_found(journal_place, make_row):
    """A commit counts until another server has claimed the conversation, which no declaration waits for."""
    one, two = journal_place.join(), journal_place.join()
    with connect(journal_place.database, "test") as connection:
        claimant = Claimant(two, "")
        async with open_shared_journal(journal_place.database, one, live=LIVE) as late:
            log = await new_log(late, "c-1")
            journal_place.query(f"UPDATE servers SET state = 'dead' WHERE id = {one}")
            assert directory.waiting(connection, claimant) == 0
            log.append([make_row()], record("running"))
            await log.flushed()
            assert directory.waiting(connection, claimant) == 1
            assert directory.claim(connection, claimant, 8, set()) == 1
            log.append([make_row()], record("finished"))
            with pytest.raises(LeaseLost):
                await log.flushed()
            assert marked(journal_place) == ["c-1"]


def test_commits_change_no_index_of_heads_within_a_turn(journal_place):
    """They are HOT. Only where work begins or ends, the index of the mark changes too."""
    server = journal_place.join()
    store = PostgresStore.open(journal_place.database, server, LIVE)
    asked = "SELECT pg_stat_get_xact_tuples_updated(%s), pg_stat_get_xact_tuples_hot_updated(%s)"
    ((heads,),) = journal_place.query("SELECT 'heads'::regclass::oid")
    try:
        made = store.create(
            NewRecord(id="c-1", record=b"{}", status="running", created_at=CREATED, updated_at=CREATED)
        )
        assert made is not None
        handle = SimpleNamespace(key=made.key, generation=1, broken=None)
        with store._connection.transaction():
            for seq in range(20):
                rows = [Stored(f"e-{seq}", "MessageEvent", "agent", CREATED, b"{}", seq)]
                store.write(
                    [
                        Append(
                            handle=handle,
                            rows=rows,
                            record=record("running") if seq % 2 else None,
                            blobs=(),
                            size=2,
                            last_seq=seq,
                            ticket=0,
                        )
                    ]
                )
            assert store._connection.execute(asked, (heads, heads)).fetchone() == (20, 20)
        assert handle.broken is None
    finally:
        store.close()
