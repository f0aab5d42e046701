"""The built-in agent's settings: accepted, kept whole, changed by merge patches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from supervisor.documents.files import FileDocuments
from supervisor.mcp.server import server_errors
from supervisor.settings.document import Rules, apply_change, first_document
from supervisor.settings.errors import SettingsError
from supervisor.settings.openhands import openhands_from_stored
from supervisor.settings.profiles.llm_profiles import LlmProfileStore, MetaProfileStore
from supervisor.settings.profiles.materialize import Channels, materialize
from supervisor.settings.profiles.profile import decode_profile
from supervisor.settings.profiles.profiles import AgentProfileStore
from supervisor.settings.schema import agent_schema, conversation_schema
from supervisor.settings.storage.store import SettingsStore

PRESETS = {"demo": ("demo",), "claude-code": ("npx", "claude@1")}
RULES = Rules(PRESETS, server_errors)


def agent(*diffs: dict[str, Any]) -> dict[str, Any]:
    document = first_document(PRESETS)
    for diff in diffs:
        document = apply_change(document, {"agent_settings_diff": diff}, RULES)
    return dict(document.agent_settings)


OPENHANDS = {"agent_kind": "openhands"}


def test_a_kind_begins_with_all_of_its_defaults() -> None:
    settings = agent(OPENHANDS)
    assert set(settings) == {
        *("schema_version", "agent_kind", "agent", "llm", "tools", "enable_classify_and_switch_llm_tool"),
        *("active_meta_profile", "meta_profile", "meta_profile_llms", "tool_concurrency_limit", "mcp_config"),
        *("persona", "agent_context", "condenser", "verification"),
    }
    assert (settings["schema_version"], settings["agent"], settings["tools"]) == (9, "CodeActAgent", None)
    assert (settings["llm"]["model"], settings["llm"]["api_key"]) == ("gpt-5.6", None)
    assert settings["condenser"] == {
        "condenser_kind": "llm_summarizing",
        "enabled": True,
        "max_size": 240,
        "max_tokens": None,
        "keep_first": 2,
        "minimum_progress": 0.1,
        "hard_context_reset_max_retries": 5,
        "hard_context_reset_context_scaling": 0.8,
    }
    assert settings["agent_context"]["marketplace_path"] == "marketplaces/default.json"
    assert agent({"agent_kind": "llm"}) == settings


def test_changes_merge_and_null_goes_back_to_the_default() -> None:
    settings = agent(
        {
            "agent_kind": "openhands",
            "llm": {
                "model": "m",
                "api_key": "k",
                "temperature": 1,
                "litellm_extra_body": {"a": {"b": 1, "c": 2}},
            },
            "tools": [{"name": "terminal"}],
            "condenser": {"max_size": 20},
            "mcp_config": {"x": {"command": "x"}},
        },
        {
            "llm": {"temperature": None, "litellm_extra_body": {"a": {"b": None}}, "num_retries": 2},
            "tools": None,
            "condenser": {"condenser_kind": "no_op"},
            "verification": {"critic_enabled": True},
            "unknown": 1,
        },
    )
    assert (settings["llm"]["model"], settings["llm"]["api_key"]) == ("m", "k")
    assert (settings["llm"]["temperature"], settings["llm"]["num_retries"]) == (None, 2)
    assert settings["llm"]["litellm_extra_body"] == {"a": {"c": 2}}
    assert (settings["tools"], settings["condenser"]) == (
        None,
        {"condenser_kind": "no_op", "enabled": True},
    )
    assert (settings["verification"]["critic_enabled"], settings["mcp_config"]) == (
        True,
        {"x": {"command": "x"}},
    )
    assert "unknown" not in settings
    # A change without a kind is of the present one; the other kind begins anew.
    assert (
        agent({**OPENHANDS, "llm": {"model": "m"}}, {"agent_kind": "acp"}, OPENHANDS)["llm"]["model"]
        == "gpt-5.6"
    )


@pytest.mark.parametrize("blank", ["", "**********"])
def test_blank_and_redacted_secrets_erase(blank: str) -> None:
    first = {
        **OPENHANDS,
        "llm": {"model": "m", "api_key": "k"},
        "verification": {"critic_api_key": "c"},
        "mcp_config": {"x": {"command": "x", "env": {"A": "1", "B": "2"}}},
    }
    second = {
        "llm": {"api_key": blank},
        "verification": {"critic_api_key": blank},
        "mcp_config": {"x": {"env": {"A": blank}}},
    }
    settings = agent(first, second)
    assert (settings["llm"]["api_key"], settings["verification"]["critic_api_key"]) == (None, None)
    assert settings["mcp_config"]["x"]["env"] == {"B": "2"}


@pytest.mark.parametrize(
    ("diff", "loc", "kind"),
    [
        ({"llm": {"model": ""}}, ("llm", "model"), "string_too_short"),
        ({"llm": {"top_p": 2}}, ("llm", "top_p"), "less_than_equal"),
        ({"llm": "m"}, ("llm",), "dict_type"),
        ({"tools": [{}]}, ("tools", 0, "name"), "missing"),
        ({"condenser": {"condenser_kind": "x"}}, ("condenser", "condenser_kind"), "union_tag_invalid"),
        ({"condenser": {"minimum_progress": 1}}, ("condenser", "minimum_progress"), "less_than"),
        ({"condenser": {"max_size": 1}}, ("condenser", "max_size"), "greater_than_equal"),
        ({"verification": {"critic_mode": "x"}}, ("verification", "critic_mode"), "enum"),
        ({"persona": ""}, ("persona",), "string_too_short"),
        ({"tool_concurrency_limit": 0}, ("tool_concurrency_limit",), "greater_than_equal"),
        ({"enable_sub_agents": True}, ("enable_sub_agents",), "extra_forbidden"),
        ({"mcp_config": {"a": {"command": "x", "bad": 1}}}, ("mcp_config", "a", "bad"), "extra_forbidden"),
    ],
)
def test_what_does_not_fit_is_refused_with_its_place(diff: dict[str, Any], loc: Any, kind: str) -> None:
    with pytest.raises(SettingsError) as caught:
        agent({**OPENHANDS, **diff})
    assert [(each.loc, each.type) for each in caught.value.errors] == [
        (("body", "agent_settings_diff", *loc), kind)
    ]


async def test_a_document_of_an_earlier_release_is_completed(tmp_path: Path) -> None:
    stored = {
        "version": 1,
        "agent_settings": {
            "schema_version": 9,
            "agent_kind": "openhands",
            "llm": {"model": "m", "api_key": "k"},
            "tools": [1],
            "mcp_config": {"x": {"command": "x"}},
            "agent_context": {},
        },
        "conversation_settings": {},
        "misc_settings": {},
        **dict.fromkeys(("active_profile", "active_agent_profile_id", "active_meta_profile")),
    }
    (tmp_path / "settings.json").write_text(json.dumps(stored))
    settings = (await SettingsStore(FileDocuments(tmp_path), PRESETS, server_errors).get()).agent_settings
    assert (settings["llm"]["api_key"], settings["tools"]) == ("k", None)
    assert settings["mcp_config"] == {"x": {"command": "x"}}
    assert settings["condenser"]["max_size"] == 240


@pytest.mark.parametrize(
    ("wrong", "kept"),
    [
        ({"llm": {"model": "m", "api_key": "k", "temperature": "hot"}}, {"model": "m", "api_key": "k"}),
        ({"llm": {"model": "m", "top_p": 7, "num_retries": -1, "seed": 3}}, {"model": "m", "seed": 3}),
        (
            {"llm": {"model": "m", "capability_overrides": {"a": True, "b": []}}},
            {"capability_overrides": {"a": True}},
        ),
    ],
)
def test_what_stands_beside_a_stored_value_that_does_not_fit_stays(wrong: Any, kept: dict[str, Any]) -> None:
    with capture_logs() as logged:
        found = openhands_from_stored({**OPENHANDS, "persona": "Be kind.", **wrong})
    assert {name: found["llm"][name] for name in kept} == kept
    assert found["persona"] == "Be kind."
    assert [each["log_level"] for each in logged] == ["warning"]
    assert "llm." in logged[0]["reason"]
    assert "hot" not in str(logged)


@pytest.mark.parametrize(
    ("stored", "tools"),
    [
        ([{"name": "a"}, {"name": ""}, {"params": {}}, 1, {"name": "b"}], ["a", "b"]),
        ([{"name": ""}, 1], None),
        (5, None),
        ([], []),
    ],
)
def test_of_a_stored_list_the_items_that_fit_stay(stored: Any, tools: list[str] | None) -> None:
    found = openhands_from_stored({**OPENHANDS, "tools": stored})["tools"]
    assert tools == (None if found is None else [each["name"] for each in found])


def test_many_stored_values_that_do_not_fit_end() -> None:
    many = {f"m{number}": {"model": "m", "temperature": "hot"} for number in range(250)}
    found = openhands_from_stored({**OPENHANDS, "meta_profile_llms": many, "condenser": {"max_size": 0}})
    assert len(found["meta_profile_llms"]) == 250
    assert found["condenser"]["max_size"] == 240


def test_every_field_of_the_pages_can_be_set() -> None:
    kinds = {
        None: OPENHANDS,
        "openhands": OPENHANDS,
        "acp": {"agent_kind": "acp", "acp_server": "claude-code"},
    }
    for section in agent_schema(PRESETS)["sections"]:
        for field in section["fields"]:
            diff: Any = field["default"]
            for part in reversed(field["key"].split(".")):
                diff = {part: diff}
            settings = agent(kinds[section["variant"]], diff)
            found: Any = settings
            for part in field["key"].split("."):
                found = found[part]
            assert found == (
                list(PRESETS["claude-code"]) if field["key"] == "acp_command" else field["default"]
            )
            for choice in field["choices"]:
                assert choice["value"] is not None
    keys = [(section["key"], section["variant"]) for section in agent_schema(PRESETS)["sections"]]
    assert keys == [
        ("general", None),
        *((key, "openhands") for key in ("llm", "agent_context", "condenser", "verification")),
        ("acp", "acp"),
    ]
    secret = {f["key"] for s in agent_schema(PRESETS)["sections"] for f in s["fields"] if f["secret"]}
    assert secret == {
        "llm.api_key",
        "llm.aws_access_key_id",
        "llm.aws_secret_access_key",
        "llm.aws_session_token",
        "verification.critic_api_key",
    }
    by_key = {f["key"]: f for s in conversation_schema()["sections"] for f in s["fields"]}
    assert by_key["security_analyzer"]["default"] == "llm"
    assert by_key["worktree_base_ref"]["depends_on"] == ["default_runtime=worktree", "worktree_base=ref"]


PROFILE = {"agent_kind": "openhands", "llm_profile_ref": "mine"}


@pytest.mark.parametrize(
    ("body", "loc", "kind"),
    [
        ({"agent_kind": "openhands"}, ("llm_profile_ref",), "missing"),
        ({**PROFILE, "llm_profile_ref": ""}, ("llm_profile_ref",), "string_too_short"),
        ({**PROFILE, "acp_server": "codex"}, ("acp_server",), "extra_forbidden"),
        ({**PROFILE, "enable_sub_agents": True}, ("enable_sub_agents",), "extra_forbidden"),
        (
            {**PROFILE, "verification": {"critic_threshold": 2}},
            ("verification", "critic_threshold"),
            "less_than_equal",
        ),
        ({**PROFILE, "tools": [{"name": ""}]}, ("tools", 0, "name"), "string_too_short"),
    ],
)
def test_a_bad_profile_is_refused_with_its_place(body: dict[str, Any], loc: Any, kind: str) -> None:
    with pytest.raises(SettingsError) as caught:
        decode_profile(body, "p", PRESETS)
    assert [(each.loc, each.type) for each in caught.value.errors] == [(("body", *loc), kind)]


async def test_materialize_says_where_references_lead(tmp_path: Path) -> None:
    settings = SettingsStore(FileDocuments(tmp_path), PRESETS, server_errors)
    agents = AgentProfileStore(settings)
    body = {**PROFILE, "mcp_server_refs": ["a", "gone", "a"], "meta_profile_ref": "route", "secret_refs": []}
    profile = await agents.save("p", body)
    await settings.patch(
        {"agent_settings_diff": {"mcp_config": {"a": {"command": "x", "env": {"K": "s3cr3t"}}}}}
    )
    found = await materialize(agents, profile, {})
    assert found["valid"] is False
    assert (found["agent_kind"], found["llm_profile_ref"], found["llm_profile_resolved"]) == (
        "openhands",
        "mine",
        False,
    )
    assert (found["resolved_mcp_config_keys"], found["dangling_mcp_server_refs"]) == (["a"], ["gone"])
    assert (found["dangling_meta_profile_ref"], found["secret_refs"], found["resolved_settings"]) == (
        "route",
        [],
        None,
    )
    assert "LLM profile 'mine' not found" in found["errors"]

    await LlmProfileStore(agents).save("mine", {"model": "m", "api_key": "s3cr3t"})
    await MetaProfileStore(settings).save(
        "route", {"classifier_model": "mine", "classes": [{"description": "d", "model": "none"}]}
    )
    found = await materialize(agents, profile, {})
    assert found["dangling_meta_profile_llm_refs"] == ["none"]
    whole = await agents.save("q", {**PROFILE, "mcp_server_refs": ["a"]})
    found = await materialize(agents, whole, {})
    assert (found["llm_profile_resolved"], found["llm_api_key_set"]) == (True, True)
    assert (found["valid"], found["errors"]) == (True, [])
    assert found["resolved_settings"]["llm"]["model"] == "m"
    assert found["resolved_settings"]["mcp_config"]["a"]["env"] == {"K": "**********"}
    assert "s3cr3t" not in str(found)

    external = await agents.save("e", {"acp_server": "claude-code", "acp_model": "opus"})
    channel = Channels(api_key="ANTHROPIC_API_KEY", base_url="ANTHROPIC_BASE_URL", files=("F",))
    found = await materialize(agents, external, {"claude-code": channel})
    assert (found["valid"], found["errors"]) == (True, [])
    assert (found["acp_api_key_secret_name"], found["acp_file_secret_names"]) == ("ANTHROPIC_API_KEY", ["F"])
    resolved = found["resolved_settings"]
    assert resolved["agent_context"] == {
        **dict.fromkeys(("system_message_suffix", "user_message_suffix", "secrets", "current_datetime")),
        **{key: [] for key in ("skills", "registered_marketplaces", "disabled_skills")},
        **dict.fromkeys(
            ("load_user_skills", "load_public_skills", "load_project_skills", "load_memory"), False
        ),
        "marketplace_path": "marketplaces/default.json",
    }
    assert (resolved["acp_server"], resolved["acp_command"], resolved["acp_model"]) == (
        "claude-code",
        [],
        "opus",
    )
    assert "s3cr3t" not in str(found)


async def test_what_an_acp_agents_context_has_is_told_with_the_rest(tmp_path: Path) -> None:
    settings = SettingsStore(FileDocuments(tmp_path), PRESETS, server_errors)
    agents = AgentProfileStore(settings)
    context = {"system_message_suffix": "Be brief.", "secrets": {"A": "s3cr3t"}}
    await settings.patch({"agent_settings_diff": {"agent_context": context}})
    found = await materialize(agents, await agents.save("e", {"acp_server": "claude-code"}), {})
    resolved = found["resolved_settings"]["agent_context"]
    assert (resolved["system_message_suffix"], resolved["secrets"]) == ("Be brief.", {"A": "**********"})
    assert (resolved["skills"], resolved["load_memory"]) == ([], False)
