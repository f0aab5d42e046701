"""Servers that have joined, with a real database: leases, takeovers, hints, lost connections."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack

import psycopg
import pytest
import trio

from gateway.serving.server import FORESEEN
from supervisor.database.address import parse
from supervisor.machines import hints, machines, membership
from supervisor.machines.directory import Moved
from supervisor.machines.errors import DatabaseAway, MachinesRefused, OwnedElsewhere, Unclaimed
from supervisor.machines.renewal import Renewals
from tests.machines.servers import (
    TTL,
    WAIT_S,
    connected,
    conversation,
    head,
    joined,
    opened,
    running,
    state,
    until,
)
from tests.support import postgres as support


@pytest.fixture
def connection(database):
    with connected(database) as found:
        yield found


async def test_a_server_renews_its_lease_and_reports_its_end(database, connection, tmp_path):
    leases: list[float] = []
    begun = time.monotonic()
    async with running(database, tmp_path, "a", on_lease=leases.append) as a:
        await until(lambda: len(leases) > 3)
        (view,) = await a.machines.servers()
        assert view.lease_seconds > 0
        assert view.free_bytes == 1 << 30
        assert not a.machines.lost
        assert leases == sorted(leases)
        assert begun < leases[0] - TTL
        assert leases[-1] - TTL < time.monotonic()
    assert leases[-1] == 0.0
    assert state(connection, a.machines.server) == "left"


async def test_a_busy_event_loop_does_not_lose_the_lease(database, connection, tmp_path):
    async with running(database, tmp_path, "a") as a:
        time.sleep(TTL * 1.5)
        await trio.sleep(0.05)
        assert not a.machines.lost
        assert state(connection, a.machines.server) == "alive"


async def test_the_dead_are_declared_dead_and_their_live_work_is_claimed(database, connection, tmp_path):
    dead = joined(connection, "dead", ttl=TTL)
    for number in range(20):
        conversation(connection, f"c{number:02}", "running" if number < 18 else "idle", dead)
    async with running(database, tmp_path, "a") as a, running(database, tmp_path, "b") as b:
        await until(lambda: len(a.claimed) + len(b.claimed) == 18)
        ended = connection.execute("SELECT expires FROM servers WHERE id = %s", (dead,)).fetchone()
        assert ended is not None
        assert state(connection, dead) == "dead"
        assert sorted(a.ids + b.ids) == [f"c{number:02}" for number in range(18)]
        assert {moved for _, moved in a.claimed + b.claimed} == {Moved("dead", "died")}
        assert len(a.claimed) > 0 < len(b.claimed), "by free memory, and both have the same"
        assert await a.machines.acquire("c18") == Moved("dead", "died")
        assert await a.machines.acquire("c18") is None
        with pytest.raises(OwnedElsewhere) as caught:
            await b.machines.acquire("c18")
        assert caught.value.place.name == "a"
        place = await b.machines.place_of("c18")
        assert place is not None
        assert place.address == "http://a:8000"


async def test_concurrent_calls_claim_once(database, connection, tmp_path):
    other = joined(connection, "other")
    membership.leave(connection, other)
    conversation(connection, "c", "idle", other)
    async with opened(database, tmp_path, "a") as a, trio.open_nursery() as nursery:
        found: list[Moved | None] = []

        async def ask() -> None:
            found.append(await a.acquire("c"))

        for _ in range(5):
            nursery.start_soon(ask)
        await until(lambda: len(found) == 5)
        assert [each for each in found if each is not None] == [Moved("other", "drained")]
        assert head(connection, "c") == (a.server, 1)


async def test_a_server_that_is_declared_dead_is_ended(database, connection, tmp_path):
    ended: list[float] = []
    async with running(database, tmp_path, "a", on_lost=lambda: ended.append(time.monotonic())) as a:
        connection.execute("UPDATE servers SET state = 'dead'")
        await until(lambda: bool(ended))
        await trio.sleep(TTL)
        assert len(ended) == 1
        assert a.machines.lost
        conversation(connection, "c", "idle")
        with pytest.raises(Unclaimed):
            await a.machines.acquire("c")
    assert state(connection, a.machines.server) == "dead"


@pytest.mark.parametrize("hung", [False, True])
async def test_a_server_whose_lease_ends_is_ended(database, tmp_path, monkeypatch, hung):
    def renew(*_: object) -> str:
        time.sleep(TTL * 3 if hung else 0)
        raise psycopg.OperationalError("away")

    monkeypatch.setattr(membership, "renew", renew)
    ended: list[float] = []
    leases: list[float] = []
    async with running(
        database,
        tmp_path,
        "a",
        on_lease=leases.append,
        on_lost=lambda: ended.append(time.monotonic()),
    ):
        await until(lambda: bool(ended))
        assert len(ended) == len(leases) == 1
        assert 0 < ended[0] - leases[0] < TTL


async def test_a_server_that_starts_again_is_given_its_live_work(database, connection, tmp_path):
    async with opened(database, tmp_path, "a") as first:
        conversation(connection, "works", "running", first.server)
        conversation(connection, "idles", "idle", first.server)
    async with running(database, tmp_path, "a") as a:
        await until(lambda: bool(a.claimed))
        assert a.claimed == [("works", Moved("a", "restarted"))]
        assert await a.machines.acquire("idles") is None
        assert head(connection, "idles")[0] == a.machines.server != first.server


async def test_drain_is_noticed_within_a_second_and_the_others_take_over(database, connection, tmp_path):
    async with (
        running(database, tmp_path, "a", ttl=15.0) as a,
        running(database, tmp_path, "b", ttl=15.0) as b,
    ):
        conversation(connection, "works", "running", a.machines.server)
        conversation(connection, "idles", "idle", a.machines.server)
        await trio.sleep(0.1)  # both listen
        assert not await b.machines.drain("nothing")
        begun = time.monotonic()
        assert await b.machines.drain("a")
        await a.machines.draining.wait()
        assert time.monotonic() - begun < 1
        begun = time.monotonic()
        await a.machines.release(["works", "idles"])
        await until(lambda: bool(b.claimed))
        assert b.times[0] - begun < 0.3
        assert b.claimed == [("works", Moved("a", "drained"))]
        with pytest.raises(OwnedElsewhere) as caught:
            await a.machines.acquire("idles")
        assert caught.value.place.name == "b"
        assert await b.machines.acquire("idles") == Moved("a", "drained")


async def test_a_draining_server_serves_what_no_other_can(database, connection, tmp_path):
    async with opened(database, tmp_path, "a") as a:
        await a.drain("a")
        conversation(connection, "c", "idle")
        assert await a.acquire("c") is None
        assert head(connection, "c") == (a.server, 1)


async def test_without_hints_the_poll_finds_it(database, connection, tmp_path, monkeypatch):
    monkeypatch.setattr(hints, "HINTS", "another_channel")
    async with running(database, tmp_path, "a") as a:
        await trio.sleep(0.1)
        begun = time.monotonic()
        conversation(connection, "c")
        await until(lambda: bool(a.claimed))
        assert a.times[0] - begun < TTL, "it looks each third"


async def test_a_lease_that_ends_while_the_others_listen_is_taken_over_in_time(
    database, connection, tmp_path
):
    async with running(database, tmp_path, "a") as a, running(database, tmp_path, "b") as b:
        await trio.sleep(TTL * 1.2)  # they may declare others dead
        dead = joined(connection, "dead", ttl=TTL)
        conversation(connection, "c", "running", dead)
        ended = time.monotonic() + TTL
        await until(lambda: bool(a.claimed or b.claimed))
        assert 0 < (a.times + b.times)[0] - ended < 2


async def test_two_servers_of_one_name(database, tmp_path):
    (tmp_path / "second").mkdir()
    async with opened(database, tmp_path, "a"):
        with pytest.raises(MachinesRefused, match=r"^OSTLER_SERVER_NAME: another server has the name a;"):
            async with opened(database, tmp_path, "a", state=tmp_path / "second"):
                pytest.fail("joined")
    async with opened(database, tmp_path, "a", state=tmp_path / "second"):
        pass


async def test_a_dead_server_of_the_same_name_is_waited_for(database, connection, tmp_path):
    dead = joined(connection, "a", "lost", ttl=TTL)
    begun = time.monotonic()
    async with opened(database, tmp_path, "a"):
        assert time.monotonic() - begun > TTL * 0.9
        assert state(connection, dead) == "dead"


async def test_refusals_name_the_setting(database, postgres, tmp_path):
    with pytest.raises(MachinesRefused, match=r"^OSTLER_DATABASE: there is no such database"):
        async with opened(postgres.address("nothing"), tmp_path, "b"):
            pytest.fail("joined")


async def test_a_database_that_goes_away_before_the_join_is_a_line_for_the_terminal(tmp_path):
    with pytest.raises(DatabaseAway) as caught:
        async with opened(parse("postgresql://127.0.0.1:1/gone"), tmp_path, "a"):
            pytest.fail("joined")
    assert isinstance(caught.value, FORESEEN)


async def test_lost_connections_are_made_again(database, connection, tmp_path):
    leases: list[float] = []
    async with running(database, tmp_path, "a", on_lease=leases.append) as a:
        conversation(connection, "c", "idle")
        await a.machines.acquire("c")
        await trio.sleep(0.1)
        connection.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )
        assert await a.machines.acquire("c") is None, "the lost connection is noticed before it is used"
        before = len(leases)
        await until(lambda: len(leases) > before + 2)
        begun = time.monotonic()
        conversation(connection, "d")
        membership.hint(connection)
        await until(lambda: bool(a.claimed))
        assert a.times[0] - begun < TTL
        assert not a.machines.lost


async def test_a_restart_of_the_database_is_survived(tmp_path):
    with support.cluster() as cluster:
        database = cluster.database()
        with connected(database) as connection:
            membership.prepare(connection, database)
        ended: list[str] = []
        async with AsyncExitStack() as stack:
            servers = [
                await stack.enter_async_context(
                    running(database, tmp_path, name, ttl=6.0, on_lost=lambda: ended.append("lost"))
                )
                for name in ("a", "b")
            ]
            await trio.sleep(0.1)
            await trio.to_thread.run_sync(cluster.stop)
            with pytest.raises(DatabaseAway):
                await servers[0].machines.acquire("c")
            await trio.to_thread.run_sync(cluster.start)
            with connected(database) as connection:
                conversation(connection, "c")
            await until(lambda: any(each.claimed for each in servers))
            assert [each.state for each in await servers[0].machines.servers()] == ["alive", "alive"]
        assert ended == []


async def test_it_leaves_also_when_the_database_is_away(tmp_path):
    with support.cluster() as cluster:
        database = cluster.database()
        leases: list[float] = []
        with trio.fail_after(WAIT_S):
            async with opened(database, tmp_path, "a", on_lease=leases.append):
                await trio.to_thread.run_sync(cluster.stop)
        assert leases[-1] == 0.0


async def test_a_server_of_one_conversation_takes_that_alone(database, connection, tmp_path):
    for each in "abc":
        conversation(connection, each)
    async with running(database, tmp_path, "pod", only_conversation="b") as pod:
        await until(lambda: bool(pod.claimed))
        await trio.sleep(TTL / 2)
        assert pod.claimed == [("b", None)]


def test_a_thread_that_is_stopped_reports_no_loss(database, connection):
    """It finds the row of a server that has left."""
    server = joined(connection, "a", ttl=0.03)
    lost: list[str] = []
    callbacks = machines.Callbacks(renewed=lambda until: None, draining=lambda: None, lost=lost.append)
    renewals = Renewals(database, server, 0.03, time.monotonic() + 5, callbacks)
    renewals._stop.is_set = lambda: True  # type: ignore[method-assign]
    membership.leave(connection, server)
    renewals.start()
    renewals._thread.join(WAIT_S)
    assert lost == []
