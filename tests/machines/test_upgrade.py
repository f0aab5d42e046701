"""A rolling upgrade: servers of two versions over one database, as real processes, under a client at work.

The next version is a copy of the product with a higher number, and one more migration of the schema.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
import trio

from supervisor.database.address import Database
from supervisor.database.connection import connect
from supervisor.database.schema import MIGRATIONS, migrate, version
from supervisor.version import __version__
from tests.chaos import checks
from tests.chaos.clients import Follower
from tests.chaos.run import prompted
from tests.machines.service import Machine, service, volumes
from tests.support.client import Rest, answer_text

ROOT: Final = Path(__file__).resolve().parents[2]
NEXT: Final = f"{int(__version__.partition('.')[0]) + 1}.0.0"
MIGRATION: Final = """
CREATE TABLE of_next (key bigint PRIMARY KEY);
ALTER TABLE heads ADD COLUMN of_next integer NOT NULL DEFAULT 7;
ALTER TABLE conversations ADD COLUMN of_next text NOT NULL DEFAULT 'seven';
ALTER TABLE servers ADD COLUMN of_next boolean NOT NULL DEFAULT true;
"""
PAUSE_S: Final = 0.05  # between two messages, and before one is sent again
HANGS_S: Final = 60.0
PATIENT: Final = {"OSTLER_GRACE_SECONDS": "5", "OSTLER_LEASE_SECONDS": "10"}  # for a busy machine


def next_version(directory: Path) -> dict[str, str]:
    """Make the next version; the variables with which a server is one of it."""
    place = directory / "next"
    for package in ("supervisor", "gateway"):
        shutil.copytree(ROOT / package, place / package)  # with what is compiled
    _change(place / "supervisor/version.py", f'"{__version__}"', f'"{NEXT}"')
    more = f'MIGRATIONS = (*MIGRATIONS, """{MIGRATION}""")\n\nOLDEST: Final'
    _change(place / "supervisor/database/schema.py", "OLDEST: Final", more)
    return {"PYTHONPATH": str(place)}  # before what is installed


def _change(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, f"{path}: {old}"
    path.write_text(text.replace(old, new))


class Client:
    """Sends one message after the other, and reads, each by way of any server. What got 503, or no answer
    since its server ends, is sent again, a message with its key; `errors` has all other failures."""

    def __init__(self, conversation: str, http: httpx2.AsyncClient, *machines: Machine) -> None:
        self.conversation = conversation
        self.machines = {each.name: each for each in machines}
        self.ending: set[str] = set()
        self.sent: list[str] = []
        self.again: list[str] = []
        self.errors: list[str] = []
        self._http = http

    def address(self) -> str:
        return random.choice([each.url for each in self.machines.values()])

    async def see_end(self, machine: Machine) -> None:
        """End a server in order. It is asked as long as it is there."""
        self.ending.add(machine.url)
        assert await machine.process.stop() == 0
        del self.machines[machine.name]

    async def work(self) -> None:
        """For ever; ends by cancellation, after the message that is under way."""
        while True:
            with trio.CancelScope(shield=True), trio.fail_after(HANGS_S):
                await self.send()
            await trio.sleep(PAUSE_S)

    async def send(self) -> None:
        name = f"m0-{len(self.sent)}"
        self.sent.append(name)
        body = {"content": [{"type": "text", "text": name}], "run": True}
        await self._ask("POST", "/events", {"json": body, "headers": {"Idempotency-Key": name}})
        await self._ask("GET", "/events/count", {})

    async def _ask(self, method: str, path: str, more: dict[str, Any]) -> None:
        while True:
            address = self.address()
            url = f"{address}/api/conversations/{self.conversation}{path}"
            try:
                answer = await self._http.request(method, url, **more)
            except httpx2.TransportError as error:
                said, passes = repr(error), address in self.ending
            else:
                if answer.is_success:
                    return
                said, passes = f"{answer.status_code} {answer.text}", answer.status_code == 503
            (self.again if passes else self.errors).append(f"{method} {path}: {said}")
            if not passes:
                return
            await trio.sleep(PAUSE_S)


async def versions(rest: Rest) -> dict[str, str]:
    """Of the servers that live, as one of them shows them."""
    found = (await rest.call("GET", "/api/servers"))["servers"]
    return {each["name"]: each["version"] for each in found if each["state"] == "alive"}


def moves(events: list[Any]) -> list[str]:
    found = [each["value"] for each in events if each.get("key") == "server"]
    return [f"{each['from']} {each['why']} {each['to']}" for each in found]


async def settled(rest: Rest, client: Client, follower: Follower) -> list[Any]:
    """The whole log of the client, when all messages have been prompted and the follower has everything."""
    with trio.fail_after(HANGS_S):
        while (await rest.call("GET", f"/api/agents/{client.conversation}"))["queue"]:
            await trio.sleep(PAUSE_S)
        await rest.wait_status(client.conversation, "finished")
        told = await rest.events(client.conversation)
        while follower.last < len(told) - 1:
            await trio.sleep(PAUSE_S)
    return told


@pytest.mark.guarantee(name="another-takes-over")
async def test_servers_are_upgraded_one_after_the_other(tmp_path: Path, database: Database) -> None:
    newer, shared = next_version(tmp_path), {**volumes(tmp_path), **PATIENT}
    with connect(database, "test") as connection:
        older, oldest = version(connection)
    async with (
        service(tmp_path, database) as servers,
        httpx2.AsyncClient(trust_env=False, timeout=HANGS_S) as http,
        trio.open_nursery() as following,
    ):
        a, b = await servers.start("a", **shared), await servers.start("b", **shared)
        kept = await servers.converse(a, "volume-work")
        client = Client(await servers.converse(a, "volume-work"), http, a, b)
        follower = Follower(client.conversation, client.address)
        said: list[str] = []

        async def upgrade(name: str) -> Machine:
            made = client.machines[name] = await servers.start(name, **shared, **newer)
            return made

        async def go_on(machine: Machine, conversation: str, *expected: str) -> None:
            """A turn by way of this server. What was there before is there, and the agent remembers it."""
            before = await machine.rest.events(conversation)
            said.append(f"word {len(said)}")
            assert said[-1] in answer_text(await machine.rest.turn(conversation, said[-1]))
            events = await machine.rest.events(conversation)
            assert events[: len(before)] == before
            assert moves(events) == list(expected)
            memory = (await machine.rest.info(conversation))["agent_state"]["memory"]
            assert memory in ("resumed", "loaded", *(() if expected else ("new",)))

        async with trio.open_nursery() as working:
            following.start_soon(follower.follow)
            working.start_soon(client.work)
            await go_on(a, kept)
            # The next version migrates while the others work.
            c = await upgrade("c")
            with connect(database, "test") as connection:
                assert version(connection) == (older + 1, oldest)
            assert await versions(a.rest) == {"a": __version__, "b": __version__, "c": NEXT}
            await go_on(c, kept)
            newest = await servers.converse(c, "volume-work")
            await go_on(b, newest)
            await client.see_end(a)
            await go_on(c, kept, "a drained c")
            a = await upgrade("a")
            # It is taken back: what it made and wrote goes on on the older version.
            await client.see_end(c)
            assert await versions(b.rest) == {"a": NEXT, "b": __version__}
            await go_on(b, kept, "a drained c", "c drained b")
            await go_on(b, newest, "c drained b")
            late = await servers.converse(b, "volume-work")
            await go_on(b, late)
            await client.see_end(b)
            for each, *before in ((kept, "a drained c", "c drained b"), (newest, "c drained b"), (late,)):
                await go_on(a, each, *before, "b drained a")
            b = await upgrade("b")
            assert await versions(b.rest) == {"a": NEXT, "b": NEXT}
            await go_on(b, late, "b drained a")
            working.cancel_scope.cancel()
        told = await settled(b.rest, client, follower)
        following.cancel_scope.cancel()
    problems = client.errors + follower.errors
    problems += checks.sequence_problems("follower", follower.numbers)
    problems += checks.difference_problems("follower", follower.events[: len(told)], told)
    problems += checks.message_problems("log", told, client.sent, client.sent)
    problems += checks.prompt_problems("agent", told, prompted(servers.log), 0)
    assert problems == []
    assert moves(told)
    assert [each for each in servers.log.prompts() if each in said] == said


async def test_a_server_on_a_newer_schema(tmp_path: Path, database: Database) -> None:
    """It works as long as the next version allows it, as when it crashes during an upgrade."""
    newer = (*MIGRATIONS, MIGRATION)
    async with service(tmp_path, database) as servers:
        with connect(database, "test") as connection:
            migrate(connection, newer)
        a = await servers.start("a")
        said = await a.rest.turn(await servers.converse(a), "hello")
        assert "hello" in answer_text(said)
        assert await a.process.stop() == 0
        with connect(database, "test") as connection:
            migrate(connection, (*newer, "ALTER TABLE heads DROP COLUMN of_next"), len(newer) + 1)
        with pytest.raises(AssertionError, match="the server ended with"):
            await servers.start("a")
        log = a.process.output.read_text()
    assert "start the newer Ostler" in log.strip().splitlines()[-1]
    assert "Traceback" not in log
