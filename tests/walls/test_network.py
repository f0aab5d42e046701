"""What agents behind walls reach of the network, with a real server."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest

from tests.support.client import answer_text
from tests.support.scripted import PROGRAM, scripted_command
from tests.support.server import ServerProcess
from tests.walls.harness import NAMESPACES, USER_IDS, Made, walled_server

READS = {"OSTLER_WALLS_READ": str(PROGRAM.parents[1])}

CONNECT = "import socket,sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 5); print('reached')"
PROXY = (
    "import os,urllib.request,urllib.error\n"
    "try: urllib.request.urlopen('http://elsewhere.example/')\n"
    "except urllib.error.HTTPError as error: print(error.code, error.read().decode())"
)


async def ran(server: ServerProcess, code: str, *arguments: str, **settings: Any) -> tuple[str, str]:
    """What an agent's own child says, and its conversation."""
    (server.directory / "workspace/run.py").write_text(code)
    agent = {"acp_server": "custom", "acp_command": scripted_command(), **settings}
    made = str((await server.rest.create(server.directory / "workspace", agent))["id"])
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
