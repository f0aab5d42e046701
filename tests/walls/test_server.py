"""Agents behind walls, as clients and operators see them: turns, terminals, ends, kills."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import trio

from supervisor.agents.containment.tree import process_table
from tests.support.client import answer_text
from tests.support.processes import alive, kill
from tests.support.scripted import PROGRAM, scripted_command
from tests.support.server import ServerProcess
from tests.support.user import ROOT, give
from tests.walls.harness import walled_server

both = pytest.mark.parametrize("wall", ["guard", "strict"])

READS = {"OSTLER_WALLS_READ": str(PROGRAM.parents[1])}
"""The scripted agent's program is where only tests look for it."""


async def converse(server: ServerProcess, *modes: str, **settings: Any) -> str:
    """A conversation with the scripted agent in the workspace."""
    command = scripted_command(*modes)
    agent = {"acp_server": "custom", "acp_command": command, **settings}
    made = await server.rest.create(server.directory / "workspace", agent)
    return str(made["id"])


async def terminal(server: ServerProcess, conversation: str, *command: str) -> dict[str, Any]:
    """What a command gives that the agent has Ostler run."""
    events = await server.rest.turn(conversation, f"!terminal {' '.join(command)}")
    text = answer_text(events)
    return dict(json.loads(text[text.index("{") : text.rindex("}") + 1]))


async def agents(server: ServerProcess) -> list[dict[str, Any]]:
    return list((await server.rest.call("GET", "/api/agents"))["agents"])


def below(pid: int) -> list[int]:
    """The processes of an agent, bubblewrap's among them."""
    table = process_table()
    found, left = [], [pid]
    while left:
        each = left.pop()
        found.append(each)
        left += [other for other, entry in table.items() if entry.parent == each]
    return found


async def until(look: Any, seconds: float = 10.0) -> None:
    with trio.fail_after(seconds):
        while not look():
            await trio.sleep(0.02)


@both
async def test_a_turn_and_a_terminal_behind_a_wall(user_place: Path, wall: str) -> None:
    async with walled_server(user_place, wall, **READS) as server:
        made = await converse(server)
        assert "hello" in answer_text(await server.rest.turn(made, "hello"))
        (agent,) = await agents(server)
        assert agent["walls"] == wall
        status = await server.rest.call("GET", "/api/status")
        assert status["walls"] == {"wall": wall, "obstacle": None}
        key = server.state / "master.key"
        assert key.exists()
        found = await terminal(server, made, "cat", str(key))
        assert "No such file" in found["output"]
        assert found["exitStatus"] == {"exitCode": 1, "signal": None}
        found = await terminal(server, made, "touch", "made")
        assert found["exitStatus"] == {"exitCode": 0, "signal": None}
        assert (user_place / "workspace/made").exists()


@both
async def test_nothing_is_left_of_an_agent_whatever_is_killed(user_place: Path, wall: str) -> None:
    async with walled_server(user_place, wall, **READS) as server:
        for victim in ("bubblewrap", "inner", "agent"):
            made = await converse(server, "grandchild=plain,session,stubborn")
            await server.rest.turn(made, "hello")
            (agent,) = await agents(server)
            tree = below(agent["pid"])
            assert len(tree) >= 6, tree
            outer, inner, program = tree[0], tree[1], below(tree[1])[1]
            kill([{"bubblewrap": outer, "inner": inner, "agent": program}[victim]])
            await until(lambda tree=tree: not any(map(alive, tree)))
            await server.rest.turn(made, "hello again")  # another process
            await server.rest.call("DELETE", f"/api/conversations/{made}")


@both
@pytest.mark.parametrize("victim", ["server", "warden", "both"])
async def test_nothing_is_left_when_the_server_or_its_warden_is_killed(
    user_place: Path, wall: str, victim: str
) -> None:
    async with walled_server(user_place, wall, **READS) as server:
        made = await converse(server, "grandchild=plain,session,daemon")
        await server.rest.turn(made, "hello")
        (agent,) = await agents(server)
        tree = below(agent["pid"])
        inner = int((server.state / "server.pid").read_text())
        kill({"server": [inner], "warden": [server.pid], "both": [server.pid, inner]}[victim])
        await until(lambda: not any(map(alive, tree)))
        server.clean_up()


