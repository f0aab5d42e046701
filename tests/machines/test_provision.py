"""A server for each conversation: OSTLER_PROVISION starts it, and it gets its keys when it joins."""

from __future__ import annotations

import json
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from gateway.api.provisioning.provisioner import Provisioner
from gateway.configuration.config import load_config
from gateway.configuration.machines import Provision
from gateway.configuration.parsing import ConfigError
from gateway.serving.several import handed
from supervisor.credentials.cipher import Cipher
from supervisor.credentials.master import MasterKey, Place
from supervisor.database.address import Database
from supervisor.database.connection import connect
from supervisor.machines import provisions
from supervisor.machines.errors import DatabaseAway, MachinesRefused
from tests.machines.cloud import Cloud, cloud, texts_of
from tests.machines.service import MASTER_KEY, Machine, Service, service, volumes
from tests.support.client import answer_text
from tests.support.server import ServerProcess

SOON_S = 15.0
PASSWORD = "password-canary"
JOIN = "/api/servers/join"
HEADER = "X-Ostler-Join"


async def eventually(look: Any, seconds: float = SOON_S) -> None:
    with trio.fail_after(seconds):
        while not look():
            await trio.sleep(0.02)


async def front(servers: Service, pods: Cloud, name: str = "front", **more: str) -> Machine:
    """A server that has others started. Its database's address has a password, which a socket ignores."""
    return await servers.start(
        name,
        OSTLER_DATABASE=servers.database.conninfo.replace("@", f":{PASSWORD}@", 1),
        OSTLER_PROVISION=str(pods.command),
        OSTLER_SERVER_LABELS="zone=a,rack=3",
        **more,
    )


async def test_a_database_that_is_away_is_asked_again(autojump_clock: object) -> None:
    asked: list[object] = []

    async def ask(work: object) -> list[str]:
        asked.append(work)
        raise DatabaseAway("gone")

    async with trio.open_nursery() as nursery:
        machines: Any = SimpleNamespace(server=1, ask=ask)
        provisioner = Provisioner(Provision(command=("true",)), {}, machines, "", {}, {}, nursery)
        nursery.start_soon(provisioner.stop_ended)
        nursery.start_soon(provisioner.attend)
        await trio.sleep(60)
        assert len(asked) > 30
        nursery.cancel_scope.cancel()


def owner(database: Database, conversation: str) -> str | None:
    with connect(database, "test") as connection:
        row = connection.execute(
            "SELECT name FROM conversations JOIN heads USING (key) JOIN servers ON servers.id = owner "
            "WHERE conversations.id = %s",
            (conversation,),
        ).fetchone()
    return None if row is None else row[0]


async def test_a_conversation_has_a_server_of_its_own(tmp_path: Path, database: Database) -> None:
    shared = volumes(tmp_path)
    async with service(tmp_path, database) as servers, cloud(tmp_path, **shared) as pods:
        a = await front(servers, pods)
        made = await servers.converse(a, "volume-work")
        said = await a.rest.turn(made, "hello")
        assert "hello" in answer_text(said)
        assert owner(database, made) == made  # the server's name is that of its conversation
        assert pods.actions() == [("start", made)]
        (asked,) = pods.asked
        assert asked["OSTLER_PROVISION_LABELS"] == "zone=a,rack=3"
        assert asked["OSTLER_PROVISION_JOIN_URL"] == a.url
        assert not any(MASTER_KEY in value or PASSWORD in value for value in asked.values())

        pod = pods.pods[made]
        seen = [pod.pid, *(each.pid for each in pod.tree())]
        assert len(seen) >= 2
        for pid in seen:
            for secret in (MASTER_KEY, PASSWORD, asked["OSTLER_PROVISION_JOIN_KEY"]):
                assert secret.encode() not in texts_of(pid)
        assert MASTER_KEY.encode() not in pod.output.read_bytes()
        assert PASSWORD not in pod.output.read_text()

        # The key was used, and others are none.
        for key in (asked["OSTLER_PROVISION_JOIN_KEY"], "wrong", ""):
            answer = await a.rest.http.post(JOIN, headers={HEADER: key})
            assert answer.status_code == 401, answer.text
        assert (await a.rest.http.post(JOIN)).status_code == 401

        # It takes no other conversation.
        refused = await a.rest.http.post(
            f"{pod.url}/api/conversations", json={"workspace": {"working_dir": str(tmp_path)}}
        )
        assert refused.status_code == 503
        assert f"takes the conversation {made} alone" in refused.text

        await a.rest.call("DELETE", f"/api/conversations/{made}")
        await eventually(lambda: pods.actions()[1:] == [("stop", made)])
        assert "OSTLER_PROVISION_JOIN_KEY" not in pods.asked[1]
        await eventually(lambda: not pods.pods)
        found = await a.rest.call("GET", "/api/servers")
        assert {each["name"]: each["state"] for each in found["servers"]} == {"front": "alive", made: "left"}


