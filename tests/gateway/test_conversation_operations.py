"""The routes for what is done with a conversation besides talking: shapes, statuses and reasons."""

from __future__ import annotations

import uuid

import attrs
import pytest

from supervisor.conversations.external.kind import NO_CONDENSER, NO_PLUGINS, OWN_MODELS
from supervisor.conversations.state.errors import (
    AgentFailure,
    AgentTimeout,
    AlreadyRunning,
    ConversationExists,
    NotAccepted,
    NotPossible,
    TooManyQuestions,
    UnknownEvent,
)
from supervisor.workspace.access import Access
from tests.workspace.repositories import git, repository

BASE = "/api/conversations"


@pytest.fixture
async def conversation(gateway):
    return await gateway.conversation(title="T", tags={"a": "b"})


async def test_fork(gateway, conversation):
    for body in (None, {}, {"unknown": 1}):
        status, info = await gateway.call("POST", f"{BASE}/{conversation.id}/fork?include_skills=true", body)
        assert (status, info["title"], info["tags"]) == (201, None, {})
        assert info["id"] != conversation.id
    asked = gateway.supervisor.calls[-1][1]
    assert (asked.reset_metrics, asked.from_event_id, asked.tags) == (True, None, None)
    wanted = uuid.uuid4()
    body = {"id": wanted.hex, "title": "Copy", "tags": {}, "reset_metrics": False, "from_event_id": "e"}
    status, info = await gateway.call("POST", f"{BASE}/{conversation.id}/fork", body)
    assert (status, info["id"], info["title"]) == (201, str(wanted), "Copy")
    asked = gateway.supervisor.calls[-1][1]
    assert (asked.reset_metrics, asked.from_event_id, asked.tags) == (False, "e", {})


@pytest.mark.parametrize(("failure", "status"), [(UnknownEvent("e"), 404), (ConversationExists("c"), 409)])
async def test_a_fork_that_is_refused(gateway, conversation, failure, status):
    gateway.supervisor.failure = failure
    assert await gateway.call("POST", f"{BASE}/{conversation.id}/fork", {}) == (
        status,
        {"detail": str(failure)},
    )


async def test_navigate(gateway, conversation):
    for event_id in ("e-1", None):
        status, info = await gateway.call(
            "POST", f"{BASE}/{conversation.id}/navigate", {"event_id": event_id}
        )
        assert (status, info["id"]) == (200, conversation.id)
    assert conversation.calls == [("navigate", "e-1"), ("navigate", None)]
    conversation.failure = AlreadyRunning("it runs")
    assert (await gateway.call("POST", f"{BASE}/{conversation.id}/navigate", {"event_id": "x"}))[0] == 409


async def test_ask_agent(gateway, conversation):
    path = f"{BASE}/{conversation.id}/ask_agent"
    assert await gateway.call("POST", path, {"question": "why"}) == (200, {"response": "You asked: why"})
    for failure, status in (
        (AgentTimeout("ACPPromptError", "late"), 504),
        (AgentFailure("ACPPromptError", "no"), 502),
        (TooManyQuestions("many"), 429),
    ):
        conversation.failure = failure
        assert await gateway.call("POST", path, {"question": "why"}) == (status, {"detail": str(failure)})


async def test_switch_acp_model(gateway, conversation):
    path = f"{BASE}/{conversation.id}/switch_acp_model"
    assert await gateway.call("POST", path, {"model": "large"}) == (200, {"success": True})
    for blank in ("", "  "):
        found = await gateway.call("POST", path, {"model": blank})
        assert found == (400, {"detail": "model must be a non-empty string"})
    conversation.failure = NotAccepted("Unknown model 'x'. The agent offers: a, b.")
    status, body = await gateway.call("POST", path, {"model": "x"})
    assert (status, "a, b" in body["detail"]) == (400, True)
    conversation.failure = AgentTimeout("ACPPromptError", "late")
    assert (await gateway.call("POST", path, {"model": "x"}))[0] == 504
    assert conversation.calls[0] == ("model", "large")


async def test_modes_and_options(gateway, conversation):
    mode, option = (f"{BASE}/{conversation.id}/{name}" for name in ("switch_acp_mode", "set_acp_option"))
    assert await gateway.call("POST", mode, {"mode": "plan"}) == (200, {"success": True})
    for value in (True, "high"):
        body = {"option_id": "effort", "value": value}
        assert await gateway.call("POST", option, body) == (200, {"success": True})
    assert conversation.calls == [("mode", "plan"), ("option", "effort", True), ("option", "effort", "high")]
    for failure, status in (
        (NotAccepted("The agent has no modes."), 400),
        (AgentTimeout("ACPPromptError", "late"), 504),
    ):
        conversation.failure = failure
        assert (await gateway.call("POST", mode, {"mode": "plan"}))[0] == status
        assert (await gateway.call("POST", option, {"option_id": "x", "value": "y"}))[0] == status


