"""What operators see of agents, and what they can do with them, over REST."""

from __future__ import annotations

import time
from datetime import datetime

import attrs
import pytest
import trio
from jsonschema import Draft202012Validator

from gateway.api import schemas
from gateway.cli.operate import processes as ps
from gateway.configuration.config import load_supervision
from supervisor.acp import TraceLine
from supervisor.conversations.agent.admission import Limits
from supervisor.conversations.state.errors import AgentFailure
from supervisor.conversations.views import WarmProcessView
from supervisor.credentials.secret import WrongMasterKey

ID = "0f8fad5b-d9cb-469f-a165-70867728950e"
OTHER = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
ACTIONS = [
    ("GET", ""),
    ("POST", "/restart"),
    ("POST", "/stop"),
    ("GET", "/stderr"),
    ("GET", "/trace"),
]


def fits(value, name):
    components = {"components": {"schemas": schemas.COMPONENTS}}
    schema = {**components, "$ref": f"#/components/schemas/{name}"}
    Draft202012Validator(schema).validate(value)
    described = schemas.COMPONENTS[name]["properties"]
    assert set(value) == set(described) - {"server", "servers"}  # of several servers alone


async def test_agents_as_the_description_has_them(gateway):
    assert await gateway.call("GET", "/api/agents") == (200, {"agents": [], "spares": []})
    gateway.supervisor.add_agent(ID)
    nothing = dict.fromkeys(
        ("title", "name", "version", "pid", "memory", "uptime", "last_exit", "idle", "rss_bytes"), None
    )
    gateway.supervisor.add_agent(OTHER, state="parked", **nothing, cpu_seconds=None, processes=None)
    status, body = await gateway.call("GET", "/api/agents")
    assert status == 200
    assert [agent["conversation_id"] for agent in body["agents"]] == [ID, OTHER]
    assert body["agents"][0] == attrs.asdict(gateway.supervisor.views[ID])
    for agent in body["agents"]:
        fits(agent, "Agent")


async def test_agents_that_wait_for_a_conversation_are_listed_apart(gateway):
    spare = WarmProcessView(
        kind="spare",
        provider="openhands",
        name=None,
        version="1.0",
        pid=4712,
        ready=False,
        uptime=3.5,
        rss_bytes=31 * 1024 * 1024,
        cpu_seconds=2.0,
        processes=1,
        containment="tree",
    )
    parent = attrs.evolve(spare, kind="parent", version=None, pid=4713, ready=True)
    gateway.supervisor.warm_views += [spare, parent]
    status, body = await gateway.call("GET", "/api/agents")
    assert (status, body) == (200, {"agents": [], "spares": [attrs.asdict(spare), attrs.asdict(parent)]})
    for each in body["spares"]:
        fits(each, "SpareAgent")
    shown = ps.lines(ps.rows(body), None)
    assert " ".join(shown[1].split()) == "- openhands 1.0 4712 spare 3s - 31M 2s 1 - - - - -"
    assert " ".join(shown[2].split()) == "- openhands 4713 parent 3s - 31M 2s 1 - - - - -"


async def test_one_agent_by_either_form_of_its_id(gateway):
    gateway.supervisor.add_agent(ID)
    for form in (ID, ID.replace("-", ""), ID.upper()):
        status, agent = await gateway.call("GET", f"/api/agents/{form}")
        assert (status, agent["conversation_id"], agent["restarts"]) == (200, ID, 1)


@pytest.mark.parametrize(("method", "path"), ACTIONS)
async def test_unknown_agents(gateway, method, path):
    status, body = await gateway.call(method, f"/api/agents/{ID}{path}")
    assert (status, body) == (404, {"detail": f"Conversation not found: {ID}"})
    status, body = await gateway.call(method, f"/api/agents/demo{path}")
    assert (status, body["detail"][0]["loc"]) == (422, ["path", "conversation_id"])


@pytest.mark.parametrize(
    ("body", "force"), [(None, False), ({}, False), ({"force": False}, False), ({"force": True}, True)]
)
async def test_restart(gateway, body, force):
    gateway.supervisor.add_agent(ID)
    answer = await gateway.call("POST", f"/api/agents/{ID}/restart", body)
    assert answer == (200, {"success": True})
    assert gateway.supervisor.calls == [("restart", ID, force)]


@pytest.mark.parametrize("body", [{"force": "yes"}, {"force": 1}, [], "force"])
async def test_a_restart_that_is_not_understood_does_nothing(gateway, body):
    gateway.supervisor.add_agent(ID)
    status, _ = await gateway.call("POST", f"/api/agents/{ID}/restart", body)
    assert status == 422
    assert gateway.supervisor.calls == []