@both
async def test_an_agent_that_stays_after_its_end_of_input_ends_without_being_killed(
    user_place: Path, wall: str
) -> None:
    async with walled_server(user_place, wall, **READS) as server:
        made = await converse(server, "ignore-eof")
        await server.rest.turn(made, "hello")
        (agent,) = await agents(server)
        tree = below(agent["pid"])
        await server.rest.call("DELETE", f"/api/conversations/{made}")
        await until(lambda: not any(map(alive, tree)))
        # That SIGTERM reaches it is in test_process.py.
        assert "kill" not in server.output.read_text().lower()


@both
async def test_a_death_by_a_signal_is_told_as_such(user_place: Path, wall: str) -> None:
    async with walled_server(user_place, wall, **READS) as server:
        made = await converse(server, "crash=init:SEGV")
        await server.rest.send(made, "hello")
        assert await server.rest.wait_status(made, "error") == "error"
        texts = [str(each.get("detail")) for each in await server.rest.events(made)]
        assert any("SIGSEGV" in text for text in texts), texts


async def test_settings_ask_for_a_stronger_wall_and_not_for_a_weaker_one(user_place: Path) -> None:
    async with walled_server(user_place, "guard", **READS) as server:
        strict = await converse(server, acp_walls="strict")
        await server.rest.turn(strict, "hello")
        assert [each["walls"] for each in await agents(server)] == ["strict"]
        weaker = await converse(server, acp_walls="off")
        await server.rest.send(weaker, "hello")
        assert await server.rest.wait_status(weaker, "error") == "error"
        texts = [str(each.get("detail")) for each in await server.rest.events(weaker)]
        assert any("off is weaker than this server's guard" in text for text in texts), texts


async def test_a_strict_wall_is_refused_around_the_state_directory(user_place: Path) -> None:
    async with walled_server(user_place, "strict", **READS) as server:
        agent = {"acp_server": "custom", "acp_command": scripted_command()}
        made = (await server.rest.create(user_place, agent))["id"]
        await server.rest.send(made, "hello")
        assert await server.rest.wait_status(made, "error") == "error"
        texts = [str(each.get("detail")) for each in await server.rest.events(made)]
        assert any("which a strict wall keeps from agents" in text for text in texts), texts


@both
async def test_git_and_editors_find_nothing_of_the_agents_to_run(user_place: Path, wall: str) -> None:
    hooks = user_place / "workspace/.git/hooks"
    hooks.mkdir(parents=True)
    for each in (hooks.parent.parent, hooks.parent, hooks):
        give(each)
    async with walled_server(user_place, wall, **READS) as server:
        made = await converse(server)
        found = await terminal(server, made, "touch", str(hooks / "pre-commit"))
        assert "Read-only file system" in found["output"]
        found = await terminal(server, made, "mv", str(hooks.parent), str(user_place / "workspace/moved"))
        assert "busy" in found["output"]
    async with walled_server(user_place, wall, **READS, OSTLER_WALLS_WRITE=str(hooks)) as server:
        made = await converse(server)
        found = await terminal(server, made, "touch", str(hooks / "pre-commit"))
        assert found["exitStatus"]["exitCode"] == 0


@pytest.mark.skipif(not ROOT, reason="only root is refused")
def test_root_is_refused_a_wall_that_it_names(tmp_path: Path) -> None:
    program = Path(__import__("sysconfig").get_path("scripts")) / "ostler"
    command = [str(program), "serve", "--port", "0", "--state", str(tmp_path / "state")]
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "OSTLER_WALLS": "guard"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr.strip().splitlines()[-1] == (
        "ostler: OSTLER_WALLS: guard is unavailable here: Ostler runs as root, to whom the machine's files "
        "and devices belong. Start it as another user, or use the wall strict"
    )
