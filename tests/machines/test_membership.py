"""The rows of servers: who joins, whose lease ends, who declares whom dead."""

from __future__ import annotations

import threading

import psycopg
import pytest
import trio

from supervisor.database.address import parse
from supervisor.machines import membership
from supervisor.machines.errors import MachinesRefused
from supervisor.machines.lease import AFTER_EXPIRY, may_declare_dead
from supervisor.machines.membership import NameTaken, await_database
from tests.machines.servers import (
    connected,
    conversation,
    head,
    joined,
    profile,
    shift,
    state,
)

TTL = 15.0


def test_a_server_joins_renews_and_leaves(database):
    with connected(database) as connection:
        server = joined(connection, "a")
        (view,) = membership.views(connection, server)
        assert (view.server, view.name, view.address, view.state) == (server, "a", "http://a:8000", "alive")
        assert (view.labels, view.version, view.this) == ({"zone": "a"}, "1", True)
        assert 14 < view.lease_seconds <= TTL
        assert view.started.endswith("Z")
        shift(connection, 10)
        assert membership.renew(connection, server, 5, 7) == "alive"
        (view,) = membership.views(connection, 0)
        assert 14 < view.lease_seconds <= TTL
        assert (view.free_bytes, view.conversations, view.this) == (5, 7, False)
        membership.leave(connection, server)
        assert state(connection, server) == "left"
        assert membership.renew(connection, server, 0, 0) is None


def test_a_server_that_missed_its_renewals_is_declared_dead_once(database):
    with connected(database) as connection:
        servers = [joined(connection, name) for name in "abcdef"]
        shift(connection, TTL + 2 * AFTER_EXPIRY)
        for server in servers[1:]:  # in time: at the end of the lease, not after it
            connection.execute("UPDATE servers SET expires = now() + interval '5 s' WHERE id = %s", (server,))
            membership.renew(connection, server, 0, 0)
        found: list[str] = []

        def one(server: int) -> None:
            with connected(database) as own:
                found.extend(membership.look(own, server, TTL).died)

        threads = [threading.Thread(target=one, args=(server,)) for server in servers[1:]]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert found == ["a"]
        assert membership.renew(connection, servers[0], 0, 0) is None
        assert state(connection, servers[0]) == "dead"


def test_a_renewal_is_in_time_until_death_is_declared(database):
    with connected(database) as connection:
        first, second = joined(connection, "a"), joined(connection, "b")
        shift(connection, TTL + 1, "a")
        assert membership.renew(connection, first, 0, 0) == "alive"
        shift(connection, TTL + 1, "b")
        assert membership.renew(connection, second, 0, 0) == "alive"
        assert membership.look(connection, second, TTL).died == ()


@pytest.mark.parametrize("age", [0, 14, 15, 16])
def test_after_an_outage_no_lease_is_stolen_for_a_whole_ttl(database, age):
    with connected(database) as connection:
        joined(connection, "dead")
        server = joined(connection, "b")
        # Neither could renew for an hour. The second one comes first.
        shift(connection, 3600)
        assert membership.look(connection, server, TTL).died == (), "its own lease has ended too"
        membership.renew(connection, server, 0, 0)
        assert membership.look(connection, server, TTL).died == ()
        shift(connection, age, "b")
        connection.execute("UPDATE servers SET expires = now() + interval '1 s' WHERE id = %s", (server,))
        assert membership.look(connection, server, TTL).died == (
            ("dead",) if may_declare_dead(age, TTL) else ()
        )


@pytest.mark.parametrize(("late", "died"), [(AFTER_EXPIRY / 2, ()), (AFTER_EXPIRY * 2, ("dead",))])
def test_a_warden_has_the_time_to_kill_before_a_server_is_declared_dead(database, late, died):
    with connected(database) as connection:
        dead, server = joined(connection, "dead"), joined(connection, "b")
        shift(connection, TTL + 1, "b")
        connection.execute("UPDATE servers SET expires = now() + interval '9 s' WHERE id = %s", (server,))
        with connection.transaction():  # in which `now()` stands still
            connection.execute(
                "UPDATE servers SET expires = now() - make_interval(secs => %s) WHERE id = %s", (late, dead)
            )
            assert membership.look(connection, server, TTL).died == died


def test_a_look_shows_who_missed_a_renewal(database):
    with connected(database) as connection:
        server = joined(connection, "a")
        for name, seconds in (("late", 12.0), ("early", 0.0), ("dead", 40.0)):
            membership.renew(connection, joined(connection, name), 100, 0)
            shift(connection, seconds, name)
        seen = membership.look(connection, server, TTL)
        assert (seen.state, seen.died, seen.servers, seen.free_elsewhere) == ("alive", (), 4, 300)
        assert sorted(round(each) for each in seen.to_expiries) == [-25, 3]
        assert membership.look(connection, 0, TTL).state is None


def test_a_clock_that_goes_back_does_not_keep_the_dead_alive(database):
    with connected(database) as connection:
        joined(connection, "dead")
        server = joined(connection, "b")
        shift(connection, -3600)
        membership.look(connection, server, TTL)
        leases = {each.name: each.lease_seconds for each in membership.views(connection, server)}
        assert leases == pytest.approx({"dead": TTL, "b": TTL}, abs=1)
        membership.renew(connection, server, 0, 0)
        shift(connection, TTL + 1)
        connection.execute("UPDATE servers SET expires = now() + interval '1 s' WHERE id = %s", (server,))
        assert membership.look(connection, server, TTL).died == ("dead",)


