"""What an operator can set about the agents."""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from gateway.configuration.config import load_supervision
from gateway.configuration.parsing import ConfigError
from supervisor.agents import catalog
from supervisor.agents.catalog import load_catalog
from supervisor.agents.limits.values import AgentLimits
from supervisor.agents.walls.further import NO_PATHS, Paths
from supervisor.conversations.agent.admission import memory_budget
from supervisor.conversations.state.deadlines import Deadlines


def test_defaults():
    found = load_supervision({})
    assert found.limits.agents is None
    assert found.limits.memory_bytes == memory_budget()
    assert found.limits.full == "queue"
    assert (found.restart.crashes, found.restart.seconds, found.restart.parked_seconds) == (5, 60.0, None)
    assert found.deadlines == Deadlines()
    assert found.agents is None
    assert not found.agent_limits


def test_everything_can_be_set():
    found = load_supervision(
        {
            "OSTLER_MAX_AGENTS": "3",
            "OSTLER_MAX_STARTS": "2",
            "OSTLER_MEMORY_BYTES": "off",
            "OSTLER_IDLE_SECONDS": "off",
            "OSTLER_WHEN_FULL": "refuse",
            "OSTLER_RESTART_CRASHES": "7",
            "OSTLER_RESTART_SECONDS": "30",
            "OSTLER_PARKED_SECONDS": "300",
            "OSTLER_DEADLINE_INITIALIZE": "1.5",
            "OSTLER_DEADLINE_CANCEL_GRACE": "30",
            "OSTLER_DRAIN_SECONDS": "60",
            "OSTLER_AGENTS_DIR": "/opt/agents",
            "OSTLER_AGENT_MEMORY": "2147483648",
            "OSTLER_AGENT_PROCESSES": "500",
            "OSTLER_AGENT_CPUS": "1.5",
            "OSTLER_AGENT_FILE_SIZE": "1000",
            "OSTLER_AGENT_OPEN_FILES": "4096",
            "OSTLER_AGENT_DISK": "Off",
        }
    )
    assert found.agent_limits == AgentLimits(
        memory=2 << 30, processes=500, cpus=1.5, file_size=1000, open_files=4096
    )
    limits, restart = found.limits, found.restart
    assert (limits.agents, limits.starts, limits.memory_bytes) == (3, 2, None)
    assert (limits.idle_seconds, limits.full) == (None, "refuse")
    assert (restart.crashes, restart.seconds, restart.parked_seconds) == (7, 30.0, 300.0)
    assert (found.deadlines.initialize, found.deadlines.cancel_grace) == (1.5, 30.0)
    assert found.deadlines.close == Deadlines().close
    assert found.drain_seconds == 60.0
    assert str(found.agents) == "/opt/agents"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("OSTLER_MAX_AGENTS", "none"),
        ("OSTLER_MAX_STARTS", "0"),
        ("OSTLER_MEMORY_BYTES", "1G"),
        ("OSTLER_IDLE_SECONDS", "-1"),
        ("OSTLER_WHEN_FULL", "panic"),
        ("OSTLER_AGENT_MEMORY", "2G"),
        ("OSTLER_AGENT_PROCESSES", "0"),
        ("OSTLER_AGENT_CPUS", "-1"),
        ("OSTLER_AGENT_CPUS", "all"),
        ("OSTLER_AGENT_FILE_SIZE", "1.5"),
        ("OSTLER_AGENT_OPEN_FILES", "many"),
        ("OSTLER_AGENT_DISK", "-7"),
        ("OSTLER_DEADLINE_CLOSE", "soon"),
        ("OSTLER_WARM_SPARES", "some"),
        ("OSTLER_WARM_SPARES", "-1"),
        ("OSTLER_WARM_SPARES", "17"),
        ("OSTLER_WARM_SPARES", "demo=1"),
        ("OSTLER_WARM_SPARES", "nobody=1"),
    ],
)
def test_what_cannot_be_used_is_named(name, value):
    with pytest.raises(ConfigError, match=name):
        load_supervision({name: value})


@pytest.mark.parametrize(
    ("value", "spares"),
    [
        (None, {"openhands": 1}),
        ("", {"openhands": 1}),
        ("off", {}),
        ("0", {"able": 0, "ready": 0}),
        ("2", {"able": 2, "ready": 2}),
        ("able=3", {"able": 3}),
        ("able=1, ready=0", {"able": 1, "ready": 0}),
    ],
)
def test_how_many_spares_wait(value, spares, monkeypatch):
    demo = load_catalog()["demo"]
    known = {key: attrs.evolve(demo, key=key, warm="session") for key in ("able", "ready")}
    monkeypatch.setattr(catalog, "load_catalog", lambda: {**known, "demo": demo})
    assert load_supervision({} if value is None else {"OSTLER_WARM_SPARES": value}).warm_processes == spares


def test_paths_that_settings_may_name(monkeypatch):
    monkeypatch.setenv("HOME", "/home/u")
    assert load_supervision({}).walls.allowed == NO_PATHS
    found = load_supervision(
        {"OSTLER_WALLS_ALLOW_READ": "/data:~/sets", "OSTLER_WALLS_ALLOW_WRITE": "/out"}
    ).walls
    assert found.allowed == Paths(reads=(Path("/data"), Path("/home/u/sets")), writes=(Path("/out"),))
    assert found.reads == found.writes == ()
    with pytest.raises(ConfigError, match=r"^OSTLER_WALLS_ALLOW_WRITE: out is not absolute"):
        load_supervision({"OSTLER_WALLS_ALLOW_WRITE": "out"})
