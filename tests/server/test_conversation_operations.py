"""What is done with conversations, on a real server: clients that go away, and servers that are killed."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

from tests.support.processes import alive
from tests.support.scripted import ScriptedLog, scripted_command
from tests.support.server import ServerProcess, running_server
from tests.support.thorough import everyday

WAIT_S = 20.0


async def until(condition: Any) -> None:
    with trio.fail_after(WAIT_S):
        while not condition():
            await trio.sleep(0.01)


async def conversation(server: ServerProcess, directory: Path, log: ScriptedLog) -> str:
    command = scripted_command(log=log.path, home=directory / "home-of-agents")
    created = await server.rest.create(directory / "work", {"acp_server": "custom", "acp_command": command})
    return str(created["id"])


async def killed_and_back(server: ServerProcess) -> None:
    """SIGKILL for the server alone: its warden starts the next one."""
    state = server.state / "server.pid"
    before = state.read_text()
    os.kill(int(before), signal.SIGKILL)
    await until(lambda: state.exists() and state.read_text() not in {before, ""})


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
async def test_a_client_that_goes_away_cancels_its_question(tmp_path: Path) -> None:
    log = ScriptedLog(tmp_path / "agents.jsonl")
    async with running_server(tmp_path) as server:
        one = await conversation(server, tmp_path, log)
        await server.rest.turn(one, "hello")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(
                server.rest.call, "POST", f"/api/conversations/{one}/ask_agent", {"question": "!hang"}
            )
            await until(lambda: len(log.prompts()) == 2)
            nursery.cancel_scope.cancel()
        await until(lambda: log.received("session/cancel") and log.received("session/delete"))
        answer = await server.rest.call(
            "POST", f"/api/conversations/{one}/ask_agent", {"question": "still there"}
        )
        assert "still there" in answer["response"]


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
@pytest.mark.parametrize("after", everyday([0.05], [0.0, 0.05]))
async def test_a_server_that_is_killed_leaves_whole_forks_and_an_interrupted_goal(
    tmp_path: Path, after: float
) -> None:
    log = ScriptedLog(tmp_path / "agents.jsonl")
    async with running_server(tmp_path) as server:
        one = await conversation(server, tmp_path, log)
        await server.rest.turn(one, "!tools 200")
        whole = len(await server.rest.events(one))
        goal = {"objective": "!hang", "max_iterations": 3}

        async def fork_again_and_again() -> None:
            while True:
                with suppress(httpx2.HTTPError):  # of a server that is killed
                    await server.rest.http.post(f"/api/conversations/{one}/fork", json={})
                await trio.sleep(0)

        await server.rest.call("POST", f"/api/conversations/{one}/fork", {})
        await server.rest.call("POST", f"/api/conversations/{one}/goal", goal)
        await until(lambda: log.prompts()[-1] == "!hang")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fork_again_and_again)
            await trio.sleep(after)
            await killed_and_back(server)
            nursery.cancel_scope.cancel()
        found = await server.rest.call("GET", "/api/conversations/search?limit=100")
        forks = [each["id"] for each in found["items"] if each["id"] != one]
        assert forks
        for each in forks:
            assert len(await server.rest.events(each)) >= whole
        events = await server.rest.events(one)
        goals = [event["value"]["status"] for event in events if event.get("key") == "goal"]
        assert goals == ["running", "interrupted"]


BESIDE = {
    "message": ("events", {"role": "user", "content": [{"type": "text", "text": "more"}], "run": True}),
    "goal": ("goal", {"objective": "all is well", "max_iterations": 2}),
    "run": ("run", None),
    "fork": ("fork", {}),
    "question": ("ask_agent", {"question": "what?"}),
    "restart": ("restart", {"force": True}),
}
"""Requests that came beside a deletion: the last part of the path, and the body."""

DELETED_S = 10.0
"""A deletion takes half a second; one that waited for what began beside it was never answered."""


async def deleted_beside(server: ServerProcess, one: str, name: str, seconds: float) -> list[httpx2.Response]:
    """The answers to a DELETE, and to the request that comes so many seconds later."""
    path, body = BESIDE[name]
    answers: dict[str, httpx2.Response] = {}
    kind = "agents" if name == "restart" else "conversations"

    async def delete() -> None:
        answers["delete"] = await server.rest.http.delete(f"/api/conversations/{one}")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(delete)
        await trio.sleep(seconds)
        answers["beside"] = await server.rest.http.post(f"/api/{kind}/{one}/{path}", json=body)
    return [answers["delete"], answers["beside"]]


@pytest.mark.guarantee(name="nothing-survives")
@pytest.mark.parametrize("name", BESIDE)
async def test_a_deletion_is_answered_whatever_comes_beside_it(tmp_path: Path, name: str) -> None:
    log = ScriptedLog(tmp_path / "agents.jsonl")
    async with running_server(tmp_path) as server:
        for milliseconds in everyday((2, 8), (0, 1, 2, 3, 5, 8, 12, 20, 40)):
            one = await conversation(server, tmp_path, log)
            await server.rest.turn(one, "hello")
            with trio.fail_after(DELETED_S):
                deleted, beside = await deleted_beside(server, one, name, milliseconds / 1000)
            assert deleted.status_code == 200, deleted.text
            # The request may have been first.
            assert beside.status_code in (200, 201, 404, 409, 502), beside.text
            assert (await server.rest.http.get(f"/api/conversations/{one}")).status_code == 404
        begun = time.monotonic()
        assert await server.stop() == 0
        assert time.monotonic() - begun < DELETED_S
        assert server.left() == []


@pytest.mark.guarantee(name="nothing-survives")
@pytest.mark.parametrize("warden", [False, True])
async def test_a_server_ends_in_time_in_the_middle_of_deletions(tmp_path: Path, warden: bool) -> None:
    log = ScriptedLog(tmp_path / "agents.jsonl")
    async with running_server(tmp_path) as server:
        ones = [await conversation(server, tmp_path, log) for _ in range(3)]
        for one in ones:
            await server.rest.turn(one, "hello")
        pid = int((server.state / "server.pid").read_text())

        async def attempt(one: str, name: str) -> None:
            try:
                await deleted_beside(server, one, name, 0.004)
            except* httpx2.HTTPError:
                pass  # of a server that ends

        begun = time.monotonic()
        async with trio.open_nursery() as nursery:
            for one, name in zip(ones, ("message", "goal", "run"), strict=True):
                nursery.start_soon(attempt, one, name)
            await trio.sleep(0.02)
            server.signal(signal.SIGKILL if warden else signal.SIGTERM)
            status = await server.wait(DELETED_S)
            with trio.fail_after(DELETED_S):
                while alive(pid):
                    await trio.sleep(0.01)
        assert time.monotonic() - begun < DELETED_S
        assert status == (-signal.SIGKILL if warden else 0)
        assert server.left() == []
