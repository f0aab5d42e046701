"""PATCH bodies: every rule of how one document becomes the next."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from supervisor.mcp.server import server_errors
from supervisor.settings.document import (
    Rules,
    SettingsDocument,
    apply_change,
    first_document,
    from_stored,
    public,
    to_stored,
)
from supervisor.settings.errors import SettingsEmpty, SettingsError
from supervisor.settings.exposure import ENCRYPTED_START, Expose
from supervisor.settings.merge import MAX_DEPTH

PRESETS = {
    "demo": ("python", "-m", "demo"),
    "claude-code": ("npx", "-y", "claude-agent@1"),
    "codex": ("npx", "-y", "codex@1"),
}
RULES = Rules(PRESETS, server_errors)
OWN = ["/path/agent"]
PROFILE = "12345678-1234-1234-1234-1234567890aB"
MASK = "**********"


def change(*bodies: Any) -> SettingsDocument:
    document = first_document(PRESETS)
    for body in bodies:
        document = apply_change(document, body, RULES)
    return document


def agent(*diffs: dict[str, Any]) -> dict[str, Any]:
    return dict(change(*({"agent_settings_diff": diff} for diff in diffs)).agent_settings)


def test_first_document_runs_the_demo_agent() -> None:
    settings = first_document(PRESETS).agent(PRESETS)
    assert (settings.acp_server, settings.acp_command) == ("demo", PRESETS["demo"])
    assert first_document({"claude-code": ("x",)}).agent_settings["acp_server"] == "claude-code"


@pytest.mark.parametrize(
    ("diffs", "server", "command"),
    [
        # Choosing a preset fills its command in, whatever was there.
        ([{"agent_kind": "acp", "acp_server": "codex"}], "codex", PRESETS["codex"]),
        ([{"acp_server": "codex", "acp_command": None}], "codex", PRESETS["codex"]),
        ([{"acp_server": "custom", "acp_command": OWN}, {"acp_server": "codex"}], "codex", PRESETS["codex"]),
        ([{"acp_server": "codex", "acp_command": OWN}, {"acp_server": "codex"}], "codex", PRESETS["codex"]),
        # A command means the preset that it is of; one of nobody's is custom.
        ([{"acp_command": list(PRESETS["codex"])}], "codex", PRESETS["codex"]),
        ([{"acp_server": "custom", "acp_command": list(PRESETS["codex"])}], "codex", PRESETS["codex"]),
        ([{"acp_command": OWN}], "custom", OWN),
        ([{"acp_server": "claude-code", "acp_command": OWN}], "claude-code", OWN),
        # Emptying or resetting the command goes back to the provider's.
        ([{"acp_server": "codex", "acp_command": OWN}, {"acp_command": []}], "codex", PRESETS["codex"]),
        ([{"acp_server": "codex", "acp_command": OWN}, {"acp_command": None}], "codex", PRESETS["codex"]),
        # Repeating custom keeps its command; unrelated changes touch neither.
        ([{"acp_command": OWN}, {"acp_server": "custom", "acp_model": "m"}], "custom", OWN),
        ([{"acp_server": "codex", "acp_command": OWN}, {"acp_model": "m"}], "codex", OWN),
        # Resetting the provider goes back to the wire's default.
        ([{"acp_server": "codex"}, {"acp_server": None}], "claude-code", PRESETS["claude-code"]),
    ],
)
def test_provider_and_command_follow_each_other(diffs: Any, server: str, command: Any) -> None:
    settings = agent(*diffs)
    assert (settings["acp_server"], settings["acp_command"]) == (server, list(command))


RESTORED = [
    # What was set before the built-in agent was chosen.
    (
        [{"acp_server": "codex"}, {"acp_model": "m"}, {"agent_kind": "openhands"}, {"agent_kind": "acp"}],
        ("codex", PRESETS["codex"], "m"),
    ),
    (
        [{"acp_server": "codex", "acp_model": "m"}, {"agent_kind": "openhands"},
         {"agent_kind": "acp", "acp_server": "demo"}],
        ("demo", PRESETS["demo"], "m"),
    ),
    ([{"agent_kind": "openhands"}, {"agent_kind": "acp", "acp_server": None}],
     ("claude-code", PRESETS["claude-code"], None)),
    # The command of a custom agent.
    ([{"acp_command": OWN}, {"acp_server": "codex"}, {"acp_server": "custom"}], ("custom", tuple(OWN), None)),
    (
        [{"acp_command": OWN}, {"acp_server": "codex"}, {"agent_kind": "openhands"},
         {"agent_kind": "acp", "acp_server": "custom"}],
        ("custom", tuple(OWN), None),
    ),
    (
        [{"acp_command": OWN}, {"agent_kind": "openhands"}, {"agent_kind": "acp"}],
        ("custom", tuple(OWN), None),
    ),
    (
        [{"acp_command": OWN}, {"agent_kind": "openhands"}, {"agent_kind": "acp", "acp_server": "codex"},
         {"acp_server": "custom"}],
        ("custom", tuple(OWN), None),
    ),
    (
        [{"acp_command": ["old"]}, {"acp_command": OWN}, {"acp_server": "custom"}],
        ("custom", tuple(OWN), None),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("diffs", "wanted"), RESTORED)
def test_a_change_can_restore_what_was_set(diffs: Any, wanted: Any) -> None:
    document = change(*({"agent_settings_diff": diff, "restore": True} for diff in diffs))
    settings = document.agent_settings
    found = (settings["acp_server"], tuple(settings["acp_command"]), settings["acp_model"])
    assert found == wanted
    assert "left" not in public(document, Expose.PLAINTEXT)
    assert from_stored(to_stored(document, PRESETS), PRESETS) == document


def test_the_model_of_the_built_in_agent_is_restored_and_sealed() -> None:
    model = {"model": "x", "api_key": "the-key"}
    document = change(
        {"agent_settings_diff": {"agent_kind": "openhands", "llm": model}},
        {"agent_settings_diff": {"agent_kind": "acp", "acp_server": "demo"}},
    )
    assert "the-key" not in repr(document)
    stored = to_stored(document, PRESETS, Backwards())
    assert "the-key" not in json.dumps(stored)
    assert from_stored(stored, PRESETS, Backwards()) == document
    back = apply_change(
        document, {"agent_settings_diff": {"agent_kind": "openhands"}, "restore": True}, RULES
    )
    assert (back.agent_settings["llm"]["model"], back.agent_settings["llm"]["api_key"]) == ("x", "the-key")


def test_a_custom_agent_without_any_command_is_refused() -> None:
    # Clients of the wire see one that they do not know as `custom`, and may send it back.
    assert agent({"acp_server": "demo"}, {"acp_server": "custom"})["acp_server"] == "demo"
    with pytest.raises(SettingsError, match="needs a command"):
        change({"agent_settings_diff": {"acp_server": "custom"}, "restore": True})


class Backwards:
    """A cipher for tests."""

    def encrypt(self, value: bytes) -> str:
        return f"{ENCRYPTED_START}{value.decode()[::-1]}"

    def decrypt(self, value: str) -> bytes:
        return value.removeprefix(ENCRYPTED_START)[::-1].encode()


def test_agent_diff_merges_recursively_and_null_resets() -> None:
    servers = {
        "a": {"command": "x", "env": {"K": "1", "L": "2"}, "args": ["1", "2"]},
        "b": {"url": "https://x"},
    }
    settings = agent(
        {"mcp_config": servers, "acp_model": "m", "acp_prompt_timeout": 5, "acp_args": ["a", "b"]},
        {
            "mcp_config": {"a": {"env": {"K": None, "M": "3"}, "args": ["3"]}, "b": None},
            "acp_model": None,
            "acp_prompt_timeout": None,
            "acp_args": ["c"],
        },
    )
    assert settings["mcp_config"] == {"a": {"command": "x", "env": {"L": "2", "M": "3"}, "args": ["3"]}}
    assert (settings["acp_model"], settings["acp_prompt_timeout"], settings["acp_args"]) == (
        None,
        1800.0,
        ["c"],
    )
    assert settings["acp_server"] == "demo"


def test_changing_the_kind_starts_from_its_defaults() -> None:
    before = {"mcp_config": {"a": {"command": "x"}}, "acp_model": "m", "acp_server": "codex"}
    built_in = agent(before, {"agent_kind": "openhands", "llm": {"model": "x"}})
    assert built_in["agent_kind"] == "openhands"
    assert built_in["mcp_config"] == {}
    assert (built_in["llm"]["model"], built_in["llm"]["num_retries"]) == ("x", 5)
    assert "acp_model" not in built_in
    back = agent(before, {"agent_kind": "openhands"}, {"agent_kind": "acp", "acp_server": "codex"})
    assert (back["mcp_config"], back["acp_model"], back["acp_server"]) == ({}, None, "codex")
    assert "llm" not in back
    # Naming the kind that it is already changes nothing else.
    assert agent(before, {"agent_kind": "acp"})["acp_model"] == "m"


def test_the_built_in_agent_is_kept_whole() -> None:
    document = change(
        {"agent_settings_diff": {"agent_kind": "llm", "llm": {"model": "x", "api_key": "k"}}},
        {
            "agent_settings_diff": {
                "llm": {"model": None},
                "tools": [{"name": "terminal"}],
                "mcp_config": {"a": {"command": "x"}},
            }
        },
    )
    assert (document.agent_settings["llm"]["model"], document.agent_settings["llm"]["api_key"]) == (
        "gpt-5.6",
        "k",
    )
    assert document.agent_settings["tools"] == [{"name": "terminal", "params": {}}]
    assert document.agent_settings["agent_kind"] == "openhands"
    with pytest.raises(SettingsError, match="name an ACP agent"):
        document.agent(PRESETS)
    assert agent({"agent_kind": "openhands"}, {"agent_kind": None})["agent_kind"] == "acp"


@pytest.mark.parametrize("blank", ["", MASK])
def test_blank_and_redacted_secrets_erase(blank: str) -> None:
    first = {
        "mcp_config": {
            "a": {"command": "x", "env": {"K": "1", "L": "2"}},
            "b": {"url": "https://x", "headers": {"A": "1"}, "auth": {"strategy": "bearer", "value": "t"}},
        }
    }
    second = {
        "mcp_config": {
            "a": {"env": {"K": blank}},
            "b": {"headers": {"A": blank}, "auth": {"value": blank}},
            "c": {"command": blank or "x", "env": {"N": blank}},
        }
    }
    assert agent(first, second)["mcp_config"] == {
        "a": {"command": "x", "env": {"L": "2"}},
        "b": {"url": "https://x", "headers": {}, "auth": {"strategy": "bearer"}},
        "c": {"command": blank or "x", "env": {}},
    }


def test_conversation_settings() -> None:
    document = change(
        {"conversation_settings_diff": {"max_iterations": 7, "security_analyzer": "llm", "unknown": 1}},
        {"conversation_settings_diff": {"security_analyzer": None, "container_cpus": 1.5}},
    )
    assert document.conversation_settings == {
        **first_document(PRESETS).conversation_settings,
        "max_iterations": 7,
        "security_analyzer": None,
        "container_cpus": 1.5,
    }


def test_misc_settings() -> None:
    document = change(
        {"misc_settings_diff": {"app_preferences": {"language": "de", "a": 1}, "x": 1}},
        {"misc_settings_diff": {"app_preferences": {"a": None}, "x": None}},
    )
    assert document.misc_settings == {"app_preferences": {"language": "de"}}


def test_pointers() -> None:
    body = {"active_profile": "p", "active_agent_profile_id": PROFILE, "active_meta_profile": "m.1"}
    document = change(body)
    assert (document.active_profile, document.active_meta_profile) == ("p", "m.1")
    assert document.active_agent_profile_id == PROFILE.lower()
    assert change(body, dict.fromkeys(body)) == first_document(PRESETS)


@pytest.mark.parametrize(
    "body", [{}, {"agent_settings_diff": None}, dict.fromkeys(("misc_settings_diff",)), {"unknown": 1}]
)
def test_empty(body: Any) -> None:
    with pytest.raises(SettingsEmpty, match="at least one of"):
        change(body)


def test_unknown_keys_beside_a_change_are_ignored() -> None:
    assert change({"misc_settings_diff": {}, "unknown": 1}) == first_document(PRESETS)


def deep() -> Any:
    value: Any = 1
    for _ in range(MAX_DEPTH):
        value = {"a": value}
    return {"misc_settings_diff": value}


@pytest.mark.parametrize(
    ("body", "locs"),
    [
        ([], [()]),
        (None, [()]),
        (deep(), [()]),
        ({"agent_settings_diff": []}, [("agent_settings_diff",)]),
        ({"agent_settings_diff": {"acp_command": "a b"}}, [("agent_settings_diff", "acp_command")]),
        (
            # The demo agent is `custom` to clients; a custom agent from there on needs a command of its own.
            {"agent_settings_diff": {"acp_server": "custom", "acp_command": []}},
            [("agent_settings_diff", "acp_command")],
        ),
        ({"agent_settings_diff": {"agent_kind": "x"}}, [("agent_settings_diff", "agent_kind")]),
        ({"agent_settings_diff": {"llm": {}}}, [("agent_settings_diff", "llm")]),
        (
            {"agent_settings_diff": {"mcp_config": {"a": {"command": "x", "bad": 1}}}},
            [("agent_settings_diff", "mcp_config", "a", "bad")],
        ),
        (
            {"agent_settings_diff": {"agent_kind": "openhands", "llm": 1, "mcp_config": {"a": 1}}},
            [("agent_settings_diff", "mcp_config", "a"), ("agent_settings_diff", "llm")],
        ),
        (
            {"conversation_settings_diff": {"max_iterations": None}},
            [("conversation_settings_diff", "max_iterations")],
        ),
        (
            {"conversation_settings_diff": {"max_iterations": 0}},
            [("conversation_settings_diff", "max_iterations")],
        ),
        (
            {"conversation_settings_diff": {"default_runtime": "x"}},
            [("conversation_settings_diff", "default_runtime")],
        ),
        ({"misc_settings_diff": "x"}, [("misc_settings_diff",)]),
        ({"active_profile": "../x"}, [("active_profile",)]),
        ({"active_profile": "x\n"}, [("active_profile",)]),
        ({"active_agent_profile_id": "x"}, [("active_agent_profile_id",)]),
        ({"active_meta_profile": 1}, [("active_meta_profile",)]),
        (
            {
                "agent_settings_diff": {"acp_model": 1},
                "conversation_settings_diff": {"confirmation_mode": 1},
                "misc_settings_diff": {},
            },
            [("agent_settings_diff", "acp_model"), ("conversation_settings_diff", "confirmation_mode")],
        ),
    ],
)
def test_refused(body: Any, locs: list[tuple[str, ...]]) -> None:
    with pytest.raises(SettingsError) as caught:
        change(body)
    found = [error.loc for error in caught.value.errors]
    assert sorted(found, key=str) == sorted([("body", *loc) for loc in locs], key=str)


def test_document_hides_what_it_holds() -> None:
    document = change({"agent_settings_diff": {"mcp_config": {"a": {"command": "x", "env": {"K": "sk-1"}}}}})
    assert "sk-1" not in repr(document)
    assert "sk-1" in str(attrs.asdict(document))
