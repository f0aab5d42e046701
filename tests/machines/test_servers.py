"""Real servers over a real PostgreSQL: any of them answers, and what one leaves another takes up."""

from __future__ import annotations

import itertools
import json
import shutil
import signal
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from supervisor.database.address import Database
from tests.machines.service import LEASE_S, TAKEOVER_S, Machine, Service, service
from tests.support.client import answer_text
from tests.support.processes import alive, kill

SOON_S = 10.0  # for what has no promise; far above what it takes


def moves(events: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    found = [each["value"] for each in events if each.get("key") == "server"]
    return [(each["from"], each["to"], each["why"]) for each in found]


async def eventually(look: Any, seconds: float = SOON_S) -> Any:
    with trio.fail_after(seconds):
        while True:
            found = await look()
            if found:
                return found
            await trio.sleep(0.02)


async def test_a_conversation_is_served_by_every_server(tmp_path: Path, database: Database) -> None:
    async with service(tmp_path, database) as servers:
        a, b = await servers.start("a"), await servers.start("b")
        made = await servers.converse(a)
        said = await b.rest.turn(made, "hello")
        assert "hello" in answer_text(said)
        assert await a.rest.events(made) == await b.rest.events(made)
        for each in (a, b):
            assert (await each.rest.info(made))["id"] == made
            listed = await each.rest.call("GET", "/api/conversations/search")
            assert [found["id"] for found in listed["items"]] == [made]
        assert len(servers.log.pids()) == 1
        await b.rest.call("DELETE", f"/api/conversations/{made}")
        for each in (a, b):
            await each.rest.call("GET", f"/api/conversations/{made}", expect=404)


async def test_settings_and_secrets_are_those_of_all(tmp_path: Path, database: Database) -> None:
    async with service(tmp_path, database) as servers:
        a, b = await servers.start("a"), await servers.start("b")
        for writer, reader, name in ((a, b, "FIRST"), (b, a, "SECOND")):
            await writer.rest.put_secrets({name: f"value of {name}"})
            found = await reader.rest.call("GET", "/api/settings/secrets")
            assert name in {each["name"] for each in found["secrets"]}
            change = {"conversation_settings_diff": {"max_iterations": 7 if name == "FIRST" else 9}}
            await writer.rest.call("PATCH", "/api/settings", change)
            seen = await reader.rest.call("GET", "/api/settings")
            assert seen["conversation_settings"]["max_iterations"] == (7 if name == "FIRST" else 9)


@pytest.mark.guarantee(name="another-takes-over")
async def test_a_dead_servers_conversations_are_taken_over(tmp_path: Path, database: Database) -> None:
    async with service(tmp_path, database) as servers:
        a, b = await servers.pair()
        made = await servers.converse(a, "volume-work")
        await a.rest.turn(made, "hello")
        before = await b.rest.events(made)
        a.process.lose_power()
        began = time.monotonic()
        said = await b.rest.turn(made, "and again")
        assert time.monotonic() - began < TAKEOVER_S + 1.0  # a turn and a busy machine included
        assert "and again" in answer_text(said)
        events = await b.rest.events(made)
        assert events[: len(before)] == before
        assert moves(events) == [("a", "b", "died")]
        assert servers.log.prompts() == ["hello", "and again"]


@pytest.mark.guarantee(name="another-takes-over")
@pytest.mark.parametrize("lost", ["machine", "warden"])
async def test_work_goes_on_without_being_asked(tmp_path: Path, database: Database, lost: str) -> None:
    async with service(tmp_path, database) as servers:
        a, b = await servers.pair()
        made = await servers.converse(a, "volume-work")
        await a.rest.send(made, "!hang")
        await a.rest.send(made, "second")
        await eventually(lambda: _prompted(servers, 1))
        if lost == "machine":
            a.process.lose_power()
        else:
            (agent,), server = servers.living_agents(), a.pid
            kill([a.process.pid])
            await eventually(lambda: _gone(agent), 2.0)
            await eventually(lambda: _gone(server))

        async def done() -> bool:
            return "second" in servers.log.prompts() and await b.rest.status(made) == "finished"

        await eventually(done, TAKEOVER_S + SOON_S)
        # The cut-off prompt is reported, and never sent again.
        assert servers.log.prompts() == ["!hang", "second"]
        kinds = [each["kind"] for each in await b.rest.events(made)]
        assert "ConversationErrorEvent" in kinds
        assert len(servers.living_agents()) == 1


async def _gone(pid: int) -> bool:
    return not alive(pid)


async def _prompted(servers: Service, count: int) -> bool:
    return len(servers.log.prompts()) >= count


@pytest.mark.guarantee(name="another-takes-over")
async def test_a_server_that_was_stopped_writes_nothing_any_more(tmp_path: Path, database: Database) -> None:
    async with service(tmp_path, database) as servers:
        a, b = await servers.pair()
        made = await servers.converse(a, "volume-work")
        await a.rest.send(made, "!slow 2000 20")
        await eventually(lambda: _prompted(servers, 1))
        (agent,) = servers.living_agents()
        stopped = a.pid
        kill([stopped], signal.SIGSTOP)
        began = time.monotonic()
        # The warden kills what the lease no longer covers, though the server cannot.
        await eventually(lambda: _gone(agent), LEASE_S + 2.0)
        # The stopped server may have had it: with a key of its own a message can be sent again.
        body = {"role": "user", "content": [{"type": "text", "text": "hello"}], "run": True}
        path, headers = f"/api/conversations/{made}/events", {"Idempotency-Key": "once"}
        while True:
            answer = await b.rest.http.post(path, json=body, headers=headers)
            if answer.status_code != 503:
                break
        assert answer.status_code == 200, answer.text

        async def answered() -> bool:
            return servers.log.prompts().count("hello") == 1 and await b.rest.status(made) == "finished"

        await eventually(answered, 30)
        assert time.monotonic() - began < 30
        numbers = [each["id"] for each in await b.rest.events(made)]
        assert len(numbers) == len(set(numbers))

        async def back() -> bool:
            return a.process.pid != a.pid != stopped and (await a.rest.info(made))["id"] == made

        await eventually(back)


async def test_a_server_that_starts_again_takes_its_own_back(tmp_path: Path, database: Database) -> None:
    async with service(tmp_path, database) as servers:
        a = await servers.start("a")
        made = await servers.converse(a)
        await a.rest.turn(made, "hello")
        first = a.pid
        kill([first], signal.SIGKILL)

        async def back() -> bool:
            return a.pid != first

        await eventually(back)
        said = await a.rest.turn(made, "again")
        assert "again" in answer_text(said)
        assert moves(await a.rest.events(made)) == []  # it is where it was


@pytest.mark.guarantee(name="another-takes-over")
async def test_an_orderly_end_hands_over_without_a_failed_request(tmp_path: Path, database: Database) -> None:
    async with service(tmp_path, database) as servers:
        a, b = await servers.pair()
        made = [await servers.converse(a, "volume-work") for _ in range(3)]
        for each in made:
            await a.rest.turn(each, "hello")
        await a.rest.send(made[0], "!slow 10 50")
        await a.rest.send(made[0], "next")
        statuses: list[int] = []
        ended = trio.Event()

        async def ask(conversation: str) -> None:
            while not ended.is_set():
                answer = await b.rest.http.get(f"/api/conversations/{conversation}/events/count")
                statuses.append(answer.status_code)
                asked = await b.rest.http.get(f"/api/agents/{conversation}")
                statuses.append(asked.status_code)
                await trio.sleep(0.02)

        async with trio.open_nursery() as nursery:
            for each in made[1:]:
                nursery.start_soon(ask, each)
            assert await a.process.stop() == 0
            began = time.monotonic()
            said = await b.rest.turn(made[1], "here", timeout=10)
            assert "here" in answer_text(said)
            assert time.monotonic() - began < 5
            ended.set()
        assert set(statuses) <= {200, 201}, statuses

        async def done() -> bool:
            return servers.log.prompts().count("next") == 1 and await b.rest.status(made[0]) == "finished"

        await eventually(done)
        assert moves(await b.rest.events(made[1])) == [("a", "b", "drained")]


async def test_a_drained_server_still_answers(tmp_path: Path, database: Database) -> None:
    async with service(tmp_path, database) as servers:
        a, b = await servers.pair()
        made = await servers.converse(a, "volume-work")
        await a.rest.turn(made, "hello")
        await b.rest.call("POST", "/api/servers/a/drain")

        async def drained() -> bool:
            found = await b.rest.call("GET", "/api/servers")
            (row,) = [each for each in found["servers"] if each["name"] == "a"]
            return bool(row["state"] == "draining" and row["conversations"] == 0)

        async def moved() -> bool:
            return await _owned(a, made) and moves(await a.rest.events(made)) == [("a", "b", "drained")]

        await eventually(drained)
        await eventually(moved)
        said = await a.rest.turn(made, "again")
        assert "again" in answer_text(said)
        # What is new goes to the other one, too.
        other = await servers.converse(a, "volume-work")
        await a.rest.turn(other, "new")
        kill([b.pid], signal.SIGSTOP)
        try:
            found = await a.rest.call("GET", "/api/servers")
            assert {each["name"] for each in found["servers"]} >= {"a", "b"}
        finally:
            kill([b.pid], signal.SIGCONT)


async def test_memory_is_kept_where_the_volumes_are_shared(tmp_path: Path, database: Database) -> None:
    async with service(tmp_path, database) as servers:
        a, b = await servers.pair()
        kept = await servers.converse(a, "volume-work")
        await a.rest.turn(kept, "hello")
        a.process.lose_power()
        await b.rest.turn(kept, "again")
        assert (await b.rest.info(kept))["agent_state"]["memory"] in ("resumed", "loaded")


async def test_memory_is_lost_where_agents_data_is_not_shared(tmp_path: Path, database: Database) -> None:
    async with service(tmp_path, database) as servers:
        a, b = await servers.pair("work")
        made = await servers.converse(a, "volume-work")
        await a.rest.turn(made, "hello")
        a.process.lose_power()
        await b.rest.turn(made, "again")
        assert (await b.rest.info(made))["agent_state"]["memory"] == "lost"


@pytest.mark.guarantee(name="another-takes-over")
async def test_nothing_is_prompted_into_an_empty_directory(tmp_path: Path, database: Database) -> None:
    async with service(tmp_path, database) as servers:
        a, b = await servers.start("a"), await servers.start("b")
        made = await servers.converse(a)
        await a.rest.turn(made, "hello")
        a.process.lose_power()
        await eventually(lambda: _owned(b, made), TAKEOVER_S + SOON_S)
        await b.rest.send(made, "waits")
        await b.rest.wait_status(made, "error")
        (error,) = [each for each in await b.rest.events(made) if each["kind"] == "ConversationErrorEvent"]
        assert error["code"] == "WorkspaceMissing"
        assert "the disk of the server a" in error["detail"]
        assert servers.log.prompts() == ["hello"]
        # The server comes back, and the message is prompted there, once.
        again = await servers.start("a")
        await again.rest.call("POST", "/api/servers/b/drain")

        async def served() -> bool:
            return await _owned(again, made) and moves(await again.rest.events(made))[-1:] == [
                ("b", "a", "drained")
            ]

        await eventually(served)
        before = await again.rest.count(made)
        await again.rest.act(made, "run")
        await again.rest.settle(made, before)
        assert servers.log.prompts() == ["hello", "waits"]


async def _owned(machine: Machine, conversation: str) -> bool:
    answer = await machine.rest.http.post(f"/api/conversations/{conversation}/pause")
    return bool(answer.status_code == 200)


async def test_a_database_that_is_away_at_the_start_is_waited_for(tmp_path: Path, postgres: Any) -> None:
    database = postgres.database()
    async with service(tmp_path, database) as servers:
        postgres.stop("fast")
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(servers.start, "a")
                log = tmp_path / "a" / "server.log"
                await eventually(lambda: _says(log, "waiting for the database"))
                postgres.start()
        except BaseException:
            postgres.start()
            raise
        assert (await servers.machines["a"].rest.call("GET", "/ready"))["status"] == "ready"


@asynccontextmanager
async def _cutting(real: Path, directory: Path, cut: set[int]) -> AsyncIterator[str]:
    """The address of a database whose connections with these numbers end before they have begun."""
    numbers = itertools.count()

    async def serve(client: trio.SocketStream) -> None:
        async with client:
            if next(numbers) in cut:
                return
            async with await trio.open_unix_socket(str(real)) as server, trio.open_nursery() as both:

                async def pass_on(source: trio.SocketStream, sink: trio.SocketStream) -> None:
                    with suppress(trio.BrokenResourceError):
                        async for data in source:
                            await sink.send_all(data)
                    both.cancel_scope.cancel()

                both.start_soon(pass_on, client, server)
                both.start_soon(pass_on, server, client)

    listening = trio.socket.socket(trio.socket.AF_UNIX)
    await listening.bind(str(directory / real.name))
    listening.listen()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, [trio.SocketListener(listening)])
        yield str(directory)
        nursery.cancel_scope.cancel()


