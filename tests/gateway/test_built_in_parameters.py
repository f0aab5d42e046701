"""All that a start request can say of the built-in agent: passed on, used here, or told to have no effect."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from supervisor.conversations.built_in.requests import parameters, title_parameters
from supervisor.conversations.state.record import ConversationRecord, Start
from supervisor.conversations.state.start import StartRequest
from supervisor.events import Vocabulary
from supervisor.settings.agent import BuiltInSettings

pytestmark = pytest.mark.guarantee(name="a-setting-counts-or-the-server-does-not-start")

BASE = "/api/conversations"
DOCS = Path(__file__).resolve().parents[2] / "docs"
ID = "11111111-2222-4333-8444-555555555555"
AGENT = {"kind": "Agent", "llm": {"model": "m"}, "filter_tools_regex": "x", "persona": "A pirate."}

PASSED_ON: dict[str, Any] = {
    "agent": AGENT,
    "agent_definitions": [{"name": "helper"}],
    "agent_launch_additions": {
        "system_message_suffix_append": "Be brief.",
        "skills": [{"name": "knock", "content": "Twice."}],
        "llm_profile_ref": None,
    },
    "client_tools": [{"name": "ring", "description": "", "parameters": {}}],
    "confirmation_policy": {"kind": "AlwaysConfirm"},
    "conversation_id": ID,
    "hook_config": {"stop": [{"matcher": "*", "hooks": [{"command": "true"}]}]},
    "max_budget_per_run": 0.5,
    "max_iterations": 7,
    "observability_metadata": {"a": 1},
    "observability_parent_span_context": "{}",
    "observability_span_name": "a/b",
    "observability_tags": ["t"],
    "plugins": [{"source": "p"}],
    "security_analyzer": {"kind": "PatternSecurityAnalyzer"},
    "stuck_detection": False,
    "stuck_detection_thresholds": {
        "action_observation": 2,
        "action_error": 3,
        "monologue": 3,
        "alternating_pattern": 6,
    },
    "tags": {"a": "b"},
    "tool_module_qualnames": {"ring": "ring.tool"},
    "user_id": "u",
}
"""By field, what is said; the program gets it under the same name."""

USED_HERE = {
    "agent_profile_id",
    "agent_settings",
    "autotitle",
    "conversation_runtime",
    "initial_message",
    "parent_conversation_id",
    "prompt",
    "secrets",
    "secrets_encrypted",
    "title_llm_profile",
    "workspace",
}
"""The first and the second name the agent in other words; the tests of start requests show the others."""

WITHOUT_EFFECT = {"container", "worktree", "worktree_options"}

OWN = {"max_budget_per_run", "stuck_detection_thresholds"}
"""Not fields of the peer's request: its library has them, and its client sends the second."""


def record_of(request: StartRequest) -> ConversationRecord:
    """The record that a conversation is created with."""
    fixed = ("working_dir", "max_iterations", "stuck_detection")
    start = Start(
        created_at="", vocabulary=Vocabulary.EXTENDED, **{name: getattr(request, name) for name in fixed}
    )
    same = ("agent", "tags", "confirmation_policy", "security_analyzer", "extra")
    given = {name: getattr(request, name) for name in same}
    return ConversationRecord(id=str(request.conversation_id), updated_at="", start=start, **given)


def test_no_field_of_the_peer_is_forgotten() -> None:
    peer = json.loads((DOCS / "compatibility/peer.json").read_text())["operations"]
    told = PASSED_ON.keys() | USED_HERE | WITHOUT_EFFECT
    assert told - OWN == set(peer["POST /api/conversations"]["body"])
    assert len(told) == len(PASSED_ON) + len(USED_HERE) + len(WITHOUT_EFFECT)
    page = (DOCS / "built-in-agent.md").read_text()
    for name in WITHOUT_EFFECT | OWN:
        assert f"`{name}`" in page, name


async def test_the_program_gets_what_was_said(gateway: Any) -> None:
    given = {
        **PASSED_ON,
        "workspace": {"working_dir": "/w"},
        "title_llm_profile": "fast",
        "prompt": "Name {conversation_content}",
        "worktree": True,
        "worktree_options": {"base": "head"},
        "container": {"memory": "4g"},
        "conversation_runtime": "local",
    }
    status, info = await gateway.call("POST", BASE, given)
    assert status == 201, info
    record = record_of(gateway.supervisor.conversations[info["id"]].request)
    profiles = {"llm_profiles": {"fast": {"model": "f"}}, "meta_profiles": {}}
    assert isinstance(record.agent, BuiltInSettings)
    got = parameters(record, record.agent, {"TOKEN": "t"}, profiles, Path("/data"))
    hooks = got.pop("hook_config")["stop"][0]["hooks"][0]
    assert hooks["command"] == "true"
    wanted = {name: value for name, value in PASSED_ON.items() if name != "hook_config"}
    own = {"persistence_dir": f"/data/{ID}/memory", "secrets": {"TOKEN": "t"}, "project_hooks": False}
    assert got == {**wanted, **own, **profiles}
    assert title_parameters(record) == {"profile": "fast", "prompt": given["prompt"]}


