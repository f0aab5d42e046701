"""Settings of an ACP agent: defaults, presets, and where an error is said to be."""

from __future__ import annotations

from typing import Any

import pytest

from supervisor.agents import environment
from supervisor.mcp.server import server_errors
from supervisor.reading.model import MAX_ERRORS, TOO_MANY
from supervisor.settings import variables
from supervisor.settings.agent import (
    AgentSettings,
    agent_settings_from_dict,
    agent_settings_to_dict,
    decode_acp_agent,
    decode_agent_settings,
)
from supervisor.settings.errors import SettingsError

PRESETS = {
    "demo": ("python", "-m", "demo"),
    "claude-code": ("npx", "-y", "claude-agent@1"),
    "codex": ("npx", "-y", "codex@1", "--flag"),
}
CODEX = list(PRESETS["codex"])
OWN = ["/path/agent", "--acp"]


def decode(obj: Any) -> AgentSettings:
    return decode_agent_settings(obj, PRESETS, check_server=server_errors)


def test_defaults() -> None:
    dumped = agent_settings_to_dict(decode({"agent_kind": "acp"}))
    file_secrets = dumped.pop("acp_file_secrets")
    assert dumped == {
        "schema_version": 9,
        "agent_kind": "acp",
        "acp_server": "claude-code",
        "acp_command": list(PRESETS["claude-code"]),
        "acp_args": [],
        "acp_model": None,
        "acp_session_mode": None,
        "acp_prompt_timeout": 1800.0,
        "acp_startup_timeout": 90.0,
        "mcp_config": {},
        "acp_isolate_data_dir": False,
        "agent_context": None,
    }
    assert [secret["secret_name"] for secret in file_secrets] == [
        "CODEX_AUTH_JSON",
        "GOOGLE_APPLICATION_CREDENTIALS_JSON",
        "KIMI_CODE_CONFIG_TOML",
        "PI_AUTH_JSON",
    ]
    assert file_secrets[0] == {
        "secret_name": "CODEX_AUTH_JSON",
        "filename": "auth.json",
        "env_var": "CODEX_HOME",
        "subdir": "codex",
        "env_points_to": "dir",
        "warn_if_unset": [],
    }


FULL = {
    "schema_version": 3,
    "agent_kind": "acp",
    "acp_server": "custom",
    "acp_command": OWN,
    "acp_args": ["-x"],
    "acp_model": "m",
    "acp_session_mode": "plan",
    "acp_prompt_timeout": 1.5,
    "acp_startup_timeout": 2.0,
    "mcp_config": {"s": {"command": "c"}},
    "acp_isolate_data_dir": True,
    "acp_file_secrets": [
        {
            "secret_name": "S",
            "filename": "f",
            "env_var": "E",
            "subdir": "a/b",
            "env_points_to": "file",
            "warn_if_unset": ["W"],
        }
    ],
    "agent_context": {"skills": []},
}


def test_every_field_comes_back() -> None:
    settings = decode(FULL)
    assert agent_settings_to_dict(settings) == FULL
    assert agent_settings_from_dict(agent_settings_to_dict(settings)) == settings


def test_stored_settings_of_other_releases_are_read_without_judging() -> None:
    stored = {"acp_server": "gone", "acp_command": ["x"], "new_field": 1, "acp_prompt_timeout": 5}
    settings = agent_settings_from_dict(stored)
    assert (settings.acp_server, settings.acp_command, settings.acp_prompt_timeout) == ("gone", ("x",), 5.0)
    assert settings.acp_args == ()


@pytest.mark.parametrize(
    ("given", "server", "command"),
    [
        ({"acp_server": "codex"}, "codex", CODEX),
        ({"acp_server": "codex", "acp_command": []}, "codex", CODEX),
        ({"acp_server": "codex", "acp_command": OWN}, "codex", OWN),
        ({"acp_server": "custom", "acp_command": OWN}, "custom", OWN),
        ({"acp_command": OWN}, "custom", OWN),
        ({"acp_command": CODEX}, "codex", CODEX),
        ({"acp_server": "custom", "acp_command": CODEX}, "codex", CODEX),
        ({"acp_server": "claude-code", "acp_command": CODEX}, "codex", CODEX),
        ({"acp_server": "codex", "acp_command": CODEX[:-1]}, "codex", CODEX[:-1]),
    ],
)
def test_provider_and_command_agree(given: dict[str, Any], server: str, command: list[str]) -> None:
    settings = decode(given)
    assert (settings.acp_server, list(settings.acp_command)) == (server, command)