async def test_a_database_that_goes_away_while_a_server_starts_is_waited_for_again(
    tmp_path: Path, database: Database, postgres: Any
) -> None:
    directory = Path(tempfile.mkdtemp(prefix="ostler-cut-"))  # a socket's path has at most 107 bytes
    real = postgres.directory / ".s.PGSQL.5432"
    cut = {1, 4, 9}  # the connections of an attempt: one more is made each time
    try:
        async with _cutting(real, directory, cut) as host, service(tmp_path, database) as servers:
            conninfo = database.conninfo.replace(str(postgres.directory), host)
            a = await servers.start("a", OSTLER_DATABASE=conninfo)
            made = await servers.converse(a)
            assert "hello" in answer_text(await a.rest.turn(made, "hello"))
            log = (tmp_path / "a" / "server.log").read_text()
            assert log.count("the database went away; waiting for it again") == len(cut)
    finally:
        shutil.rmtree(directory)


async def _says(path: Path, text: str) -> bool:
    return path.exists() and text in path.read_text()


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"OSTLER_MASTER_KEY": "another phrase"}, "OSTLER_MASTER_KEY"),
        ({"OSTLER_SERVER_NAME": "a"}, "OSTLER_SERVER_NAME"),
    ],
)
async def test_a_server_that_does_not_fit_does_not_start(
    tmp_path: Path, database: Database, change: dict[str, str], named: str
) -> None:
    async with service(tmp_path, database) as servers:
        await servers.start("a")
        with pytest.raises(AssertionError, match="the server ended with"):
            await servers.start("b", **change)
        last = (tmp_path / "b" / "server.log").read_text().strip().splitlines()[-1]
        assert named in last
        assert "Traceback" not in (tmp_path / "b" / "server.log").read_text()


@pytest.mark.guarantee(name="another-takes-over")
async def test_a_restart_of_the_database_passes(tmp_path: Path, postgres: Any, database: Database) -> None:
    async with service(tmp_path, database) as servers:
        a = await servers.start("a", OSTLER_LEASE_SECONDS="10")
        made = await servers.converse(a)
        await a.rest.send(made, "!slow 40 20")
        await eventually(lambda: _prompted(servers, 1))
        first = a.pid
        postgres.stop("immediate")
        postgres.start()
        await a.rest.wait_status(made, "finished")
        assert a.pid == first
        said = await a.rest.turn(made, "and on")
        assert "and on" in answer_text(said)
        found = json.dumps(await a.rest.events(made))
        assert found.count("and on") >= 1
        assert servers.log.prompts() == ["!slow 40 20", "and on"]
