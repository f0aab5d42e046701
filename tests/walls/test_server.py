"""Agents behind walls, as clients and operators see them: turns, terminals, ends, kills."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import trio

from supervisor.agents.containment.tree import process_table
from tests.support.client import answer_text
from tests.support.processes import alive, kill
from tests.support.scripted import PROGRAM, scripted_command
from tests.support.server import ServerProcess
from tests.support.user import give
from tests.walls.harness import LANDLOCK, NAMESPACES, USER_IDS, Made, walled_server

namespaced = pytest.mark.parametrize("made", [*NAMESPACES, *USER_IDS], ids=str)
each = pytest.mark.parametrize("made", [*NAMESPACES, *USER_IDS, LANDLOCK], ids=str)

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


@each
async def test_a_turn_and_a_terminal_behind_a_wall(user_place: Path, made: Made) -> None:
    async with walled_server(user_place, made, **READS) as server:
        talk = await converse(server)
        assert "hello" in answer_text(await server.rest.turn(talk, "hello"))
        (agent,) = await agents(server)
        assert (agent["walls"], agent["walls_mechanism"]) == (made.wall, made.mechanism)
        status = await server.rest.call("GET", "/api/status")
        assert status["walls"] == {"wall": made.wall, "mechanism": made.mechanism, "obstacle": None}
        key = server.state / "master.key"
        assert key.exists()
        found = await terminal(server, talk, "cat", str(key))
        assert ("Permission denied" if made == LANDLOCK else "No such file") in found["output"]
        assert found["exitStatus"] == {"exitCode": 1, "signal": None}
        found = await terminal(server, talk, "touch", "made")
        assert found["exitStatus"] == {"exitCode": 0, "signal": None}
        assert (user_place / "workspace/made").exists()


@namespaced
async def test_nothing_is_left_of_an_agent_whatever_is_killed(user_place: Path, made: Made) -> None:
    async with walled_server(user_place, made, **READS) as server:
        for victim in ("bubblewrap", "inner", "agent"):
            talk = await converse(server, "grandchild=plain,session,stubborn")
            await server.rest.turn(talk, "hello")
            (agent,) = await agents(server)
            tree = below(agent["pid"])
            assert len(tree) >= 6, tree
            outer, inner, program = tree[0], tree[1], below(tree[1])[1]
            kill([{"bubblewrap": outer, "inner": inner, "agent": program}[victim]])
            await until(lambda tree=tree: not any(map(alive, tree)))
            await server.rest.turn(talk, "hello again")  # another process
            await server.rest.call("DELETE", f"/api/conversations/{talk}")


@pytest.mark.parametrize(
    ("made", "victim"),
    [
        *((made, victim) for made in (*NAMESPACES, *USER_IDS) for victim in ("server", "warden", "both")),
        # Both at once leave what is in no namespace to the next start, as without walls.
        *((LANDLOCK, victim) for victim in ("server", "warden")),
    ],
    ids=str,
)
async def test_nothing_is_left_when_the_server_or_its_warden_is_killed(
    user_place: Path, made: Made, victim: str
) -> None:
    async with walled_server(user_place, made, **READS) as server:
        talk = await converse(server, "grandchild=plain,session,daemon")
        await server.rest.turn(talk, "hello")
        (agent,) = await agents(server)
        tree = below(agent["pid"])
        inner = int((server.state / "server.pid").read_text())
        kill({"server": [inner], "warden": [server.pid], "both": [server.pid, inner]}[victim])
        await until(lambda: not any(map(alive, tree)))
        server.clean_up()


@each
async def test_an_agent_that_stays_after_its_end_of_input_ends_without_being_killed(
    user_place: Path, made: Made
) -> None:
    async with walled_server(user_place, made, **READS) as server:
        talk = await converse(server, "ignore-eof")
        await server.rest.turn(talk, "hello")
        (agent,) = await agents(server)
        tree = below(agent["pid"])
        await server.rest.call("DELETE", f"/api/conversations/{talk}")
        await until(lambda: not any(map(alive, tree)))
        # That SIGTERM reaches it is in test_process.py.
        assert "kill" not in server.output.read_text().lower()


@each
async def test_a_death_by_a_signal_is_told_as_such(user_place: Path, made: Made) -> None:
    async with walled_server(user_place, made, **READS) as server:
        talk = await converse(server, "crash=init:SEGV")
        await server.rest.send(talk, "hello")
        assert await server.rest.wait_status(talk, "error") == "error"
        texts = [str(each.get("detail")) for each in await server.rest.events(talk)]
        assert any("SIGSEGV" in text for text in texts), texts


async def test_settings_ask_for_a_stronger_wall_and_not_for_a_weaker_one(user_place: Path) -> None:
    async with walled_server(user_place, NAMESPACES[0], **READS) as server:
        strict = await converse(server, acp_walls="strict")
        await server.rest.turn(strict, "hello")
        assert [each["walls"] for each in await agents(server)] == ["strict"]
        weaker = await converse(server, acp_walls="off")
        await server.rest.send(weaker, "hello")
        assert await server.rest.wait_status(weaker, "error") == "error"
        texts = [str(each.get("detail")) for each in await server.rest.events(weaker)]
        assert any("off is weaker than this server's guard" in text for text in texts), texts


async def test_a_strict_wall_is_refused_around_the_state_directory(user_place: Path) -> None:
    async with walled_server(user_place, NAMESPACES[1], **READS) as server:
        agent = {"acp_server": "custom", "acp_command": scripted_command()}
        talk = (await server.rest.create(user_place, agent))["id"]
        await server.rest.send(talk, "hello")
        assert await server.rest.wait_status(talk, "error") == "error"
        texts = [str(each.get("detail")) for each in await server.rest.events(talk)]
        assert any("which a strict wall keeps from agents" in text for text in texts), texts


async def failure(server: ServerProcess, conversation: str) -> str:
    """Why a conversation's agent does not start."""
    await server.rest.send(conversation, "hello")
    assert await server.rest.wait_status(conversation, "error") == "error"
    return "\n".join(str(each.get("detail")) for each in await server.rest.events(conversation))