async def test_a_lost_server_is_replaced_when_somebody_asks(tmp_path: Path, database: Database) -> None:
    shared = volumes(tmp_path)
    async with service(tmp_path, database) as servers, cloud(tmp_path, **shared) as pods:
        a, b = await front(servers, pods, "a"), await front(servers, pods, "b")
        made = await servers.converse(a, "volume-work")
        await b.rest.turn(made, "hello")
        before = await a.rest.events(made)
        pods.pods[made].lose_power()
        assert await b.rest.events(made) == before
        assert pods.actions().count(("start", made)) == 1

        async def ask(machine: Machine) -> None:
            await machine.rest.call("GET", f"/api/agents/{made}")

        async with trio.open_nursery() as nursery:
            for each in (a, b, a, b):
                nursery.start_soon(ask, each)
        said = await a.rest.turn(made, "again")
        assert "again" in answer_text(said)
        assert pods.actions().count(("start", made)) == 2
        assert (await b.rest.info(made))["agent_state"]["memory"] in ("resumed", "loaded")
        assert servers.log.prompts() == ["hello", "again"]


async def test_work_goes_on_without_being_asked(tmp_path: Path, database: Database) -> None:
    shared = volumes(tmp_path)
    async with service(tmp_path, database) as servers, cloud(tmp_path, **shared) as pods:
        a = await front(servers, pods)
        made = await servers.converse(a, "volume-work")
        await a.rest.send(made, "!hang")
        await a.rest.send(made, "second")
        await eventually(lambda: servers.log.prompts() == ["!hang"])
        pods.pods[made].lose_power()
        await eventually(lambda: servers.log.prompts() == ["!hang", "second"], 2 * SOON_S)
        assert pods.actions().count(("start", made)) == 2


async def test_a_server_that_is_not_used_leaves(tmp_path: Path, database: Database) -> None:
    shared = volumes(tmp_path)
    async with service(tmp_path, database) as servers, cloud(tmp_path, **shared) as pods:
        a = await front(servers, pods, OSTLER_PROVISION_IDLE_SECONDS="2")
        made = await servers.converse(a, "volume-work")
        await a.rest.turn(made, "hello")
        await eventually(lambda: pods.actions()[-1] == ("stop", made))
        assert owner(database, made) is None
        before = pods.actions().count(("start", made))  # more than one where creating it took a second
        said = await a.rest.turn(made, "again")
        assert "again" in answer_text(said)
        assert pods.actions().count(("start", made)) > before


async def test_what_keeps_a_server_from_starting_is_said(tmp_path: Path, database: Database) -> None:
    async with service(tmp_path, database) as servers, cloud(tmp_path) as pods:
        a = await front(servers, pods, OSTLER_PROVISION_SECONDS="2")
        body = {"workspace": {"working_dir": str(tmp_path)}, "agent_settings": {"acp_server": "demo"}}
        for mode, reason in (
            ("fails", "no room in the cluster"),
            ("hangs", "within 2 s"),
            ("starts nothing", "within 2 s"),
        ):
            pods.mode(mode)
            began = time.monotonic()
            answer = await a.rest.http.post("/api/conversations", json=body)
            assert answer.status_code == 503, answer.text
            assert "Retry-After" in answer.headers
            detail = json.loads(answer.text)["detail"]
            assert reason in detail
            assert "\n" not in detail
            assert time.monotonic() - began < SOON_S
        # A key is good only as long as its server is waited for.
        key = pods.asked[-1]["OSTLER_PROVISION_JOIN_KEY"]
        assert (await a.rest.http.post(JOIN, headers={HEADER: key})).status_code == 401
        assert (await a.rest.call("GET", "/api/conversations/count")) == 0


async def test_a_key_is_good_once_while_its_server_is_waited_for(tmp_path: Path, database: Database) -> None:
    async with service(tmp_path, database) as servers, cloud(tmp_path) as pods:
        a = await front(servers, pods)
        pods.mode("starts nothing")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(servers.converse, a)
            await eventually(lambda: pods.asked)
            asked = pods.asked[0]
            headers = {HEADER: asked["OSTLER_PROVISION_JOIN_KEY"]}
            found = (await a.rest.http.post(JOIN, headers=headers)).json()
            assert found["OSTLER_ONLY_CONVERSATION"] == asked["OSTLER_PROVISION_CONVERSATION"]
            assert found["OSTLER_MASTER_KEY"] == MASTER_KEY
            assert "OSTLER_API_KEY" not in found
            assert (await a.rest.http.post(JOIN, headers=headers)).status_code == 401
            nursery.cancel_scope.cancel()


