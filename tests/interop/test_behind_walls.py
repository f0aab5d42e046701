"""Every agent of the catalogue behind a wall, started by a server: it answers, and runs a command.

That is one turn each. The other tests of this room are tried behind a wall by hand, as an ordinary user with
a shell who can read the checkout, and with temporary files outside of /tmp, which Codex' own sandbox hides.
`strict` shows no MCP server's program that a client names, and some tests name one of the checkout's:

    export PYTEST_DEBUG_TEMPROOT=/var/tmp OSTLER_WALLS_READ=$PWD
    OSTLER_WALLS=guard scripts/test -m interop tests/interop
    OSTLER_WALLS=strict OSTLER_AGENT_NETWORK=door scripts/test -m interop tests/interop/test_builtin.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from supervisor.agents.errors import PythonMissing
from supervisor.agents.walls.network import Network
from supervisor.agents.walls.wall import Wall
from tests.interop.model_api.server import ModelApi
from tests.interop.real_agents import BUILT_IN, MORE_AGENTS, REAL_AGENTS, RealAgent, install
from tests.interop.talk import TURN_S
from tests.interop.test_builtin import llm
from tests.support.client import summary
from tests.support.server import running_server
from tests.walls.door import inside

pytestmark = [pytest.mark.interop, pytest.mark.guarantee(name="malicious-agents")]

CLOSEST = (*REAL_AGENTS.values(), BUILT_IN)
"""Those that are tried with all that there is."""


def cases() -> Iterator[Any]:
    for agent in (*CLOSEST, *MORE_AGENTS.values()):
        yield pytest.param(agent, Wall.GUARD, Network.FULL, id=f"{agent.key}-{Wall.GUARD}")
    for agent in CLOSEST:
        yield pytest.param(agent, Wall.STRICT, Network.DOOR, id=f"{agent.key}-{Wall.STRICT}-{Network.DOOR}")


def settings(agent: RealAgent, url: str) -> dict[str, Any]:
    if agent is BUILT_IN:
        return {"agent_kind": "llm", "llm": llm(url), "tools": [{"name": "terminal"}]}
    return agent.agent_settings()


@pytest.mark.parametrize(("agent", "wall", "network"), list(cases()))
async def test_a_command_does_not_reach_the_master_key(
    agent: RealAgent, wall: Wall, network: Network, agents_prefix: Path, model_api: ModelApi, tmp_path: Path
) -> None:
    inside.require("ordinary")
    try:
        await install(agent, agents_prefix)
    except PythonMissing as error:
        pytest.skip(str(error))
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "agents").symlink_to(agents_prefix)
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    environment = {"OSTLER_WALLS": wall, "OSTLER_AGENT_NETWORK": network, "OSTLER_KEYRING": "off"}
    async with running_server(tmp_path, environment) as server:
        agent.put_files(model_api.url, server.home)
        await server.rest.put_secrets({"SOME": "secret", **agent.secrets(model_api.url)})
        made = (await server.rest.create(workspace, settings(agent, model_api.url)))["id"]
        key = server.state / "master.key"
        assert key.exists()
        command = f"cat {key} > found.txt; echo made > made.txt"
        events = await server.rest.turn(made, f"{agent.tool}: {command}", timeout=TURN_S)
        assert (workspace / "made.txt").exists(), summary(events)
        assert (workspace / "found.txt").read_text() == ""
        assert (await server.rest.call("GET", f"/api/agents/{made}"))["walls"] == wall