def test_what_is_ignored_or_normalised() -> None:
    settings = decode({"acp_command": OWN, "whatever": 1, "acp_model": "", "acp_env": {}})
    assert settings == decode({"acp_command": OWN})


SECRET = {"secret_name": "S", "filename": "f", "env_var": "E", "subdir": "d"}


@pytest.mark.parametrize(
    ("given", "loc", "kind"),
    [
        ({"agent_kind": "openhands"}, ("agent_kind",), "value_error"),
        ({"agent_kind": "llm"}, ("agent_kind",), "value_error"),
        ({}, ("agent_kind",), "value_error"),
        ({"agent_kind": "other"}, ("agent_kind",), "literal_error"),
        ({"agent_kind": ["acp"]}, ("agent_kind",), "literal_error"),
        ({"acp_server": "nobody"}, ("acp_server",), "enum"),
        ({"acp_server": None}, ("acp_server",), "enum"),
        ({"acp_server": "custom"}, ("acp_command",), "value_error"),
        ({"acp_command": [" "]}, ("acp_command",), "value_error"),
        ({"acp_command": "agent --acp"}, ("acp_command",), "list_type"),
        ({"acp_command": ["a", 1]}, ("acp_command", 1), "string_type"),
        ({"acp_command": ["a\0b"]}, ("acp_command", 0), "value_error"),
        ({"acp_args": None}, ("acp_args",), "list_type"),
        ({"acp_model": 1}, ("acp_model",), "string_type"),
        ({"acp_session_mode": []}, ("acp_session_mode",), "string_type"),
        ({"acp_prompt_timeout": 0}, ("acp_prompt_timeout",), "greater_than"),
        ({"acp_prompt_timeout": "5"}, ("acp_prompt_timeout",), "float_type"),
        ({"acp_startup_timeout": True}, ("acp_startup_timeout",), "float_type"),
        ({"acp_startup_timeout": float("inf")}, ("acp_startup_timeout",), "finite_number"),
        ({"acp_isolate_data_dir": "yes"}, ("acp_isolate_data_dir",), "bool_type"),
        ({"acp_args": [], "schema_version": 0}, ("schema_version",), "greater_than_equal"),
        ({"acp_args": [], "schema_version": 1.0}, ("schema_version",), "int_type"),
        ({"acp_args": [], "mcp_config": []}, ("mcp_config",), "dict_type"),
        (
            {"acp_args": [], "mcp_config": {"s": {"command": 1}}},
            ("mcp_config", "s", "command"),
            "string_type",
        ),
        ({"acp_args": [], "agent_context": []}, ("agent_context",), "dict_type"),
        ({"acp_args": [], "llm": {}}, ("llm",), "extra_forbidden"),
        ({"acp_args": [], "enable_sub_agents": True}, ("enable_sub_agents",), "extra_forbidden"),
        ({"acp_args": [], "enable_switch_llm_tool": True}, ("enable_switch_llm_tool",), "extra_forbidden"),
        ({"acp_file_secrets": {}}, ("acp_file_secrets",), "list_type"),
        (
            {"acp_file_secrets": [{**SECRET, "filename": "../f"}]},
            ("acp_file_secrets", 0, "filename"),
            "value_error",
        ),
        (
            {"acp_file_secrets": [{**SECRET, "filename": ".."}]},
            ("acp_file_secrets", 0, "filename"),
            "value_error",
        ),
        (
            {"acp_file_secrets": [{**SECRET, "subdir": "a/../.."}]},
            ("acp_file_secrets", 0, "subdir"),
            "value_error",
        ),
        (
            {"acp_file_secrets": [{**SECRET, "subdir": "/etc"}]},
            ("acp_file_secrets", 0, "subdir"),
            "value_error",
        ),
        ({"acp_file_secrets": [{**SECRET, "subdir": "."}]}, ("acp_file_secrets", 0, "subdir"), "value_error"),
        (
            {"acp_file_secrets": [{**SECRET, "env_points_to": "x"}]},
            ("acp_file_secrets", 0, "env_points_to"),
            "enum",
        ),
    ],
)
def test_refused(given: dict[str, Any], loc: tuple[str | int, ...], kind: str) -> None:
    with pytest.raises(SettingsError) as caught:
        decode(given)
    found = [(error.loc, error.type) for error in caught.value.errors]
    assert found == [(("body", "agent_settings", *loc), kind)]


