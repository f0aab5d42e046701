"""What agents behind walls reach of the network, with a real server."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import trio

from tests.support.client import answer_text
from tests.support.processes import command_line, kill, mentioning
from tests.support.scripted import scripted_command
from tests.support.server import ServerProcess
from tests.walls.door.server import serving
from tests.walls.harness import NAMESPACES, USER_IDS, Made, walled_server
from tests.walls.test_server import READS, converse

CONNECT = "import socket,sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5); print('reached')"
PROXY = (
    "import os,urllib.request,urllib.error\n"
    "try: urllib.request.urlopen('http://elsewhere.example/')\n"
    "except urllib.error.HTTPError as error: print(error.code, error.read().decode())"
)


async def ran(server: ServerProcess, code: str, *arguments: str, **settings: Any) -> tuple[str, str]:
    """What an agent's own child says, and its conversation."""
    (server.directory / "workspace/run.py").write_text(code)
    made = await converse(server, **settings)
    events = await server.rest.turn(made, f"!run /usr/bin/python3 run.py {' '.join(arguments)}")
    return answer_text(events), made


@pytest.mark.parametrize("made", [*NAMESPACES, USER_IDS[1]], ids=str)
@pytest.mark.parametrize("network", ["full", "none", "door"])
async def test_the_servers_port_is_reached_with_the_whole_network_alone(
    user_place: Path, made: Made, network: str
) -> None:
    async with walled_server(user_place, made, **READS, OSTLER_AGENT_NETWORK=network) as server:
        host, _, port = server.url.removeprefix("http://").partition(":")
        said, _ = await ran(server, CONNECT, host, port)
        assert ("exit 0" in said) == (network == "full"), said


@pytest.mark.parametrize("made", [*NAMESPACES, USER_IDS[1]], ids=str)
async def test_a_host_that_a_door_refuses_is_in_the_log(user_place: Path, made: Made) -> None:
    async with walled_server(user_place, made, **READS, OSTLER_AGENT_NETWORK="door") as server:
        said, talk = await ran(server, PROXY)
        assert "403" in said
        assert "OSTLER_AGENT_HOSTS" in said
        found = [
            each for each in await server.rest.events(talk) if each.get("key") == "agent_network_refused"
        ]
        assert [(each["value"]["host"], each["value"]["port"]) for each in found] == [
            ("elsewhere.example", 80)
        ]


CALL = """
import json, os, sys, urllib.error, urllib.request
def answer(url, **headers):
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=20) as found:
            return [found.status, found.read().decode()]
    except urllib.error.HTTPError as error:
        return [error.code, error.read().decode()]
def tunnel(proxy, target):
    import http.client
    host, _, port = target.partition(":")
    through = http.client.HTTPConnection(proxy.removeprefix("http://"), timeout=20)
    through.set_tunnel(host, int(port))
    try:
        through.request("GET", "/tunnelled")
        return through.getresponse().read().decode()
    except OSError as error:
        return str(error)
allowed, url, key = sys.argv[1:]
proxy = os.environ["HTTPS_PROXY"]
print(json.dumps({
    "tunnel": tunnel(proxy, allowed),
    "refused": tunnel(proxy, "elsewhere.example:443"),
    "plain": answer("http://elsewhere.example/"),
    "api": answer(url + "/v1/messages", **{"x-api-key": key}),
    "wrong": answer(url + "/v1/messages", **{"x-api-key": "sk-ant-api03-another"}),
    "node": os.environ.get("NODE_USE_ENV_PROXY"),
}))
"""

SETTLED_S = 1.0

KEY = "sk-ant-api03-abcDEF0123456789abcDEF0123456789"


def held(server: ServerProcess) -> int:
    """How many descriptors the server has open."""
    inner = int((server.state / "server.pid").read_text())
    return len(os.listdir(f"/proc/{inner}/fd"))


async def settled(server: ServerProcess) -> int:
    """How many descriptors the server has open once that does not change any more."""
    since, found = trio.current_time(), held(server)
    with trio.fail_after(20):
        while trio.current_time() - since < SETTLED_S:
            await trio.sleep(0.02)
            if held(server) != found:
                since, found = trio.current_time(), held(server)
    return found


async def until_held(server: ServerProcess, most: int) -> None:
    """Wait until the server has as few descriptors."""
    with trio.fail_after(20):
        while held(server) > most:
            await trio.sleep(0.02)


