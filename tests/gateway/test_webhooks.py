"""Webhooks: what is sent when, what a receiver that misbehaves costs, and what a restart loses."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import attrs
import orjson
import pytest
import trio
from trio.testing import MockClock

from gateway.api.contract import Conversation
from gateway.api.webhooks import delivery, sender
from gateway.api.webhooks.backlog import Backlog
from gateway.api.webhooks.cursors import Cursors, FileTable, SharedTable, Table
from gateway.api.webhooks.delivery import NotDelivered, Receiver
from gateway.api.webhooks.sender import DeliveryCounters, Sender
from gateway.api.webhooks.service import Webhooks
from gateway.configuration.config import load_config
from gateway.configuration.parsing import ConfigError
from gateway.configuration.webhooks import WebhookSpec, read_webhooks
from supervisor.conversations.state.errors import UnknownConversation
from supervisor.conversations.state.record import RecordTooNew
from supervisor.database.address import Database
from supervisor.documents.port import DocumentsUnavailable
from supervisor.events import (
    ConversationStateUpdateEvent,
    Event,
    StreamingDeltaEvent,
    Vocabulary,
    dump_event,
    timestamp_now,
)
from supervisor.journal.cursor import Cursor
from supervisor.journal.journal import Journal, open_journal
from supervisor.journal.log import Log
from supervisor.journal.rows import Frame, Row
from tests.journal.harness import new_log
from tests.support.processes import kill
from tests.support.receiver import WAYS, open_receiver
from tests.support.scripted import scripted_command
from tests.support.server import running_server

ONE = WebhookSpec(base_url="http://one.example")
NUMBERS = itertools.count()


# -- settings --------------------------------------------------------------------------------------------


def test_the_variables() -> None:
    given = [{"base_url": "https://one.example/hook/", "headers": {"X-Token": "t"}, "num_retries": 0}]
    (found,) = read_webhooks({"OSTLER_WEBHOOKS": orjson.dumps(given).decode()})
    assert (found.base_url, found.headers, found.num_retries) == (
        "https://one.example/hook",
        {"X-Token": "t"},
        0,
    )
    assert found == read_webhooks({"OH_WEBHOOKS": orjson.dumps(given).decode()})[0]
    numbered = {
        "OH_WEBHOOKS_0_BASE_URL": "http://one.example",
        "OH_WEBHOOKS_1_BASE_URL": "http://two.example",
        "OH_WEBHOOKS_1_FLUSH_DELAY": "2.5",
        "OH_WEBHOOKS_1_HEADERS": '{"X-Token": "t"}',
        "OH_WEBHOOKS_3_BASE_URL": "http://behind.a.gap",
    }
    first, second = read_webhooks(numbered)
    assert first == ONE
    assert (second.base_url, second.flush_delay, second.headers) == (
        "http://two.example",
        2.5,
        {"X-Token": "t"},
    )
    assert read_webhooks({}) == ()
    assert "secret" not in repr(attrs.evolve(ONE, headers={"X-Token": "secret"}))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", r"OSTLER_WEBHOOKS is not JSON \(Expecting .*: line 1, column 2\)$"),
        ("[" * 100_000, "OSTLER_WEBHOOKS is not JSON"),
        ("{}", "OSTLER_WEBHOOKS: "),
        ("[{}]", r"OSTLER_WEBHOOKS\[0\].base_url: "),
        ('[{"base_url": "ftp://one"}]', "http or https"),
        ('[{"base_url": "http://one", "headers": {"A": "b\\r\\nC: d"}}]', "header"),
        ('[{"base_url": "http://one", "retries": 1}]', r"\[0\].retries"),
        ('[{"base_url": "http://one", "flush_delay": 0}]', r"\[0\].flush_delay"),
        ('[{"base_url": "http://one"}, {"base_url": "http://one/"}]', r"\[1\].base_url: is given twice"),
    ],
)
def test_what_is_wrong_with_them_is_named(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config({"OSTLER_WEBHOOKS": text})


# -- what waits ------------------------------------------------------------------------------------------


def test_a_batch_has_so_many_events_and_bytes() -> None:
    backlog = Backlog(attrs.evolve(ONE, event_buffer_size=3, max_batch_bytes=100))
    for seq, size in enumerate((10, 10, 10, 10, 90, 90, 500, 10)):
        backlog.add(seq, size)
    batches = []
    while batch := backlog.take():
        batches.append([seq for seq, _ in batch])
    assert batches == [[0, 1, 2], [3], [4], [5], [6], [7]]  # one that is too large goes alone
    assert not backlog


def test_the_oldest_are_dropped_beyond_the_bounds() -> None:
    backlog = Backlog(attrs.evolve(ONE, max_queue_size=4, max_queue_bytes=100))
    for seq in range(6):
        backlog.add(seq, 10)
    assert backlog.dropped == 2
    backlog.add(6, 90)
    assert backlog.dropped == 5
    assert [seq for seq, _ in backlog.take()] == [5, 6]
    backlog.put_back([(5, 10), (6, 90)], None)
    backlog.add(7, 200)
    assert not backlog
    assert backlog.dropped == 8


def test_a_state_keeps_its_place_and_only_the_newest_waits() -> None:
    backlog = Backlog(attrs.evolve(ONE, event_buffer_size=2))
    backlog.snapshot = (-1, b"old")
    for seq in range(4):
        backlog.add(seq, 1)
    backlog.snapshot = (2, b"new")
    first = backlog.take()
    assert backlog.take_snapshot(first[-1][0]) is None
    second = backlog.take()
    assert backlog.take_snapshot(second[-1][0]) == (2, b"new")
    backlog.put_back(second, (2, b"new"))
    assert len(backlog) == 3


# -- one sender ------------------------------------------------------------------------------------------


@attrs.define
class Taker:
    """Stands for the receiver: keeps batches, and fails as often as it is told."""

    spec: WebhookSpec
    fails: float = 0
    slow: float = 0.0
    failing: bool = False
    posts: list[tuple[float, str, Any]] = attrs.field(factory=list)
    tried: list[float] = attrs.field(factory=list)
    complaint: Any = attrs.field(factory=lambda: SimpleNamespace(say=lambda **_: None))

    async def post(self, path: str, body: bytes) -> None:
        self.tried.append(trio.current_time())
        await trio.sleep(self.slow)
        if self.fails > 0:
            self.fails -= 1
            raise NotDelivered("no")
        self.posts.append((trio.current_time(), path, orjson.loads(body)))

    def keys(self) -> list[list[str]]:
        bodies = [body for _, path, body in self.posts if path.startswith("/events/")]
        return [[event["key"] for event in body] for body in bodies]


def row(key: str) -> Row:
    event: Event = ConversationStateUpdateEvent(id=f"e-{next(NUMBERS)}", key=key, value=None)
    return Row(
        id=event.id, kind=event.kind, source="environment", timestamp=timestamp_now(), body=dump_event(event)
    )


@attrs.define(weakref_slot=True)
class Loaded:
    """Stands for a conversation that is in use."""

    log: Log
    vocabulary: Vocabulary = Vocabulary.EXTENDED


@attrs.define
class Scene:
    log: Log
    taker: Taker
    sender: Sender
    nursery: trio.Nursery
    loaded: Loaded
    counters: DeliveryCounters

    async def write(self, *keys: str) -> None:
        for key in keys:
            self.log.append([row(key)])
        await self.log.flushed()
        await self.settle()

    async def settle(self) -> None:
        """Let threads and tasks do what they can without time passing."""
        for _ in range(20):
            await trio.testing.wait_all_tasks_blocked(0.002)


async def scene(journal: Journal, nursery: trio.Nursery, tmp_path: Path, **spec: Any) -> Scene:
    log = await new_log(journal, "00000000-0000-0000-0000-00000000000a")
    taker = Taker(attrs.evolve(ONE, **spec))
    loaded, counters = Loaded(log), DeliveryCounters()
    made = Sender(
        cast(Conversation, loaded), cast(Receiver, taker), Cursors(FileTable(tmp_path / "cursors")), counters
    )
    nursery.start_soon(made.run)
    found = Scene(log, taker, made, nursery, loaded, counters)
    await found.settle()
    return found


@pytest.fixture
def clock() -> MockClock:
    return MockClock()


async def jump(seen: Scene, clock: MockClock, seconds: float) -> None:
    clock.jump(seconds)
    await seen.settle()


async def real_wait(check: Callable[[], Any]) -> None:
    for _ in range(2000):
        if check():
            return
        await trio.to_thread.run_sync(__import__("time").sleep, 0.005)
    raise AssertionError("it did not happen")


async def test_events_are_sent_when_enough_wait_or_they_are_old(
    journal: Journal, tmp_path: Path, mock_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        seen = await scene(journal, nursery, tmp_path, event_buffer_size=3, flush_delay=30)
        await seen.write("a", "b")
        assert seen.taker.posts == []
        await seen.write("c", "d")
        await real_wait(lambda: len(seen.taker.posts) == 1)
        await jump(seen, mock_clock, 29)
        assert seen.taker.keys() == [["a", "b", "c"]]
        await jump(seen, mock_clock, 2)
        await real_wait(lambda: len(seen.taker.posts) == 2)
        assert seen.taker.keys() == [["a", "b", "c"], ["d"]]
        _, path, events = seen.taker.posts[0]
        assert path == "/events/0000000000000000000000000000000a"
        assert events[0]["value"] is None  # nulls are there
        assert seen.counters == DeliveryCounters(delivered=4)
        nursery.cancel_scope.cancel()


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_a_failed_batch_is_sent_again_and_the_order_kept(
    journal: Journal, tmp_path: Path, mock_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        seen = await scene(
            journal, nursery, tmp_path, event_buffer_size=2, num_retries=2, retry_delay=5, flush_delay=30
        )
        seen.taker.fails = 4
        await seen.write("a", "b", "c")
        for passed in (5, 5, 30, 5):
            await real_wait(lambda: seen.taker.tried)
            await seen.settle()
            await jump(seen, mock_clock, passed)
        await real_wait(lambda: seen.taker.posts)
        await jump(seen, mock_clock, 31)
        await real_wait(lambda: len(seen.taker.posts) == 2)
        assert seen.taker.keys() == [["a", "b"], ["c"]]
        assert [time - seen.taker.tried[0] for time in seen.taker.tried[:5]] == [0, 5, 10, 40, 45]
        assert seen.counters.failures == 4
        nursery.cancel_scope.cancel()


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_a_dead_receiver_costs_the_oldest_events_and_no_memory(
    journal: Journal, tmp_path: Path, mock_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        seen = await scene(
            journal, nursery, tmp_path, event_buffer_size=2, max_queue_size=4, num_retries=0, flush_delay=10
        )
        seen.taker.fails = float("inf")
        await seen.write(*"abcdefgh")
        await jump(seen, mock_clock, 10)
        await real_wait(lambda: seen.counters.dropped == 4)
        seen.taker.fails = 0
        for _ in range(4):
            await jump(seen, mock_clock, 10)
        await real_wait(lambda: len(seen.taker.posts) == 2)
        assert seen.taker.keys() == [["e", "f"], ["g", "h"]]
        nursery.cancel_scope.cancel()


async def test_states_are_sent_and_streamed_pieces_are_not(
    journal: Journal, tmp_path: Path, mock_clock: MockClock
) -> None:
    def state(key: str) -> Frame:
        event = dump_event(ConversationStateUpdateEvent(id=key, key=key, value={}))
        return Frame(legacy=event, session=b'{"type":"transient","event":' + event + b"}")

    delta = dump_event(StreamingDeltaEvent(id="d", timestamp=timestamp_now(), content="x"))
    async with trio.open_nursery() as nursery:
        seen = await scene(journal, nursery, tmp_path, event_buffer_size=3)
        await seen.write("a")
        seen.log.publish(Frame(legacy=delta, session=b'{"type":"delta"}'))
        seen.log.publish(state("old"))
        seen.log.publish(state("full_state"))
        await seen.write("b")
        await real_wait(lambda: seen.taker.posts)
        assert seen.taker.keys() == [["a", "full_state", "b"]]
        nursery.cancel_scope.cancel()


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_what_an_earlier_sender_has_not_delivered_comes_first(
    journal_path: Path, tmp_path: Path
) -> None:
    async with open_journal(journal_path) as journal, trio.open_nursery() as nursery:
        seen = await scene(journal, nursery, tmp_path, event_buffer_size=2)
        await seen.write("a", "b", "c")
        await real_wait(lambda: seen.counters.delivered == 2)
        await real_wait(lambda: seen.sender._position == 1)
        await seen.settle()
        nursery.cancel_scope.cancel()
    cursors = Cursors(FileTable(tmp_path / "cursors"))
    assert await cursors.behind() == ["00000000-0000-0000-0000-00000000000a"]
    async with open_journal(journal_path) as journal, trio.open_nursery() as nursery:
        log = await journal.log("00000000-0000-0000-0000-00000000000a")
        taker = Taker(attrs.evolve(ONE, event_buffer_size=1))
        loaded = Loaded(log)
        again = Sender(cast(Conversation, loaded), cast(Receiver, taker), cursors, DeliveryCounters())
        nursery.start_soon(again.run)
        await real_wait(lambda: taker.posts)
        assert taker.keys() == [["c"]]
        nursery.cancel_scope.cancel()
    await cursors.close()


async def test_a_sender_ends_when_nobody_uses_the_conversation(
    journal: Journal, tmp_path: Path, mock_clock: MockClock
) -> None:
    async with trio.open_nursery() as nursery:
        seen = await scene(journal, nursery, tmp_path, event_buffer_size=1)
        await seen.write("a")
        await real_wait(lambda: seen.taker.posts)
        await seen.settle()
        del seen.loaded
        for _ in range(3):
            await jump(seen, mock_clock, sender.LOOK_SECONDS + 1)
        await real_wait(lambda: not nursery.child_tasks)
    assert await Cursors(FileTable(tmp_path / "cursors")).behind() == []


async def test_a_deleted_conversation_ends_its_sender(journal: Journal, tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        seen = await scene(journal, nursery, tmp_path)
        await seen.write("a")
        seen.sender.tell(b'{"execution_status": "deleting"}')
        await journal.delete(seen.log.conversation_id)
        await real_wait(lambda: not nursery.child_tasks)
        assert [path for _, path, _ in seen.taker.posts] == ["/conversations"]


@pytest.mark.guarantee(name="what-is-deleted-is-gone")
async def test_what_has_not_been_looked_at_yet_is_flushed_too(
    journal: Journal, tmp_path: Path, mock_clock: MockClock
) -> None:
    """The last events of a conversation that is deleted: they are durable, and nobody has seen them."""
    async with trio.open_nursery() as nursery:
        seen = await scene(journal, nursery, tmp_path, event_buffer_size=100)
        await seen.write("a")
        take, gate = seen.sender._take, trio.Event()

        async def take_later(cursor: Cursor) -> None:
            await gate.wait()
            await take(cursor)

        seen.sender._take = take_later  # type: ignore[method-assign]
        await seen.write("b")  # taken by the call under way
        await seen.write("c")
        emptied: list[float] = []

        async def wait() -> None:
            seen.sender.flush()
            await seen.sender.emptied()
            emptied.append(trio.current_time())

        nursery.start_soon(wait)
        await seen.settle()
        assert emptied == []
        gate.set()
        await real_wait(lambda: emptied)
        sent = seen.taker.keys()
        assert [*sent[0], *sent[1]] == ["a", "b", "c"]
        assert emptied == [0]  # at once, not after flush_delay
        nursery.cancel_scope.cancel()


async def test_to_wait_for_a_receiver_that_takes_nothing_ends(journal: Journal, tmp_path: Path) -> None:
    async with trio.open_nursery() as nursery:
        seen = await scene(journal, nursery, tmp_path, num_retries=5)
        seen.taker.fails = float("inf")
        await seen.write("a")
        seen.sender.flush()
        with trio.fail_after(20):
            await seen.sender.emptied()
        assert len(seen.taker.tried) == 1
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize(
    "failure", [RuntimeError("a fault"), RecordTooNew("newer"), UnknownConversation("x")]
)
async def test_one_conversation_that_cannot_be_resumed_keeps_no_other_from_it(
    journal: Journal, tmp_path: Path, failure: Exception
) -> None:
    cursors = Cursors(FileTable(tmp_path / "cursors"))
    logs = [await new_log(journal, f"00000000-0000-0000-0000-00000000000{each}") for each in "abc"]
    for log in logs:
        await cursors.put(log.conversation_id, ONE.base_url, -1, behind=True)
        log.append([row(log.conversation_id)])
    taker, asked = Taker(attrs.evolve(ONE, event_buffer_size=1)), []
    loaded = {log.conversation_id: Loaded(log) for log in logs}

    async def get(conversation_id: str) -> Loaded:
        asked.append(conversation_id)
        if conversation_id.endswith("b"):
            raise failure
        return loaded[conversation_id]

    async with trio.open_nursery() as nursery:
        supervisor = cast(Any, SimpleNamespace(get=get))
        webhooks = Webhooks(supervisor, [cast(Receiver, taker)], cursors, nursery)
        webhooks.resume_soon()
        await real_wait(lambda: len(taker.posts) == 2)
        assert len(asked) == 3
        sent = taker.keys()
        assert sorted(keys[0][-1] for keys in sent) == ["a", "c"]
        # One that is unknown is forgotten; the others are tried again when the receiver is back.
        known = [each[-1] for each in await cursors.behind()]
        assert ("b" in known) == (not isinstance(failure, UnknownConversation))
        nursery.cancel_scope.cancel()
    await cursors.close()


# -- real receivers --------------------------------------------------------------------------------------


@pytest.mark.guarantee(name="malicious-agents")
@pytest.mark.parametrize("way", [*WAYS, "refused", "no such name"])
async def test_a_receiver_of_any_kind(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "POST_SECONDS", 0.5 if way == "silent" else 20.0)
    async with open_receiver() as there:
        there.way = lambda _: way
        url = {"refused": "http://127.0.0.1:9", "no such name": "http://does-not-exist.invalid"}.get(way)
        receiver = Receiver(WebhookSpec(base_url=url or there.url, headers={"X-Token": "t"}), "key")
        try:
            if way in ("ok", "endless"):
                await receiver.post("/events/1", b"[]")
                assert there.requests[0].headers["x-session-api-key"] == "key"
                assert there.requests[0].headers["x-token"] == "t"
                assert there.requests[0].headers["content-type"] == "application/json"
            else:
                with pytest.raises(NotDelivered):
                    await receiver.post("/events/1", b"[]")
            assert all(each.path == "/hook/events/1" for each in there.requests)  # no redirect is followed
        finally:
            await receiver.close()


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_a_whole_server_with_webhooks(tmp_path: Path) -> None:
    """Every event in order, over a kill of the server; states; a receiver that is away for a while."""
    workspace = tmp_path / "work"
    agent = {"acp_server": "custom", "acp_command": scripted_command(home=tmp_path / "agents")}
    async with open_receiver() as there:
        quick = {"event_buffer_size": 3, "flush_delay": 0.2, "retry_delay": 0.1, "num_retries": 1}
        spec = {"base_url": there.url, **quick}
        environment = {
            "OSTLER_WEBHOOKS": orjson.dumps([spec, {"base_url": "http://127.0.0.1:9"}]).decode(),
            "OSTLER_SESSION_API_KEYS": "key-of-the-server",
        }
        async with running_server(tmp_path, environment) as server:
            server.rest.http.headers["X-Session-API-Key"] = "key-of-the-server"
            created = (await server.rest.create(workspace, agent))["id"]
            await server.rest.turn(created, "hello there")
            with trio.fail_after(20):
                while not any(event.get("key") == "full_state" for event in there.events(created)):
                    await trio.sleep(0.02)
            there.way = lambda _: "500"
            await server.rest.turn(created, "nobody listens")
            kill([int((server.state / "server.pid").read_text())])
            there.way = lambda _: "ok"
            while True:
                with trio.move_on_after(20):
                    try:
                        found = await server.rest.events(created)
                    except Exception:
                        await trio.sleep(0.05)
                        continue
                break
            wanted = [event["id"] for event in found]

            def got() -> list[str]:
                events = there.events(created)
                return [event["id"] for event in events if event.get("key") != "full_state"]

            with trio.fail_after(30):
                while len(got()) < len(wanted):
                    await trio.sleep(0.05)
            assert list(dict.fromkeys(got())) == wanted
            assert not any(event["kind"] == "StreamingDeltaEvent" for event in there.events(created))
            await server.rest.call("PATCH", f"/api/conversations/{created}", {"title": "New"})
            await server.rest.call("POST", f"/api/conversations/{created}/pause")
            made = await server.rest.call("POST", f"/api/conversations/{created}/fork", {}, expect=(201,))
            task = {"task": "!hang", "isolation": "shared"}
            path = f"/api/conversations/{created}/children"
            child = (await server.rest.call("POST", path, task, expect=(201,)))["conversation_id"]
            await server.rest.wait_status(child, "running")
            for each in (child, made["id"], created):
                await server.rest.call("DELETE", f"/api/conversations/{each}")
            # The last events, those of the end of a turn among them, are there before the answer.
            assert "InterruptEvent" in {event["kind"] for event in there.events(child)}
            told = [each.body for each in there.taken if each.path == "/hook/conversations"]
            for one in (made["id"], child):
                statuses = [body["execution_status"] for body in told if body["id"] == one]
                assert statuses[0] != "deleting"
                assert statuses[-1] == "deleting"
            titles = [each.body["title"] for each in there.taken if each.path == "/hook/conversations"]
            assert "New" in titles
            assert {each.headers["x-session-api-key"] for each in there.requests} == {"key-of-the-server"}
            metrics = (await server.rest.http.get("/metrics")).text
            assert "ostler_webhook_failures_total" in metrics
            assert "key-of-the-server" not in server.output_tail()


def head(conversation: str, owner: int | None, connection: Any) -> None:
    """A conversation, and who has it."""
    connection.execute(
        "WITH c AS (INSERT INTO conversations (id, record, status, created_at, updated_at, epoch) "
        "VALUES (%s, '', 'idle', '', '', 1) ON CONFLICT DO NOTHING RETURNING key) "
        "INSERT INTO heads SELECT key, %s::bigint, 0, -1, false FROM c",
        (conversation, owner),
    )


@pytest.fixture(params=["file", "database"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], Table]]:
    """Opens the table of the cursors, each time as another server would."""
    if request.param == "file":
        yield lambda: FileTable(tmp_path / "cursors")
        return
    from supervisor.database.documents import PostgresDocuments

    database = request.getfixturevalue("database")
    opened: list[PostgresDocuments] = []

    def shared() -> SharedTable:
        opened.append(PostgresDocuments(database))
        for each in "ab":
            opened[-1].run(partial(head, each, None))
        return SharedTable(opened[-1], 1)

    yield shared
    for each in opened:
        each.close()


async def test_cursors_outlive_their_server(table: Callable[[], Table]) -> None:
    cursors = Cursors(table())
    assert await cursors.get("a", "one") is None
    await cursors.put("a", "one", 3, behind=True)
    await cursors.put("a", "one", 4, behind=True)
    await cursors.put("a", "two", 5, behind=False)
    await cursors.put("b", "one", 2**40, behind=False)
    await cursors.close()
    again = Cursors(table())
    assert [await again.get("a", "one"), await again.get("a", "two")] == [4, 5]
    assert await again.get("b", "one") == 2**40
    assert await again.behind() == ["a"]
    await again.put("a", "one", 6, behind=False)
    await again.put("b", "one", 6, behind=True)
    assert await again.behind() == ["b"]
    await again.forget("b")
    assert await again.get("b", "one") is None
    assert await again.behind() == []
    await again.close()


async def test_a_server_resumes_what_it_has_and_what_no_living_one_has(database: Database) -> None:
    from supervisor.database.connection import connect
    from supervisor.database.documents import PostgresDocuments

    with connect(database, "test") as connection:
        for number, state in enumerate(("alive", "alive", "dead"), start=1):
            connection.execute(
                "INSERT INTO servers (id, name, instance, address, version, state, expires, ttl) "
                "VALUES (%s, %s, '', '', '', %s, now(), 15)",
                (number, str(number), state),
            )
        for owner in (None, 1, 2, 3):
            head(str(owner), owner, connection)
    documents = PostgresDocuments(database)
    cursors = Cursors(SharedTable(documents, 1))
    for each in ("None", "1", "2", "3"):
        await cursors.put(each, "r", 1, behind=True)
    assert sorted(await cursors.behind()) == ["1", "3", "None"]
    await cursors.close()
    documents.close()


async def test_a_cursor_that_a_database_cannot_tell_is_waited_for(autojump_clock: MockClock) -> None:
    answers: list[Any] = [DocumentsUnavailable("it does not answer"), [(7,)]]

    class Away:
        name = "t"
        behind: tuple[str, Sequence[object]] = ("x", ())

        def run(self, statement: str, values: Sequence[object] = ()) -> Any:
            found = answers.pop(0)
            if isinstance(found, Exception):
                raise found
            return found

        def close(self) -> None: ...

    cursors = Cursors(Away())
    assert await cursors.get("a", "r") == 7
    answers += [DocumentsUnavailable("away"), DocumentsUnavailable("away")]
    await cursors.put("a", "r", 8, behind=True)
    assert await cursors.behind() == []