def test_all_errors_at_once_but_not_millions() -> None:
    with pytest.raises(SettingsError) as caught:
        decode({"acp_model": 1, "acp_args": [1, 2]})
    assert [error.loc[2:] for error in caught.value.errors] == [
        ("acp_args", 0),
        ("acp_args", 1),
        ("acp_model",),
    ]
    with pytest.raises(SettingsError) as caught:
        decode({"acp_args": [1] * 100_000})
    assert len(caught.value.errors) == MAX_ERRORS + 1
    assert caught.value.errors[-1].type == TOO_MANY


def test_agent_of_a_start_request() -> None:
    agent = {
        "kind": "ACPAgent",
        "llm": {"model": "x", "api_key": "sk-llm"},
        "tools": [],
        "acp_command": OWN,
        "acp_server": None,
        "acp_model": "m",
        "acp_args": ["-x"],
        "acp_prompt_timeout": 7,
    }
    settings = decode_acp_agent(agent, PRESETS)
    assert settings == decode(
        {"acp_command": OWN, "acp_model": "m", "acp_args": ["-x"], "acp_prompt_timeout": 7.0}
    )
    assert decode_acp_agent({"kind": "ACPAgent", "acp_command": CODEX}, PRESETS).acp_server == "codex"
    assert decode_acp_agent({**agent, "acp_server": "unknown"}, PRESETS).acp_server == "custom"
    assert decode_acp_agent({**agent, "acp_server": "claude-code"}, PRESETS).acp_server == "claude-code"
    assert decode_acp_agent({"kind": "ACPAgent", "acp_command": ["x"]}).acp_server == "custom"


@pytest.mark.parametrize(
    ("agent", "loc", "kind"),
    [
        ([], (), "dict_type"),
        ({}, ("kind",), "union_tag_invalid"),
        ({"kind": "Agent", "llm": {}}, ("kind",), "value_error"),
        ({"kind": "ACPAgent"}, ("acp_command",), "missing"),
        ({"kind": "ACPAgent", "acp_command": []}, ("acp_command",), "too_short"),
        ({"kind": "ACPAgent", "acp_command": "x"}, ("acp_command",), "list_type"),
        ({"kind": "ACPAgent", "acp_command": ["x"], "acp_server": []}, ("acp_server",), "string_type"),
    ],
)
def test_agent_refused(agent: Any, loc: tuple[str, ...], kind: str) -> None:
    with pytest.raises(SettingsError) as caught:
        decode_acp_agent(agent, PRESETS)
    assert [(error.loc, error.type) for error in caught.value.errors] == [(("body", "agent", *loc), kind)]


def test_the_built_in_agent_is_no_acp_agent() -> None:
    with pytest.raises(SettingsError, match="name an ACP agent"):
        decode_acp_agent({"kind": "Agent"})


def test_no_credential_shows() -> None:
    given = {
        "acp_command": OWN,
        "acp_args": ["--key=sk-1"],
        "mcp_config": {"s": {"command": "c", "env": {"K": "sk-2"}}},
        "agent_context": {"secrets": {"A": "sk-3"}},
    }
    assert "sk-" not in repr(decode(given))
    with pytest.raises(SettingsError) as caught:
        decode({**given, "acp_model": ["sk-4"], "mcp_config": {"s": {"command": "c", "env": "sk-5"}}})
    assert "sk-" not in str(caught.value) + repr(caught.value.errors)