def is_program(pid: int, name: str) -> bool:
    return command_line(pid).split()[:1] == [name]


async def of_terminal(server: ServerProcess, conversation: str, *command: str) -> dict[str, Any]:
    """What a command gives that the agent has Ostler run."""
    text = answer_text(await server.rest.turn(conversation, f"!terminal {' '.join(command)}"))
    return dict(json.loads(text[text.index("{") : text.rindex("}") + 1]))


@pytest.mark.parametrize("wall", [*NAMESPACES, *USER_IDS], ids=str)
async def test_a_terminal_is_behind_the_door_of_its_agent(user_place: Path, wall: Made) -> None:
    async with serving() as api:
        place = f"127.0.0.1:{api.port}"
        variables = {
            **READS,
            "OSTLER_AGENT_NETWORK": "door",
            "OSTLER_AGENT_HOSTS": place,
            "OSTLER_SECRET_ANTHROPIC_API_KEY": KEY,
            "OSTLER_SECRET_ANTHROPIC_BASE_URL": api.url,
        }
        async with walled_server(user_place, wall, **variables) as server:
            (user_place / "workspace/call.py").write_text(CALL)
            agent = {
                "acp_server": "claude-code",
                "acp_command": scripted_command(),
                "acp_client_methods": "both",
            }
            made = str((await server.rest.create(user_place / "workspace", agent))["id"])
            seen = answer_text(await server.rest.turn(made, "!run env"))
            url, key = (
                re.search(f"^{name}=(.*)$", seen, re.MULTILINE)[1]  # type: ignore[index]
                for name in ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_KEY")
            )
            assert KEY not in seen
            # A connection to the API is kept for the agent.
            await server.rest.turn(made, f"!run /usr/bin/python3 call.py {place} {url} {key}")
            before = await settled(server)
            for _ in range(3):
                found = await of_terminal(server, made, "/usr/bin/python3", "call.py", place, url, key)
                said = json.loads(found["output"])
                assert said["tunnel"] == "good"
                assert "403" in said["refused"]
                assert said["plain"][0] == 403
                assert "OSTLER_AGENT_HOSTS" in said["plain"][1]
                assert said["api"] == [200, "good"]
                assert said["wrong"][0] == 403
                assert said["node"] == "1"
                await until_held(server, before)
            assert {each.headers.get("x-api-key") for each in api.asked} == {None, KEY}
            (door,) = (server.state / "data").glob("**/door-*")
            assert os.listdir(door) == ["shim.py"]


async def test_a_terminal_behind_a_door_that_is_killed_leaves_nothing(user_place: Path) -> None:
    async with walled_server(user_place, NAMESPACES[0], **READS, OSTLER_AGENT_NETWORK="door") as server:
        made = await converse(server)
        await server.rest.turn(made, "hello")
        before = await settled(server)
        await server.rest.send(made, "!terminal sleep 98765.25")
        with trio.fail_after(20):
            while not (sleeping := [each for each in mentioning("98765.25") if is_program(each, "sleep")]):
                await trio.sleep(0.02)
        assert held(server) > before + 2
        kill(sleeping)
        assert await server.rest.wait_status(made, "finished") == "finished"
        await until_held(server, before)


async def test_a_program_that_is_not_there_is_said_as_without_a_door(user_place: Path) -> None:
    async with walled_server(user_place, NAMESPACES[0], **READS, OSTLER_AGENT_NETWORK="door") as server:
        made = await converse(server)
        await server.rest.turn(made, "hello")
        before = await settled(server)
        await server.rest.send(made, "!terminal no-such-program")
        assert await server.rest.wait_status(made, "error") == "error"
        texts = [str(each.get("detail")) for each in await server.rest.events(made)]
        assert any("The command cannot be started: No such file or directory" in text for text in texts)
        await until_held(server, before)


def test_a_network_of_its_own_needs_a_wall(tmp_path: Path) -> None:
    program = Path(sysconfig.get_path("scripts")) / "ostler"
    command = [str(program), "serve", "--port", "0", "--state", str(tmp_path / "state")]
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "OSTLER_WALLS": "off",
        "OSTLER_AGENT_NETWORK": "door",
    }
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 1
    assert ended.stderr.strip().splitlines()[-1] == (
        "ostler: OSTLER_AGENT_NETWORK: door needs a wall: OSTLER_WALLS is off"
    )
