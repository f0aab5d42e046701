"""Who has a conversation: claims of one and of many, what was before, and that never two get it."""

from __future__ import annotations

import threading

import psycopg
import pytest

from supervisor.machines import directory, membership, provisions
from supervisor.machines.directory import Claimant, Moved
from supervisor.machines.errors import OwnedElsewhere, Place
from tests.machines.servers import connected, conversation, head, joined, profile, shift
from tests.support.thorough import everyday


def claimant(server: int, instance: str = "instance", only: str | None = None) -> Claimant:
    return Claimant(server, instance, only)


@pytest.fixture
def connection(database):
    with connected(database) as found:
        yield found


@pytest.fixture
def me(connection):
    return claimant(joined(connection, "me", "mine"), "mine")


def acquire(connection, me, conversation_id, **options):
    unsure: set[str] = set()
    found = directory.acquire(connection, me, conversation_id, unsure, **options)
    assert unsure == set()
    return found


def test_what_is_mine_or_unknown_is_left_alone(connection, me):
    conversation(connection, "c", owner=me.server)
    assert acquire(connection, me, "c") is None
    assert acquire(connection, me, "unknown") is None
    assert head(connection, "c") == (me.server, 0)


def test_what_no_server_ever_had_is_claimed(connection, me):
    conversation(connection, "c")
    assert acquire(connection, me, "c") is None
    assert head(connection, "c") == (me.server, 1)


@pytest.mark.parametrize("state", ["alive", "draining"])
def test_what_a_living_server_has_is_asked_there(connection, me, state):
    other = joined(connection, "other")
    connection.execute("UPDATE servers SET state = %s WHERE id = %s", (state, other))
    conversation(connection, "c", owner=other)
    shift(connection, 1000, "other")  # its lease has ended, and it is not declared dead
    with pytest.raises(OwnedElsewhere) as caught:
        acquire(connection, me, "c")
    place = Place(server=other, name="other", address="http://other:8000", state=state)
    assert caught.value.place == place
    assert directory.place_of(connection, "c") == place
    assert head(connection, "c") == (other, 0)


@pytest.mark.parametrize(
    ("instance", "state", "why"),
    [("its", "dead", "died"), ("its", "left", "drained"), ("mine", "dead", "restarted")],
)
def test_what_a_server_left_that_ended_is_claimed_and_says_from_where(connection, me, instance, state, why):
    other = joined(connection, "other", "its")
    connection.execute("UPDATE servers SET state = %s, instance = %s WHERE id = %s", (state, instance, other))
    conversation(connection, "c", owner=other)
    place = directory.place_of(connection, "c")
    assert place is not None
    assert place.state == state
    assert acquire(connection, me, "c") == Moved("other", why)
    assert head(connection, "c") == (me.server, 1)
    assert acquire(connection, me, "c") is None


def test_what_was_released_says_from_where(connection, me):
    other = claimant(joined(connection, "other"), "its")
    for each in ("a", "b", "mine"):
        conversation(connection, each, "idle", owner=me.server if each == "mine" else other.server)
    directory.release(connection, other, ["a", "mine", "unknown"])
    assert [head(connection, each)[0] for each in ("a", "b", "mine")] == [None, other.server, me.server]
    assert directory.place_of(connection, "a") is None
    assert acquire(connection, me, "a") == Moved("other", "drained")
    directory.release(connection, me, ["a"])
    assert acquire(connection, me, "a") is None, "it was here"
    connection.execute("DELETE FROM servers WHERE name = 'other'")
    connection.execute("UPDATE heads SET owner = NULL, former = %s", (other.server,))
    assert acquire(connection, me, "a") == Moved("another server", "drained")


@pytest.mark.parametrize("reason", ["draining", "ended", "dead"])
def test_a_server_without_lease_and_one_that_drains_claim_nothing(connection, me, reason):
    conversation(connection, "c")
    if reason == "ended":
        shift(connection, 16)
    else:
        connection.execute("UPDATE servers SET state = %s", (reason,))
    assert acquire(connection, me, "c") == "refused"
    assert directory.waiting(connection, me) == 1
    assert directory.claim(connection, me, 8, set()) == 0
    last = acquire(connection, me, "c", last=True)
    assert last == (None if reason == "draining" else "refused")


def test_a_server_for_one_conversation_takes_that_alone(connection):
    found = membership.join(connection, profile("pod", only="b"))
    assert isinstance(found, membership.Joined)
    pod = claimant(found.server, only="b")
    for each in "abc":
        conversation(connection, each)
    assert acquire(connection, pod, "a") == "refused"
    assert directory.waiting(connection, pod) == 1
    unsure: set[str] = set()
    assert directory.claim(connection, pod, 8, unsure) == 1
    assert directory.settle(connection, pod, unsure) == [("b", None)]
    assert directory.best_other(connection, 0) is None


def test_the_best_other_has_the_most_memory(connection, me):
    for name, free in (("a", 1), ("b", 3), ("c", 2)):
        membership.renew(connection, joined(connection, name), free, 0)
    found = directory.best_other(connection, me.server)
    assert found is not None
    assert found.name == "b"
    shift(connection, 16, "b")
    found = directory.best_other(connection, me.server)
    assert found is not None
    assert found.name == "c"