def test_plain_variables_are_kept_as_they_are() -> None:
    given = {"acp_command": OWN, "acp_env": {"REGION": "eu", "MAX_TOKENS": "5"}, "acp_home": "shared"}
    settings = decode(given)
    assert (settings.acp_env, settings.acp_home) == ({"REGION": "eu", "MAX_TOKENS": "5"}, "shared")
    told = agent_settings_to_dict(settings)
    assert (told["acp_env"], told["acp_home"]) == (given["acp_env"], "shared")
    assert agent_settings_from_dict(told) == settings


@pytest.mark.guarantee(name="keys-and-secrets")
@pytest.mark.parametrize(
    "name",
    [
        "API_KEY", "OPENAI_API_KEY", "GITHUB_TOKEN", "DB_PASSWORD", "MY_SECRET", "AWS_SECRET_ACCESS_KEY",
        "AWS_ACCESS_KEY_ID", "NPM_AUTH", "authToken", "apiKey", "SECRETKEY", "GOOGLE_APPLICATION_CREDENTIALS",
        "SESSION_COOKIE", "GH_PAT", "ID_JWT", "SSH_PASSPHRASE", "token", "DBPASSWORD", "MYAPIKEY",
    ],
)  # fmt: skip
def test_names_that_look_like_credentials_are_refused_unless_they_are_meant(name: str) -> None:
    (error,) = refused({"acp_command": OWN, "acp_env": {name: "x"}})
    assert error.loc[-2:] == ("acp_env", name)
    assert "looks like a credential" in error.msg
    assert "acp_env_plain" in error.msg
    meant = decode({"acp_command": OWN, "acp_env": {name: "x"}, "acp_env_plain": [name]})
    assert meant.acp_env == {name: "x"}


@pytest.mark.parametrize(
    "name",
    [
        "REGION", "MAX_TOKENS", "TOKENIZERS_PARALLELISM", "KEYBOARD", "PWD", "MONKEY", "AUTHOR", "PATH", "_",
        "NODE_OPTIONS", "SECRET_NAME", "KEY_FILE", "TOKEN_LIMIT", "AUTH_TYPE", "http_proxy", "COMPASS",
    ],
)  # fmt: skip
def test_names_that_do_not_are_taken(name: str) -> None:
    assert decode({"acp_command": OWN, "acp_env": {name: "x"}}).acp_env == {name: "x"}


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"1A": "x"}, "starts with a letter"),
        ({"A-B": "x"}, "starts with a letter"),
        ({"": "x"}, "starts with a letter"),
        ({"A=B": "x"}, "starts with a letter"),
        ({"A" * 129: "x"}, "at most 128"),
        ({"A": "x\0y"}, "NUL"),
        ({"A": 5}, "string"),
        ({"OSTLER_X": "x"}, "the server's own"),
        ({"SESSION_API_KEY": "x"}, "the server's own"),
        ({"CLAUDECODE": "1"}, "the server's own"),
        ({"HOME": "/x"}, "acp_home"),
        ({"DB": "postgres://user:pass@host/db"}, "holds a password"),
        ({f"A{number}": "x" for number in range(101)}, "at most 100"),
        ({"A": "x" * 70_000}, "bytes"),
    ],
)
def test_what_is_no_variable_is_refused(variables: dict[str, Any], says: str) -> None:
    errors = refused({"acp_command": OWN, "acp_env": variables})
    assert any(says in error.msg for error in errors), errors
    assert all("acp_env" in error.loc for error in errors)


def test_the_server_s_own_names_are_those_that_no_agent_gets() -> None:
    assert (variables.RESERVED, variables.RESERVED_PREFIXES) == (
        environment.RESERVED,
        environment.RESERVED_PREFIXES,
    )


@pytest.mark.parametrize("field", ["acp_home_links", "acp_home_copies"])
@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../../b", "", "."])
def test_homes_are_furnished_from_the_home_alone(field: str, path: str) -> None:
    assert refused({"acp_command": OWN, field: [path]})


def refused(given: dict[str, Any]) -> list[Any]:
    with pytest.raises(SettingsError) as raised:
        decode(given)
    return list(raised.value.errors)