def test_a_server_that_starts_again_has_its_conversations_at_once(database):
    with connected(database) as connection:
        first = joined(connection, "a", "i")
        other = joined(connection, "b")
        conversation(connection, "works", "running", first)
        conversation(connection, "idles", "idle", first)
        conversation(connection, "other", "running", other)
        found = membership.join(connection, profile("renamed", "i"))
        assert isinstance(found, membership.Joined)
        assert found.taken == ("works",)
        assert state(connection, first) == "dead"
        assert membership.renew(connection, first, 0, 0) is None
        assert [head(connection, each) for each in ("works", "idles", "other")] == [
            (found.server, 1),
            (found.server, 1),
            (other, 0),
        ]


def test_two_servers_of_one_name(database):
    with connected(database) as connection:
        joined(connection, "a")
        taken = membership.join(connection, profile("a", "another"))
        assert isinstance(taken, NameTaken)
        assert not taken.ended
        membership.bury(connection, taken)
        assert isinstance(membership.join(connection, profile("a", "another")), NameTaken)
        shift(connection, TTL + 1)
        ended = membership.join(connection, profile("a", "another"))
        assert isinstance(ended, NameTaken)
        assert ended.ended
        membership.bury(connection, taken)  # it renewed since
        assert isinstance(membership.join(connection, profile("a", "another")), NameTaken)
        membership.bury(connection, ended)
        assert isinstance(membership.join(connection, profile("a", "another")), membership.Joined)


def test_of_two_that_join_with_one_name_at_once_one_does(database):
    with connected(database) as connection, connected(database) as other:
        with connection.transaction():
            joined(connection, "a", "one")
            found: list[object] = []
            thread = threading.Thread(
                target=lambda: found.append(membership.join(other, profile("a", "two")))
            )
            thread.start()
            thread.join(0.1)
        thread.join()
        assert isinstance(found[0], NameTaken)


def test_drained_servers_know_it_with_their_next_renewal(database):
    with connected(database) as connection:
        server = joined(connection, "a")
        assert membership.drain(connection, "a")
        assert membership.drain(connection, "a")
        assert not membership.drain(connection, "b")
        assert membership.renew(connection, server, 0, 0) == "draining"
        assert membership.look(connection, server, TTL).state == "draining"


def test_rows_of_servers_that_ended_long_ago_are_removed(database):
    with connected(database) as connection:
        owner, idle, fresh = (joined(connection, name) for name in ("owner", "idle", "fresh"))
        conversation(connection, "c", "idle", owner)
        for server in (owner, idle, fresh):
            membership.leave(connection, server)
        for name in ("owner", "idle"):
            shift(connection, 2 * 86400, name)
        joined(connection, "new")
        rows = connection.execute("SELECT name FROM servers ORDER BY name").fetchall()
        assert rows == [("fresh",), ("new",), ("owner",)]
        assert [each.name for each in membership.views(connection, 0)] == ["fresh", "new"]


def test_a_foreign_and_a_newer_database_are_refused(empty_database, database):
    with connected(empty_database) as connection:
        connection.execute("CREATE TABLE theirs (a int)")
        with pytest.raises(MachinesRefused, match=r"^OSTLER_DATABASE: .*other tables"):
            membership.prepare(connection, empty_database)
    with connected(database) as connection:
        connection.execute("UPDATE schema_version SET version = 99, oldest = 99")
        with pytest.raises(MachinesRefused, match=r"^OSTLER_DATABASE: .*version 99"):
            membership.prepare(connection, database)


async def test_a_database_that_is_away_is_waited_for(tmp_path, monkeypatch, autojump_clock):
    away = parse(f"postgresql://u:geheim@/d?host={tmp_path}")
    lines: list[str] = []
    tries = []

    def there(*_: object) -> None:
        tries.append(trio.from_thread.run_sync(trio.current_time))
        if tries[-1] - tries[0] < 35:
            raise psycopg.OperationalError('connection to "geheim" failed\nmore')

    monkeypatch.setattr(membership, "_try", there)
    await await_database(away, lines.append)
    assert len(lines) == 4
    assert lines[0] == f'waiting for the database {tmp_path}/d: connection to "***" failed'
    assert len(tries) == 36


async def test_a_database_that_does_not_exist_is_refused(postgres, tmp_path):
    lines: list[str] = []
    with pytest.raises(MachinesRefused, match=r"^OSTLER_DATABASE: there is no such database .*/nothing"):
        await await_database(postgres.address("nothing"), lines.append)
    await await_database(postgres.address("postgres"), lines.append)
    assert lines == []


def test_what_waits_for_a_real_one_says_why(tmp_path):
    away = parse(f"postgresql://u@/d?host={tmp_path}")
    with pytest.raises(psycopg.OperationalError, match="No such file"):
        membership._try(away)


def test_a_database_with_a_part_of_a_copy_is_refused(database):
    with connected(database) as connection:
        connection.execute("INSERT INTO meta VALUES ('copy', 'elsewhere')")
        with pytest.raises(MachinesRefused, match="a copy into the database has not ended"):
            membership.prepare(connection, database)
        connection.execute("DELETE FROM meta")
        membership.prepare(connection, database)