@pytest.mark.parametrize("wall", [NAMESPACES[1], USER_IDS[1], LANDLOCK], ids=str)
async def test_settings_name_further_paths_of_those_that_the_operator_allows(
    user_place: Path, wall: Made
) -> None:
    # Landlock refuses what is not there behind the others.
    gone = "Permission denied" if wall == LANDLOCK else "No such file"
    fixed = "Permission denied" if wall == LANDLOCK else "Read-only file system"
    shared, out = user_place / "shared", user_place / "shared/out"
    out.mkdir(parents=True)
    (shared / "notes").write_text("of all")
    (user_place / "elsewhere").mkdir()
    (shared / "away").symlink_to(user_place / "elsewhere")
    for each in (shared, out, shared / "notes", user_place / "elsewhere"):
        give(each)
    allowed = {"OSTLER_WALLS_ALLOW_READ": str(shared), "OSTLER_WALLS_ALLOW_WRITE": str(out)}
    async with walled_server(user_place, wall, **READS, **allowed) as server:
        without = await converse(server)
        found = await terminal(server, without, "cat", str(shared / "notes"))
        assert gone in found["output"]
        reading = await converse(server, acp_walls_read=[str(shared)])
        assert (await terminal(server, reading, "cat", str(shared / "notes")))["output"] == "of all"
        found = await terminal(server, reading, "touch", str(out / "made"))
        assert fixed in found["output"]
        writing = await converse(server, acp_walls_write=[str(out)])
        assert (await terminal(server, writing, "touch", str(out / "made")))["exitStatus"]["exitCode"] == 0
        assert (out / "made").exists()
        assert gone in (await terminal(server, writing, "cat", str(shared / "notes")))["output"]
        shown = (await server.rest.call("GET", f"/api/conversations/{writing}"))["agent"]
        assert shown["acp_walls_write"] == [str(out)]
        assert "acp_walls_read" not in shown
        for path, said in {
            shared / "away": f"away leads to {user_place}/elsewhere, which is not allowed for agents",
            user_place / "elsewhere": f"the server with OSTLER_WALLS_ALLOW_READ={user_place}/elsewhere",
            shared / "gone": "gone does not exist. Make it, or leave it out",
            server.state: "which is kept from agents",
        }.items():
            refused = await failure(server, await converse(server, acp_walls_read=[str(path)]))
            assert f"acp_walls_read: {path}" in refused
            assert said in refused
        with pytest.raises(Exception, match="acp_walls_read") as nonsense:
            await converse(server, acp_walls_read=["shared"])
        assert "422" in str(nonsense.value)


async def test_without_a_wall_further_paths_have_no_effect(user_place: Path) -> None:
    async with walled_server(user_place, Made("off", "none"), **READS) as server:
        made = await converse(server, acp_walls_read=["/not/there"])
        assert "hello" in answer_text(await server.rest.turn(made, "hello"))


@pytest.mark.parametrize("made", [Made("strict", "namespaces"), Made("strict", "user-id"), LANDLOCK], ids=str)
async def test_a_strict_wall_shows_what_mcp_servers_of_the_machine_are_started_with(
    user_place: Path, made: Made
) -> None:
    async with walled_server(user_place, made, **READS) as server:
        given, other = (user_place / "home" / name for name in ("server.py", "other.py"))
        for each in (given, other):
            each.write_text("some code")
            give(each)
            each.chmod(0o600)
        configured = {"calc": {"command": "python3", "args": [str(given)]}}
        (server.state / "mcp.json").write_text(json.dumps({"mcpServers": configured}))
        give(server.state / "mcp.json")
        # What a client names widens no wall.
        more = {"other": {"command": "python3", "args": [str(other)]}}
        started = await converse(server, mcp_config=more)
        assert (await terminal(server, started, "cat", str(given)))["output"] == "some code"
        assert "some code" not in (await terminal(server, started, "cat", str(other)))["output"]


@namespaced
async def test_git_and_editors_find_nothing_of_the_agents_to_run(user_place: Path, made: Made) -> None:
    hooks = user_place / "workspace/.git/hooks"
    hooks.mkdir(parents=True)
    for each in (hooks.parent.parent, hooks.parent, hooks):
        give(each)
    async with walled_server(user_place, made, **READS) as server:
        talk = await converse(server)
        found = await terminal(server, talk, "touch", str(hooks / "pre-commit"))
        assert "Read-only file system" in found["output"]
        found = await terminal(server, talk, "mv", str(hooks.parent), str(user_place / "workspace/moved"))
        assert "busy" in found["output"]
    async with walled_server(user_place, made, **READS, OSTLER_WALLS_WRITE=str(hooks)) as server:
        talk = await converse(server)
        found = await terminal(server, talk, "touch", str(hooks / "pre-commit"))
        assert found["exitStatus"]["exitCode"] == 0


async def test_landlock_takes_no_network_away_and_is_refused_for_it(user_place: Path) -> None:
    refusal = "OSTLER_WALLS: strict is unavailable here: the trial failed: bwrap: No permissions"
    with pytest.raises(AssertionError, match=refusal):
        async with walled_server(user_place, LANDLOCK, OSTLER_AGENT_NETWORK="none"):
            pass
