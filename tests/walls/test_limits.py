"""Limits of agents behind walls: the kernel counts what is inside."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from supervisor.agents.walls.outside import groups
from tests.support.client import answer_text
from tests.walls.harness import Made, walled_server
from tests.walls.test_server import READS, converse, namespaced, terminal

LIMITS = {
    "OSTLER_AGENT_PROCESSES": "24",
    "OSTLER_AGENT_OPEN_FILES": "60",
    "OSTLER_AGENT_MEMORY": str(1 << 30),
}

WAIT_S = 30.0


@namespaced
async def test_limits_hold_behind_a_wall(user_place: Path, made: Made) -> None:
    async with walled_server(user_place, made, **READS, **LIMITS) as server:
        talk = await converse(server)
        said = answer_text(await server.rest.turn(talk, "!fork 40"))
        assert 16 <= int(said.split()[1]) < 24
        assert "temporarily unavailable" in said
        assert "Too many open files" in answer_text(await server.rest.turn(talk, "!open 100"))
        shown = (await terminal(server, talk, "cat", "/proc/self/limits"))["output"]
        limits = {line[:26].strip(): line[26:].split()[1] for line in shown.splitlines()[1:]}
        assert (limits["Max open files"], limits["Max data size"]) == ("60", str(1 << 30))
        assert limits["Max processes"] == "24"
        found: list[dict[str, object]] = []
        with trio.fail_after(WAIT_S):
            while not found:
                events = await server.rest.events(talk)
                found = [each["value"] for each in events if each.get("key") == "agent_limit"]
                await trio.sleep(0.1)
        assert (found[0]["limit"], found[0]["held_by"]) == ("processes", "namespace")
        assert not found[0]["ended"]


@namespaced
async def test_an_agent_does_not_change_control_groups(user_place: Path, made: Made) -> None:
    """Those of a delegated group are its user's: it could raise its limits, or kill the server's group."""
    places = [*groups()]
    if not places:
        pytest.skip("no control groups here")
    async with walled_server(user_place, made, **READS) as server:
        talk = await converse(server)
        for place in places:
            said = answer_text(await server.rest.turn(talk, f"!run mkdir {place}/made-by-agent"))
            assert any(why in said for why in ("Read-only file system", "No such file")), said