async def test_goals(gateway, conversation):
    path = f"{BASE}/{conversation.id}/goal"
    assert await gateway.call("POST", path, {"objective": "win"}) == (200, {"success": True})
    assert await gateway.call("POST", f"{path}/stop") == (200, {"success": True})
    assert await gateway.call("POST", f"{path}/resume") == (200, {"success": True})
    assert conversation.calls == [("goal", "win", 10), ("stop goal",), ("resume goal",)]
    assert await gateway.call("POST", path, {"objective": " "}) == (
        400,
        {"detail": "Goal objective must not be empty."},
    )
    assert (await gateway.call("POST", path, {"objective": "x", "max_iterations": 0}))[0] == 422
    conversation.failure = NotAccepted("no_resumable_goal")
    assert await gateway.call("POST", f"{path}/resume") == (400, {"detail": "no_resumable_goal"})
    conversation.failure = AlreadyRunning("Conversation run or goal loop already running.")
    assert (await gateway.call("POST", path, {"objective": "x"}))[0] == 409


REFUSED = [
    ("condense", None, 409, "Cannot condense conversation: No condenser configured"),
    ("switch_llm", {"llm": {"model": "m", "api_key": "k"}}, 400, "switch_acp_model"),
    ("switch_profile", {"profile_name": "p"}, 400, "switch_acp_model"),
    ("load_plugin", {"plugin_ref": "p@m"}, 400, "plugins"),
]


@pytest.mark.parametrize(("name", "body", "status", "words"), REFUSED)
async def test_what_only_the_built_in_agent_can_do_is_refused_with_a_reason(
    gateway, conversation, name, body, status, words
):
    refusals = {
        409: NotPossible(NO_CONDENSER),
        400: NotAccepted(NO_PLUGINS if "plugin" in name else OWN_MODELS),
    }
    conversation.failure = refusals[status]
    if name == "switch_profile":
        await gateway.call("POST", "/api/profiles/p", {"llm": {"model": "m"}})
    found, answer = await gateway.call("POST", f"{BASE}/{conversation.id}/{name}", body)
    assert (found, words in answer["detail"]) == (status, True)


async def test_what_the_built_in_agent_does_reaches_the_conversation(gateway, conversation):
    llm = {"model": "m", "api_key": "k"}
    await gateway.call("POST", "/api/profiles/p", {"llm": {"model": "n", "api_key": "s"}})
    for name, body in (
        ("condense", None),
        ("switch_llm", {"llm": llm}),
        ("switch_profile", {"profile_name": "p"}),
        ("load_plugin", {"plugin_ref": "p@m"}),
    ):
        assert await gateway.call("POST", f"{BASE}/{conversation.id}/{name}", body) == (
            200,
            {"success": True},
        )
    assert conversation.calls[0] == ("condense",)
    assert llm.items() <= conversation.calls[1][1].items()
    assert (conversation.calls[2][1]["model"], conversation.calls[2][1]["api_key"]) == ("n", "s")
    assert conversation.calls[3] == ("plugin", "p@m")
    status, answer = await gateway.call(
        "POST", f"{BASE}/{conversation.id}/switch_profile", {"profile_name": "gone"}
    )
    assert (status, "gone" in answer["detail"]) == (404, True)
    status, answer = await gateway.call("POST", f"{BASE}/{conversation.id}/switch_llm", {"llm": {"model": 5}})
    assert (status, answer["detail"][0]["loc"]) == (422, ["body", "llm", "model"])


async def test_a_model_is_checked_before_the_agent_gets_it(gateway, conversation):
    path = f"{BASE}/{conversation.id}/switch_llm"
    shown = {"model": "m", "api_key": "**********", "extra_headers": {"X": "**********", "Y": "z"}}
    assert (await gateway.call("POST", path, {"llm": shown}))[0] == 200
    given = conversation.calls[-1][1]
    assert (given["model"], given["api_key"], given["extra_headers"]) == ("m", None, {"Y": "z"})
    large = {"model": "m", "litellm_extra_body": {"x": "y" * 1_100_000}}
    status, answer = await gateway.call("POST", path, {"llm": large})
    assert (status, answer["detail"][0]["loc"]) == (422, ["body", "llm"])
    assert len(conversation.calls) == 1