async def test_a_master_key_in_a_file_is_handed_over(tmp_path: Path, database: Database) -> None:
    async with service(tmp_path, database) as servers, cloud(tmp_path) as pods:
        a = await front(servers, pods, OSTLER_MASTER_KEY="", OSTLER_KEYRING="off")
        key = (tmp_path / "front" / "state" / "master.key").read_text().strip()
        await a.rest.put_secrets({"TOKEN": "a secret of all"})
        made = await servers.converse(a)
        await a.rest.turn(made, "hello")
        pod = pods.pods[made]
        assert not (pod.state / "master.key").exists()
        assert key not in pod.output.read_text()


def test_a_master_key_in_a_keyring_cannot_be_handed_over() -> None:
    config = load_config({"OSTLER_DATABASE": "postgresql://h/d", "OSTLER_PROVISION": "true"}).machines
    assert config is not None
    master = MasterKey(Cipher("phrase"), "the keyring", place=Place.KEYRING)
    store: Any = SimpleNamespace(master=master)
    with pytest.raises(MachinesRefused, match=r"^OSTLER_MASTER_KEY: .*keyring.*OSTLER_PROVISION"):
        trio.run(handed, config, store, {})


async def test_a_stop_that_fails_is_tried_once_more(tmp_path: Path, database: Database) -> None:
    with connect(database, "test") as connection:
        connection.execute(
            "INSERT INTO servers (id, name, instance, address, version, expires, ttl, only_conversation) "
            "VALUES (1, 'front', 'i', 'http://x', '1', now() + interval '1 hour', 15, '')"
        )
        assert provisions.claim(connection, 1, "c", 60.0)
        assert not provisions.claim(connection, 1, "c", 60.0)
        ended = partial(provisions.claim_ended, connection, 1, 8, 60.0)
        assert ended() == []
        provisions.started(connection, 1, "c")
        assert ended() == ["c"]
        assert ended() == []
        assert provisions.stopped(connection, 1, "c", done=False)
        assert ended() == []  # not at once
        connection.execute("UPDATE provisions SET until = now() - interval '1 s'")
        assert ended() == ["c"]
        assert not provisions.stopped(connection, 1, "c", done=False)
        assert ended() == []
        assert provisions.claim(connection, 1, "c", 60.0)
        connection.execute("UPDATE servers SET state = 'dead'")
        assert provisions.claim(connection, 2, "c", 60.0)  # the one that was about it has died


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"OSTLER_PROVISION": "true"}, "OSTLER_PROVISION: servers are started over a shared database"),
        (
            {"OSTLER_DATABASE": "postgresql://h/d", "OSTLER_PROVISION": "'open"},
            "OSTLER_PROVISION: No closing",
        ),
        (
            {"OSTLER_DATABASE": "postgresql://h/d", "OSTLER_PROVISION": "/no/such x"},
            "'?/no/such'? is not a prog",
        ),
        (
            {
                "OSTLER_DATABASE": "postgresql://h/d",
                "OSTLER_PROVISION": "true",
                "OSTLER_ONLY_CONVERSATION": "018f0000-0000-7000-8000-000000000001",
            },
            "starts no others",
        ),
        (
            {
                "OSTLER_DATABASE": "postgresql://h/d",
                "OSTLER_PROVISION": "true",
                "OSTLER_PROVISION_SECONDS": "0",
            },
            "OSTLER_PROVISION_SECONDS",
        ),
    ],
)
def test_settings_that_cannot_be_are_named(variables: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        load_config(variables)


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"OSTLER_JOIN": "http://127.0.0.1:9"}, "belong together"),
        ({"OSTLER_JOIN_KEY": "k"}, "belong together"),
        ({"OSTLER_JOIN": "ftp://x", "OSTLER_JOIN_KEY": "k"}, "is not an address"),
    ],
)
def test_a_server_that_cannot_join_says_so(tmp_path: Path, variables: dict[str, str], said: str) -> None:
    with pytest.raises(AssertionError, match="the server ended with 2"):
        trio.run(ServerProcess(tmp_path, variables).start)
    (line,) = (tmp_path / "server.log").read_text().splitlines()
    assert said in line


async def test_a_wrong_key_joins_nothing(tmp_path: Path, database: Database) -> None:
    async with service(tmp_path, database) as servers, cloud(tmp_path) as pods:
        a = await front(servers, pods)
        directory = tmp_path / "stranger"
        directory.mkdir()
        stranger = ServerProcess(directory, {"OSTLER_JOIN": a.url, "OSTLER_JOIN_KEY": "wrong"})
        with pytest.raises(AssertionError, match="the server ended with 2"):
            await stranger.start()
        (line,) = (directory / "server.log").read_text().splitlines()
        assert "refused OSTLER_JOIN_KEY" in line