async def test_lasting_memory_of_the_settings_is_for_every_agent(gateway: Any) -> None:
    async def extra() -> dict[str, Any]:
        status, info = await gateway.call("POST", BASE, {"agent": AGENT, "workspace": {"working_dir": "/w"}})
        assert status == 201
        return dict(gateway.supervisor.conversations[info["id"]].request.extra)

    assert "load_memory" not in await extra()
    context = {"agent_settings_diff": {"agent_kind": "openhands", "agent_context": {"load_memory": True}}}
    assert (await gateway.call("PATCH", "/api/settings", context))[0] == 200
    assert (await extra())["load_memory"] is True


@pytest.mark.parametrize(
    ("said", "loc"),
    [
        ({"agent_launch_additions": {"more": 1}}, ["agent_launch_additions", "more"]),
        ({"agent_launch_additions": {"llm_profile_ref": "x"}}, ["agent_launch_additions", "llm_profile_ref"]),
        (
            {"agent_launch_additions": {"system_message_suffix_append": "x" * 32769}},
            ["agent_launch_additions", "system_message_suffix_append"],
        ),
        ({"agent_launch_additions": {"skills": ["x"]}}, ["agent_launch_additions", "skills", 0]),
        ({"conversation_runtime": "docker"}, ["conversation_runtime"]),
        ({"max_budget_per_run": 0}, ["max_budget_per_run"]),
        ({"max_budget_per_run": "1"}, ["max_budget_per_run"]),
        ({"observability_span_name": "a b"}, ["observability_span_name"]),
        ({"observability_tags": [""]}, ["observability_tags", 0]),
        ({"observability_metadata": []}, ["observability_metadata"]),
        ({"prompt": "x" * 2001}, ["prompt"]),
        ({"stuck_detection_thresholds": {"monologue": 0}}, ["stuck_detection_thresholds", "monologue"]),
        ({"title_llm_profile": 1}, ["title_llm_profile"]),
        ({"user_id": 1}, ["user_id"]),
    ],
)
async def test_what_is_wrong_is_refused_where_it_stands(gateway: Any, said: Any, loc: list[Any]) -> None:
    body = {"agent": AGENT, "workspace": {"working_dir": "/w"}, **said}
    status, answer = await gateway.call("POST", BASE, body)
    assert status == 422, answer
    assert answer["detail"][0]["loc"] == ["body", *loc]


async def test_a_profile_is_launched_with_another_model(gateway: Any) -> None:
    for name in ("usual", "other"):
        await gateway.call("POST", f"/api/profiles/{name}", {"llm": {"model": name}})
    profile = {
        "agent_kind": "openhands",
        "llm_profile_ref": "usual",
        "verification": {"critic_enabled": True},
    }
    assert (await gateway.call("POST", "/api/agent-profiles/mine", profile))[0] == 201
    settings = {"agent_kind": "openhands", "verification": {"critic_api_key": "sk-of-the-critic"}}
    assert (await gateway.call("PATCH", "/api/settings", {"agent_settings_diff": settings}))[0] == 200
    _, listed = await gateway.call("GET", "/api/agent-profiles")
    profile_id = next(each["id"] for each in listed["profiles"] if each["name"] == "mine")

    async def start(ref: str | None) -> tuple[int, Any]:
        added = {"llm_profile_ref": ref}
        return await gateway.call(  # type: ignore[no-any-return]
            "POST",
            BASE,
            {
                "agent_profile_id": profile_id,
                "agent_launch_additions": added,
                "workspace": {"working_dir": "/w"},
            },
        )

    for ref in ("other", None):
        status, info = await start(ref)
        assert status == 201, info
        request = gateway.supervisor.conversations[info["id"]].request
        made = request.agent.document["agent_settings"]
        assert (made["llm"]["model"], made["llm"]["stream"]) == (ref or "usual", True)
        assert made["agent_context"]["load_user_skills"] is True
        assert made["verification"]["critic_api_key"] == "sk-of-the-critic"
        assert "sk-of-the-critic" not in json.dumps(info)
        assert info["launched_agent_profile"]["llm_profile_ref"] == (ref or "usual")
    assert (await start("nobody"))[0] == 422
    acp = {"agent_kind": "acp", "acp_server": "custom", "acp_command": "agent"}
    assert (await gateway.call("POST", "/api/agent-profiles/acp", acp))[0] == 201
    _, listed = await gateway.call("GET", "/api/agent-profiles")
    profile_id = next(each["id"] for each in listed["profiles"] if each["name"] == "acp")
    assert (await start("other"))[0] == 422
