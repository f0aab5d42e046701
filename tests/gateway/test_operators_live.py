"""Operators at a whole server with a real agent process."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import trio

from tests.support.client import rest_client
from tests.support.processes import alive, kill
from tests.support.server import shared_server

POLL_SECONDS = 0.05
PATIENCE_SECONDS = 20.0


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    with shared_server(tmp_path_factory.mktemp("live")) as opened:
        yield opened


@pytest.fixture
async def server(shared):
    """One for all of them; each has the only conversation."""
    async with rest_client(shared.url) as rest:
        shared.rest = rest
        yield shared
        for each in (await rest.call("GET", "/api/conversations/search"))["items"]:
            await rest.call("DELETE", f"/api/conversations/{each['id']}")


async def ostler(server, *arguments, status=0):
    """What a command prints; as JSON where it says so."""
    command = [sys.executable, "-m", "gateway", *arguments, "--url", server.url]
    done = await trio.run_process(command, capture_stdout=True, capture_stderr=True, check=False)
    assert done.returncode == status, done.stderr.decode()
    text = done.stdout.decode()
    return json.loads(text) if "--json" in arguments else text


async def agent_in(server, *states):
    """The only agent, once it is in one of these states."""
    with trio.fail_after(PATIENCE_SECONDS):
        while True:
            agents = (await server.rest.call("GET", "/api/agents"))["agents"]
            if agents and agents[0]["state"] in states:
                return agents[0]
            await trio.sleep(POLL_SECONDS)


async def figure(server, name):
    text = (await server.rest.http.get("/metrics")).text
    return float(re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)[1])


async def test_an_agent_from_its_first_turn_to_its_stop(server, tmp_path):
    before = await figure(server, "ostler_agent_restarts_total")
    conversation = await server.rest.create(tmp_path, {"acp_server": "demo"})
    await server.rest.turn(conversation["id"], "hello")
    first = await agent_in(server, "ready")
    assert first["conversation_id"] == conversation["id"]
    assert first["provider"] == "demo"
    assert alive(first["pid"])
    assert first["rss_bytes"] > 1_000_000
    assert first["processes"] == 1
    assert first["containment"] == (await ostler(server, "status", "--json"))["containment"]
    assert (await ostler(server, "ps")).splitlines()[1].split()[0] == conversation["id"][:8]
    trace = await ostler(server, "logs", conversation["id"][:8], "--trace")
    assert '"method":"session/prompt"' in trace.replace(" ", "")

    await ostler(server, "restart", conversation["id"][:8])
    second = await agent_in(server, "ready")
    assert second["pid"] != first["pid"]
    assert not alive(first["pid"])
    assert second["restarts"] == 1
    assert second["memory"] in ("resumed", "loaded")
    assert await figure(server, "ostler_agent_restarts_total") == before + 1
    assert await figure(server, 'ostler_agents{state="live"}') == 1

    await ostler(server, "stop", conversation["id"])
    assert not alive(second["pid"])
    assert await ostler(server, "ps") == "no agents\n"
    assert await figure(server, 'ostler_agents{state="live"}') == 0
    await server.rest.turn(conversation["id"], "and again")
    assert (await agent_in(server, "ready"))["memory"] in ("resumed", "loaded")


@pytest.mark.parametrize("force", [[], ["--force"]])
async def test_a_restart_in_the_middle_of_a_turn(server, tmp_path, force):
    conversation = await server.rest.create(tmp_path, {"acp_server": "demo"})
    await server.rest.send(conversation["id"], "talk slowly")
    first = await agent_in(server, "running")
    await ostler(server, "restart", *force, conversation["id"])
    second = await agent_in(server, "ready")
    assert second["pid"] != first["pid"]
    assert not alive(first["pid"])
    await server.rest.turn(conversation["id"], "hello")


async def test_the_end_of_an_agent_is_told(server, tmp_path):
    conversation = await server.rest.create(tmp_path, {"acp_server": "demo"})
    await server.rest.turn(conversation["id"], "hello")
    agent = await agent_in(server, "ready")
    before = await figure(server, "ostler_agent_crashes_total")
    kill([agent["pid"]])
    with trio.fail_after(PATIENCE_SECONDS):
        while (again := await agent_in(server, "ready"))["pid"] == agent["pid"]:
            await trio.sleep(POLL_SECONDS)
    assert "SIGKILL" in again["last_exit"]
    assert again["restarts"] == 1
    assert await figure(server, "ostler_agent_crashes_total") == before + 1


async def test_attaching_to_a_turn(server, tmp_path):
    conversation = await server.rest.create(tmp_path, {"acp_server": "demo"})
    command = [sys.executable, "-m", "gateway", "attach", conversation["id"], "--url", server.url]
    async with trio.open_nursery() as nursery:
        attached = await nursery.start(
            lambda task_status: trio.run_process(
                command, stdout=subprocess.PIPE, check=False, task_status=task_status
            )
        )
        shown = b""
        with trio.fail_after(PATIENCE_SECONDS):
            while b"attached to" not in shown:
                shown += await attached.stdout.receive_some()
            await server.rest.send(conversation["id"], "hello")
            while not re.search(rb"status +finished", shown):
                shown += await attached.stdout.receive_some()
        attached.terminate()
    text = shown.decode()
    assert re.search(r"user  hello$", text, re.MULTILINE)
    assert re.search(r"agent  ready$", text, re.MULTILINE)
    assert "  says  " in text
