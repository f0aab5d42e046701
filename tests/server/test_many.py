"""A hundred agents that start side by side, looked at meanwhile: none is taken for another's."""

from __future__ import annotations

import pytest
import trio

from supervisor.agents.containment import levels
from supervisor.agents.containment.levels import Level
from tests.support.processes import alive, wait_until
from tests.support.server import running_server
from tests.support.thorough import everyday
from tests.support.tiny import CHILD, tiny_command

AGENTS = everyday(15, 100)
CLIENTS = 8
LOOK_S = 0.03
EACH_BYTES = 64 * 1024 * 1024
"""Far more than such an agent takes with its child, far less than two of them with the server."""

OF_LEVEL = {
    Level.TREE: ["--no-warden"],
    Level.WARDEN: ["--containment", "warden"],
    Level.CGROUP: ["--containment", "cgroup"],
    Level.PIDNS: ["--containment", "pidns"],
}

PROCESSES = dict.fromkeys(Level, 2) | {Level.PIDNS: 4}
"""The agent and its child, at the upper level `unshare` and the first process of the namespace besides."""


@pytest.mark.guarantee(name="nothing-survives")
@pytest.mark.parametrize("level", list(Level))
async def test_a_hundred_starts_side_by_side(tmp_path, level):
    reason = levels.obstacle(level, warden=True)
    if reason is not None:
        pytest.skip(f"{level} cannot be had here: {reason}")
    async with running_server(tmp_path, arguments=OF_LEVEL[level]) as server:
        numbers = iter(range(AGENTS))
        looks: list[list[dict]] = []
        enough = trio.CancelScope()

        async def client():
            for number in numbers:
                created = await server.rest.create(
                    tmp_path / f"work{number}",
                    {"acp_server": "custom", "acp_command": tiny_command(CHILD)},
                )
                await server.rest.send(created["id"], "go")
                await server.rest.wait_status(created["id"], "finished", timeout=60)

        async def look():
            with enough:
                while True:
                    looks.append((await server.rest.call("GET", "/api/agents"))["agents"])
                    await trio.sleep(LOOK_S)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(look)
            async with trio.open_nursery() as clients:
                for _ in range(CLIENTS):
                    clients.start_soon(client)
            enough.cancel()

        # No look of all those ever took one for more than it is.
        for found in looks:
            for agent in found:
                assert (agent["processes"] or 0) <= PROCESSES[level], agent
                assert (agent["rss_bytes"] or 0) < EACH_BYTES, agent
        assert len(looks) > 2  # while they started; a busy machine looks seldom
        agents = (await server.rest.call("GET", "/api/agents"))["agents"]
        assert len(agents) == AGENTS
        assert {agent["processes"] for agent in agents} == {PROCESSES[level]}
        assert len({agent["pid"] for agent in agents}) == AGENTS
        total = (await server.rest.call("GET", "/api/status"))["agents"]["rss_bytes"]
        assert total < AGENTS * EACH_BYTES

        # Ending some ends these alone, whenever they were started.
        stopped = sorted(agents, key=lambda agent: agent["pid"])[:: AGENTS // 5]
        assert len(stopped) == 5
        for agent in stopped:
            await server.rest.call("POST", f"/api/agents/{agent['conversation_id']}/stop")
        gone = {agent["pid"] for agent in stopped}
        others = [agent for agent in agents if agent["pid"] not in gone]
        assert wait_until(lambda: not any(alive(pid) for pid in gone))
        assert all(alive(agent["pid"]) for agent in others)
        after = (await server.rest.call("GET", "/api/agents"))["agents"]
        assert {agent["restarts"] for agent in after} == {0}
        assert {(agent["pid"], agent["processes"]) for agent in after if agent["pid"]} == {
            (agent["pid"], PROCESSES[level]) for agent in others
        }
        assert await server.stop() == 0
        assert server.left() == []
        text = server.output.read_text()
        assert "not signalling" not in text
