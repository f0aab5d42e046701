"""The plan of a start behind the door: no key is left in what the agent gets."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from supervisor.acp.schema.handshake import AuthMethod
from supervisor.agents.catalog import load_catalog
from supervisor.agents.homes.credential import choose_credential
from supervisor.agents.walls.door.rewiring import API_URL
from supervisor.agents.walls.network import Reachable
from supervisor.conversations.agent.launch.door import behind_door
from supervisor.conversations.agent.launch.login import Login
from supervisor.conversations.agent.launch.plan import Plan
from supervisor.conversations.mcp.mounting import Mounting

KEY = "AIzaSyA-0123456789_abcdefghijklmnopqrst"


def plan(agent: str, environment: dict[str, str], own: dict[str, Any] | None = None) -> Plan:
    descriptor = load_catalog()[agent]
    choice = choose_credential(descriptor, dict.fromkeys(environment, "store"))
    return Plan(
        descriptor=descriptor,
        argv=("agent",),
        environment=environment,
        secrets=environment,
        fetched={},
        cwd=Path("/work"),
        jail=cast(Any, None),
        mounting=Mounting(),
        mask=cast(Any, None),
        version=None,
        login=Login(descriptor=descriptor, choice=choice, environment=environment),
        kind=cast(Any, None),
        own=own,
    )


def test_an_agent_gets_no_key() -> None:
    given = plan("gemini-cli", {"GEMINI_API_KEY": KEY, "GOOGLE_GEMINI_BASE_URL": "http://10.0.0.1:8000"})
    made = behind_door(given, ["GEMINI_API_KEY"], Reachable(), Path("/data"))
    assert made.door is not None
    wiring = made.door.wiring
    instead = made.environment["GEMINI_API_KEY"]
    assert wiring.upstreams[0].keys == {instead: KEY}
    assert wiring.kept == []
    assert KEY not in str([*made.start_environment.items()])
    # Its address is a parameter of its login, too.
    [params] = made.login.params([AuthMethod("gemini-api-key", "key", "agent", ())])
    assert params["_meta"] == {"gateway": {"baseUrl": f"{API_URL}/p/0"}}
    assert given.environment["GEMINI_API_KEY"] == KEY
    assert made.secrets == given.secrets  # which masking needs


def test_the_built_in_agent_gets_no_key() -> None:
    own = {
        "agent": {"llm": {"model": "gemini/gemini-2.5-pro", "api_key": KEY}},
        "environment": {"HOME": "/h"},
    }
    made = behind_door(plan("openhands", {"HOME": "/home"}, own), [], Reachable(), Path("/data"))
    assert made.door is not None
    wiring = made.door.wiring
    assert made.own is not None
    llm = made.own["agent"]["llm"]
    assert llm["base_url"] == f"{API_URL}/p/0/v1beta"
    assert wiring.upstreams[0].keys == {llm["api_key"]: KEY}
    assert made.own["environment"] == {"HOME": "/h"}
    assert KEY not in str(made.own)
