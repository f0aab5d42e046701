"""Limits of an agent in its settings: what they are, and that none is above the operator's."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from supervisor.agents.limits.values import SETTING, AgentLimits, Limit
from supervisor.mcp.server import server_errors
from supervisor.settings.agent import (
    ACP_LIMITS,
    OWN_FIELDS,
    AgentSettings,
    LimitBounds,
    Limits,
    agent_settings_from_dict,
    agent_settings_to_dict,
    decode_acp_agent,
    decode_agent_settings,
    with_own_fields,
)
from supervisor.settings.document import Rules, apply_change, first_document
from supervisor.settings.errors import SettingsError

PRESETS = {"demo": ("python", "-m", "demo")}
COMMAND = ["/path/agent", "--acp"]
BOUNDS = LimitBounds({"memory": 1000, "cpus": 2.0})


def decode(limits: Any, bounds: LimitBounds = BOUNDS) -> AgentSettings:
    given = {"acp_command": COMMAND, "acp_limits": limits}
    return decode_agent_settings(given, PRESETS, check_server=server_errors, bounds=bounds)


def decode_start(limits: Any, bounds: LimitBounds = BOUNDS) -> AgentSettings:
    given = {"kind": "ACPAgent", "acp_command": COMMAND, "acp_limits": limits}
    return decode_acp_agent(given, PRESETS, check_server=server_errors, bounds=bounds)


def test_both_rooms_have_the_same_limits() -> None:
    names = {limit.value for limit in Limit}
    assert {field.name for field in attrs.fields(Limits)} == names
    assert Limits().given() == {}
    assert AgentLimits(**Limits(memory=1, disk=2).given()) == AgentLimits(memory=1, disk=2)
    assert SETTING == ACP_LIMITS
    assert ACP_LIMITS in OWN_FIELDS


@pytest.mark.parametrize("read", [decode, decode_start])
def test_limits_within_the_operators(read: Any) -> None:
    found = read({"memory": 1000, "cpus": 1, "processes": 10**6, "disk": None}).acp_limits
    assert found == Limits(memory=1000, cpus=1, processes=10**6)
    assert read(None).acp_limits is None
    assert read({}).acp_limits is None
    assert read({"disk": None}).acp_limits is None


@pytest.mark.parametrize("read", [decode, decode_start])
@pytest.mark.parametrize(
    ("limits", "name", "kind"),
    [
        ({"memory": 1001}, "memory", "less_than_equal"),
        ({"cpus": 2.1}, "cpus", "less_than_equal"),
        ({"memory": 0}, "memory", "greater_than"),
        ({"memory": 1 << 60}, "memory", "less_than_equal"),
        ({"memory": "1G"}, "memory", "int_type"),
        ({"memory": 1.5}, "memory", "int_type"),
        ({"cpus": -1}, "cpus", "greater_than"),
        ({"disc": 5}, "disc", "extra_forbidden"),
    ],
)
def test_more_than_the_operator_allows_and_nonsense(read: Any, limits: Any, name: str, kind: str) -> None:
    with pytest.raises(SettingsError) as refused:
        read(limits)
    (error,) = refused.value.errors
    assert error.loc[-2:] == ("acp_limits", name)
    assert error.loc[0] == "body"
    assert error.type == kind
    assert error.msg


def test_the_operators_limit_is_named() -> None:
    with pytest.raises(SettingsError) as refused:
        decode({"memory": 1 << 40}, LimitBounds({"memory": 1 << 30}))
    (error,) = refused.value.errors
    assert error.msg == "Input should be less than or equal to 1073741824, the server's own limit"


def test_a_change_of_the_servers_settings_keeps_within_them() -> None:
    rules = Rules(PRESETS, server_errors, BOUNDS)
    before = first_document(PRESETS)
    changed = apply_change(before, {"agent_settings_diff": {"acp_limits": {"memory": 10}}}, rules)
    assert changed.agent_settings["acp_limits"]["memory"] == 10
    again = apply_change(changed, {"agent_settings_diff": {"acp_limits": {"disk": 7}}}, rules)
    assert agent_settings_from_dict(again.agent_settings).acp_limits == Limits(memory=10, disk=7)
    with pytest.raises(SettingsError):
        apply_change(before, {"agent_settings_diff": {"acp_limits": {"memory": 1001}}}, rules)
    gone = apply_change(again, {"agent_settings_diff": {"acp_limits": None}}, rules)
    assert "acp_limits" not in gone.agent_settings


def test_stored_limits_come_back() -> None:
    settings = decode({"memory": 10, "cpus": 1.5})
    assert agent_settings_from_dict(agent_settings_to_dict(settings)) == settings
    assert "acp_limits" not in agent_settings_to_dict(decode(None))


def test_a_start_request_without_own_fields_gets_those_of_the_settings() -> None:
    settings = decode({"memory": 10})
    given: dict[str, Any] = {"kind": "ACPAgent", "acp_command": COMMAND}
    agent = decode_acp_agent(given, PRESETS)
    assert with_own_fields(agent, given, settings).acp_limits == Limits(memory=10)
    assert with_own_fields(agent, {**given, "acp_limits": None}, settings).acp_limits is None
