"""The further paths of an agent in its settings."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.mcp.server import server_errors
from supervisor.settings.agent import (
    OWN_FIELDS,
    PATH_CHARACTERS,
    WALL_PATHS,
    AgentSettings,
    agent_settings_from_dict,
    agent_settings_to_dict,
    decode_acp_agent,
    decode_agent_settings,
    with_own_fields,
)
from supervisor.settings.errors import SettingsError
from supervisor.settings.profiles.profile import decode_profile, profile_to_settings

PRESETS = {"demo": ("python", "-m", "demo")}
COMMAND = ["/path/agent", "--acp"]
FIELDS = ("acp_walls_read", "acp_walls_write")


def decode(**given: Any) -> AgentSettings:
    return decode_agent_settings({"acp_command": COMMAND, **given}, PRESETS, check_server=server_errors)


def decode_start(**given: Any) -> AgentSettings:
    agent = {"kind": "ACPAgent", "acp_command": COMMAND, **given}
    return decode_acp_agent(agent, PRESETS, check_server=server_errors)


both = pytest.mark.parametrize("read", [decode, decode_start])


@both
def test_paths_are_kept_as_they_are(read: Any) -> None:
    found = read(acp_walls_read=["/data/set", "/srv/~x"], acp_walls_write=["/out"])
    assert found.acp_walls_read == ("/data/set", "/srv/~x")
    assert found.acp_walls_write == ("/out",)
    assert agent_settings_from_dict(agent_settings_to_dict(found)) == found
    assert len(read(acp_walls_read=[f"/{n}" for n in range(WALL_PATHS)]).acp_walls_read) == WALL_PATHS
    longest = "/" + "x" * (PATH_CHARACTERS - 1)
    assert read(acp_walls_write=[longest]).acp_walls_write == (longest,)


@both
@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    ("value", "at", "kind"),
    [
        (["data"], (0,), "value_error"),
        (["/data", "~/data"], (1,), "value_error"),
        (["./data"], (0,), "value_error"),
        (["/data/../home"], (0,), "value_error"),
        (["/.."], (0,), "value_error"),
        ([""], (0,), "string_too_short"),
        (["/a\0b"], (0,), "value_error"),
        (["/" + "x" * PATH_CHARACTERS], (0,), "string_too_long"),
        ([5], (0,), "string_type"),
        ("/data", (), "list_type"),
        ({"/data": 1}, (), "list_type"),
        (None, (), "list_type"),
        ([f"/{n}" for n in range(WALL_PATHS + 1)], (), "too_long"),
    ],
)
def test_nonsense_is_refused_where_it_is(
    read: Any, field: str, value: Any, at: tuple[int, ...], kind: str
) -> None:
    with pytest.raises(SettingsError) as refused:
        read(**{field: value})
    errors = [error for error in refused.value.errors if error.loc[-1 - len(at) :] == (field, *at)]
    assert kind in [error.type for error in errors]
    assert {error.loc[0] for error in errors} == {"body"}


def test_clients_that_do_not_know_them_do_not_get_them() -> None:
    assert OWN_FIELDS.issuperset(FIELDS)
    assert not set(FIELDS) & agent_settings_to_dict(decode()).keys()


def test_a_start_request_without_own_fields_gets_those_of_the_settings() -> None:
    settings = decode(acp_walls_read=["/data"])
    given: dict[str, Any] = {"kind": "ACPAgent", "acp_command": COMMAND}
    agent = decode_acp_agent(given, PRESETS)
    assert with_own_fields(agent, given, settings).acp_walls_read == ("/data",)
    assert with_own_fields(agent, {**given, "acp_walls_read": []}, settings).acp_walls_read == ()


def test_a_profile_has_those_of_the_settings() -> None:
    server = agent_settings_to_dict(decode(acp_walls_read=["/data"], acp_walls_write=["/out"]))
    found = profile_to_settings(decode_profile({"acp_server": "demo"}, "p", PRESETS), PRESETS, server)
    assert (found.acp_walls_read, found.acp_walls_write) == (("/data",), ("/out",))