def test_live_work_of_dead_servers_waits_and_is_claimed(connection, me):
    dead, alive = joined(connection, "dead"), joined(connection, "alive")
    connection.execute("UPDATE servers SET state = 'dead' WHERE id = %s", (dead,))
    for number, owner in enumerate((dead, dead, alive, None, me.server)):
        conversation(connection, f"live-{number}", "running", owner)
        conversation(connection, f"idle-{number}", "idle", owner)
    assert directory.waiting(connection, me) == 3
    assert sorted(provisions.unattended(connection, 8)) == ["live-0", "live-1", "live-3"]
    unsure: set[str] = set()
    assert directory.claim(connection, me, 2, unsure) == 2
    assert directory.claim(connection, me, 8, unsure) == 1
    assert directory.claim(connection, me, 8, unsure) == 0
    assert sorted(directory.settle(connection, me, unsure)) == [
        ("live-0", Moved("dead", "died")),
        ("live-1", Moved("dead", "died")),
        ("live-3", None),
    ]
    assert unsure == set()


def test_a_look_reads_the_work_that_waits_alone(connection, me):
    """Of a hundred servers with 200 conversations each."""
    connection.execute(
        "INSERT INTO servers (name, instance, address, version, ttl, expires) "
        "SELECT 's' || n, '', '', '', 15, now() FROM generate_series(1, 100) n"
    )
    connection.execute(
        "INSERT INTO heads (key, owner, generation, last_seq, live) "
        "SELECT n, n % 100, 0, 0, n % 21 = 0 FROM generate_series(1, 20000) n"
    )
    connection.execute("UPDATE servers SET state = 'dead' WHERE name IN ('s7', 's8')")
    connection.execute("ANALYZE")
    for asked in ("SELECT count(*) FROM heads WHERE {}", "SELECT FROM heads WHERE {} LIMIT 8 FOR UPDATE"):
        plan = str(connection.execute(f"EXPLAIN {asked.format(directory.WAITING)}".encode()).fetchall())
        assert "heads_at_work" in plan
        assert "Seq Scan on heads" not in plan


def test_a_claim_whose_answer_is_lost_is_found(connection, me):
    other = joined(connection, "other")
    connection.execute("UPDATE servers SET state = 'dead' WHERE id = %s", (other,))
    for each in ("a", "b", "idle"):
        conversation(connection, each, "idle" if each == "idle" else "running", other)
    unsure: set[str] = set()

    class Cut:
        """Loses the answer of a statement that the database has stored."""

        def execute(self, *arguments):
            connection.execute(*arguments)
            raise psycopg.OperationalError("the connection is lost")

    for each in ("a", "idle"):
        with pytest.raises(psycopg.OperationalError):
            directory.acquire(Cut(), me, each, unsure)
    assert unsure == {"a", "idle"}
    assert acquire(connection, me, "a") is None
    unsure.add("b")  # not stored
    assert directory.settle(connection, me, unsure) == [("a", Moved("other", "died"))]


def test_claims_of_several_servers_at_once_never_double(database, connection):
    servers = [claimant(joined(connection, name)) for name in "abc"]
    dead = joined(connection, "dead")
    connection.execute("UPDATE servers SET state = 'dead' WHERE id = %s", (dead,))
    conversations = everyday(500, 5000)
    for number in range(conversations):
        conversation(connection, f"c{number}", owner=dead if number % 2 else None)
    got: dict[int, list[str]] = {each.server: [] for each in servers}
    begin = threading.Barrier(len(servers))

    def one(me: Claimant) -> None:
        mine = got[me.server]
        with connected(database) as own:
            begin.wait()
            while directory.waiting(own, me):
                unsure: set[str] = set()
                directory.claim(own, me, 3, unsure)
                mine.extend(unsure)
                for number in range(len(mine), conversations, 97):  # and single ones, as clients ask
                    before = head(own, f"c{number}")[0]
                    try:
                        moved = directory.acquire(own, me, f"c{number}", set())
                    except OwnedElsewhere:
                        continue
                    if moved == "raced":
                        continue
                    if before != me.server:
                        mine.append(f"c{number}")

    threads = [threading.Thread(target=one, args=(each,)) for each in servers]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    claimed = [each for mine in got.values() for each in mine]
    assert len(claimed) == len(set(claimed)) == conversations
    assert connection.execute("SELECT DISTINCT generation FROM heads").fetchall() == [(1,)]
    for server, mine in got.items():
        assert all(head(connection, each) == (server, 1) for each in mine[:20])


def test_what_another_server_has_just_claimed_is_not_claimed_again(database, connection, me):
    """The claim waits at the row, and then looks at what the other has made of it."""
    other = joined(connection, "other")
    dead = joined(connection, "dead")
    connection.execute("UPDATE servers SET state = 'dead' WHERE id = %s", (dead,))
    conversation(connection, "never")
    conversation(connection, "died", owner=dead)
    for each in ("never", "died"):
        found: list[object] = []

        def one(each: str = each, found: list[object] = found) -> None:
            with connected(database) as own:
                found.append(directory.acquire(own, me, each, set()))

        with connected(database) as theirs:
            with theirs.transaction():
                theirs.execute(
                    "UPDATE heads SET owner = %s, generation = generation + 1 FROM conversations "
                    "WHERE heads.key = conversations.key AND id = %s",
                    (other, each),
                )
                thread = threading.Thread(target=one)
                thread.start()
                thread.join(0.1)
            thread.join()
        assert found == ["raced"]
        assert head(connection, each) == (other, 1)
