"""The socket of an agent's standard error and trace."""

from __future__ import annotations

import pytest
import trio

from supervisor.acp import TraceLine
from tests.gateway.test_sockets import connected, refused

ID = "0f8f1d0e-0000-4000-8000-000000000001"
PATH = f"/sockets/agents/{ID}"


@pytest.fixture
def agent(server):
    server.supervisor.add_agent(ID)
    return server.supervisor


async def test_what_there_is_comes_first_and_then_each_new_line_once(server, agent):
    agent.lines = ["one", "two"]
    async with connected(server, PATH) as client:
        assert await client.next() == {"type": "sync", "of": "stderr"}
        assert await client.next() == {"type": "lines", "lines": ["one", "two"], "skipped": 0}
        agent.lines.append("three")
        assert await client.next() == {"type": "lines", "lines": ["three"], "skipped": 0}
        await client.nothing(0.4)


async def test_the_dropped_lines_are_counted(server, agent):
    agent.lines = ["one"]
    async with connected(server, PATH) as client:
        await client.take(2)
        agent.lines, agent.dropped = ["five", "six"], 4
        assert await client.next() == {"type": "lines", "lines": ["five", "six"], "skipped": 3}
        agent.lines, agent.dropped = [], 8
        assert await client.next() == {"type": "lines", "lines": [], "skipped": 2}


async def test_many_lines_come_in_several_frames(server, agent):
    agent.lines = [str(number) for number in range(120)]
    async with connected(server, PATH) as client:
        await client.next()
        found = await client.take(3)
        assert [each["skipped"] for each in found] == [0, 0, 0]
        assert [line for each in found for line in each["lines"]] == agent.lines


async def test_numbers_that_begin_again_say_so(server, agent):
    agent.lines = ["one"]
    async with connected(server, PATH) as client:
        await client.take(2)
        agent.epoch, agent.lines = object(), ["two"]
        assert await client.next() == {"type": "sync", "of": "stderr"}
        assert (await client.next())["lines"] == ["two"]


async def test_frames_are_those_of_the_route(server, agent):
    now = trio.current_time()
    agent.frames = [TraceLine("<", now, 3000, "{...")]
    known = (await server.call("GET", f"/api/agents/{ID}/trace"))[1]["frames"]
    async with connected(server, f"{PATH}?of=trace") as client:
        assert await client.next() == {"type": "sync", "of": "trace"}
        assert await client.next() == {"type": "frames", "frames": known, "skipped": 0}
        agent.frames.append(TraceLine(">", now, 2, "{}"))
        assert [each["text"] for each in (await client.next())["frames"]] == ["{}"]


async def test_what_is_not_there_ends_the_socket(server, agent):
    async with connected(server, PATH) as client:
        await client.next()
        agent.views.clear()
        assert await client.closed() == (4004, "Conversation not found")
    for path in (f"{PATH}?of=stdout", "/sockets/agents/x"):
        assert (await refused(server, path))[0] == 403
