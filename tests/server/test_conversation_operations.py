"""What is done with conversations, on a real server: clients that go away, and servers that are killed."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
import trio

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