async def test_a_restart_that_fails_says_why(gateway):
    gateway.supervisor.add_agent(ID)
    gateway.supervisor.failure = AgentFailure("ACPAuthRequired", "it wants a key")
    answer = await gateway.call("POST", f"/api/agents/{ID}/restart")
    assert answer == (502, {"detail": "it wants a key"})


async def test_stop(gateway):
    gateway.supervisor.add_agent(ID)
    assert await gateway.call("POST", f"/api/agents/{ID}/stop") == (200, {"success": True})
    assert gateway.supervisor.calls == [("stop", ID)]


async def test_stderr(gateway):
    gateway.supervisor.add_agent(ID)
    gateway.supervisor.lines = ["warning: ü", "", "last"]
    answer = await gateway.call("GET", f"/api/agents/{ID}/stderr")
    assert answer == (200, {"lines": ["warning: ü", "", "last"]})


async def test_a_frame_of_the_trace_keeps_its_date(gateway):
    gateway.supervisor.add_agent(ID)
    now = trio.current_time()
    gateway.supervisor.frames = [TraceLine("<", now - 100.0, 3000, "{..."), TraceLine(">", now, 2, "{}")]
    _, first = await gateway.call("GET", f"/api/agents/{ID}/trace")
    await trio.sleep(0.01)
    _, second = await gateway.call("GET", f"/api/agents/{ID}/trace")
    assert first == second
    fits(first, "AgentTrace")
    old, new = first["frames"]
    told = {"direction": "<", "timestamp": "", "size": 3000, "text": "{...", "process": 1}
    assert {**old, "timestamp": ""} == told
    assert old["timestamp"].endswith("Z")
    moments = [datetime.fromisoformat(frame["timestamp"]).timestamp() for frame in (old, new)]
    assert moments[1] - moments[0] == pytest.approx(100.0, abs=1e-3)
    assert moments[1] == pytest.approx(time.time(), abs=5.0)


async def test_status(gateway_with):
    limits = Limits(agents=8, memory_bytes=2**33, starts=3, idle_seconds=None, full="refuse")
    supervision = attrs.evolve(load_supervision({}), limits=limits)
    async with gateway_with(supervision=supervision) as gateway:
        await look_at_status(gateway)


async def look_at_status(gateway):
    for _ in range(3):
        await gateway.conversation()
    status, body = await gateway.call("GET", "/api/status")
    assert status == 200
    fits(body, "ServerStatus")
    assert body["status"] == "ready"
    assert body["containment"] == "tree"
    assert body["state"] == str(gateway.services.config.state)
    assert body["conversations"] == {"total": 3, "loaded": 7}
    assert body["agents"]["hibernated"] == 4
    assert body["totals"] == {
        "starts": 20,
        "restarts": 5,
        "crashes": 6,
        "warden_restarts": None,
        "turns": {"end_turn": 30, "cancelled": 2},
    }
    assert body["limits"] == {
        "agents": 8,
        "memory_bytes": 2**33,
        "starts": 3,
        "idle_seconds": None,
        "when_full": "refuse",
    }
    shares = gateway.services.config.descriptors
    assert body["descriptors"]["limit"] == shares.limit > body["descriptors"]["used"] > 3
    assert body["descriptors"]["agents"] == {"used": 3, "share": shares.agents}
    assert body["descriptors"]["connections"]["share"] == gateway.services.config.max_connections
    assert body["session_key_wanted"] is False
    source = str(gateway.services.config.state / "master.key")
    assert body["secret_key"] == {"source": source, "problem": None}
    gateway.services.closing.set()
    assert (await gateway.call("GET", "/api/status"))[1]["status"] == "stopping"


async def test_status_with_a_key_that_cannot_be_had(gateway, tmp_path):
    gateway.services.secrets._key = WrongMasterKey(tmp_path / "secrets.json", "OSTLER_MASTER_KEY")
    status, body = await gateway.call("GET", "/api/status")
    assert status == 200
    assert body["secret_key"]["source"] is None
    assert "OSTLER_MASTER_KEY" in body["secret_key"]["problem"]


async def test_operators_need_the_key(gateway_with):
    async with gateway_with(session_api_keys=("k",)) as gateway:
        gateway.supervisor.add_agent(ID)
        paths = ["/api/agents", "/api/status", *(f"/api/agents/{ID}{path}" for _, path in ACTIONS)]
        methods = {f"/api/agents/{ID}{path}": method for method, path in ACTIONS}
        for path in paths:
            assert (await gateway.call(methods.get(path, "GET"), path))[0] == 401
        assert gateway.supervisor.calls == []
        _, body = await gateway.call("GET", "/api/status", headers={"X-Session-API-Key": "k"})
        assert body["session_key_wanted"] is True