@pytest.mark.parametrize(
    ("method", "name", "body"),
    [
        ("POST", "fork", {}),
        ("POST", "navigate", {"event_id": None}),
        ("POST", "ask_agent", {"question": "q"}),
        ("POST", "switch_acp_model", {"model": "m"}),
        ("POST", "switch_acp_mode", {"mode": "m"}),
        ("POST", "set_acp_option", {"option_id": "o", "value": True}),
        ("POST", "goal", {"objective": "o"}),
        ("POST", "goal/stop", None),
        ("POST", "goal/resume", None),
        ("POST", "children", {"task": "t"}),
        ("GET", "runtime", None),
        ("POST", "runtime/reprovision", None),
        *(("POST", name, body) for name, body, _, _ in REFUSED),
    ],
)
async def test_who_is_unknown(gateway, method, name, body):
    assert (await gateway.call(method, f"{BASE}/{uuid.uuid4()}/{name}", body))[0] == 404


@pytest.mark.parametrize(
    ("name", "body", "loc"),
    [
        ("fork", {"id": "x"}, "id"),
        ("fork", {"title": "x" * 201}, "title"),
        ("fork", {"tags": {"A": "b"}}, "tags"),
        ("fork", {"reset_metrics": 1}, "reset_metrics"),
        ("ask_agent", {}, "question"),
        ("ask_agent", {"question": 1}, "question"),
        ("switch_acp_model", {}, "model"),
        ("switch_acp_mode", {"mode": ""}, "mode"),
        ("set_acp_option", {"value": True}, "option_id"),
        ("set_acp_option", {"option_id": "o", "value": 3}, "value"),
        ("goal", {"max_iterations": 3}, "objective"),
        ("children", {"task": ""}, "task"),
        ("children", {"task": "t", "isolation": "none"}, "isolation"),
        ("switch_llm", {}, "llm"),
        ("navigate", {"event_id": 1}, "event_id"),
    ],
)
async def test_what_does_not_fit_is_named(gateway, conversation, name, body, loc):
    status, found = await gateway.call("POST", f"{BASE}/{conversation.id}/{name}", body)
    assert (status, found["detail"][0]["loc"][1]) == (422, loc)


@pytest.mark.guarantee(name="workspace-routes")
@pytest.mark.parametrize("access", [Access.ALL, Access.OFF])
async def test_a_child_has_a_worktree_unless_git_is_switched_off(gateway_with, tmp_path, access):
    root = repository(tmp_path / "r", a="1\n")
    async with gateway_with(workspace_access=access) as gateway:
        conversation = await gateway.conversation()
        conversation.request = attrs.evolve(conversation.request, working_dir=str(root))
        status, child = await gateway.call("POST", f"{BASE}/{conversation.id}/children", {"task": "look"})
        assert (status, child["parent_conversation_id"]) == (201, conversation.id)
        if access is Access.ALL:
            assert child["isolation"] == "worktree"
            assert git(child["workspace"], "branch", "--show-current").startswith("openhands/")
        else:
            assert (child["isolation"], child["workspace"]) == ("shared", str(root))
            assert git(root, "branch", "--list", "openhands/*") == ""


async def test_children(gateway, conversation):
    status, child = await gateway.call("POST", f"{BASE}/{conversation.id}/children", {"task": "look"})
    assert (status, child["isolation"], child["workspace"]) == (201, "shared", "/w")
    assert child["parent_conversation_id"] == conversation.id
    body = {"task": "look", "isolation": "shared", "title": "C"}
    status, child = await gateway.call("POST", f"{BASE}/{conversation.id}/children", body)
    assert (child["isolation"], child["title"], child["url"]) == ("shared", "C", None)


async def test_runtime(gateway, conversation):
    expected = (200, {"runtime_status": "available", "can_resume": True, "runtime_error": None})
    assert await gateway.call("GET", f"{BASE}/{conversation.id}/runtime") == expected
    assert await gateway.call("POST", f"{BASE}/{conversation.id}/runtime/reprovision") == expected


async def test_models(gateway):
    body = {
        "agent_settings": {"agent_kind": "acp", "acp_server": "custom", "acp_command": ["/x", "--acp"]},
        "secrets": {"TOKEN": "value-of-it"},
        "refresh": True,
    }
    status, found = await gateway.call("POST", "/api/acp/models", body)
    assert (status, found["current_model_id"], found["error"]) == (200, "m", None)
    assert gateway.supervisor.calls[-1] == ("models", ("/x", "--acp"), {"TOKEN": "value-of-it"}, True)
    status, found = await gateway.call(
        "POST", "/api/acp/models", {"agent_settings": {"acp_server": "custom"}}
    )
    assert (status, found["detail"][0]["loc"]) == (422, ["body", "agent_settings", "acp_command"])
    assert (await gateway.call("POST", "/api/acp/models", {}))[0] == 422
