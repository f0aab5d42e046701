"""`POST /api/conversations`: every form of a start request, and everything that clients get wrong in one."""

from __future__ import annotations

import uuid

import pytest

from supervisor.events import (
    Vocabulary,
)

BASE = "/api/conversations"
POLICY = "confirmation_policy"
LOOKUP = "/api/settings/secrets/"
WORKSPACE = {"kind": "LocalWorkspace", "working_dir": "/w"}
ACP = {"agent_kind": "acp", "acp_server": "custom", "acp_command": ["agent", "--acp"]}
AGENT = {"kind": "ACPAgent", "acp_command": ["x"]}


def user(text):
    return {"role": "user", "content": [{"type": "text", "text": text}], "run": True}


@pytest.mark.parametrize(
    ("named", "spelled_out", "server", "command"),
    [
        ({}, False, None, None),
        ({"agent_settings": ACP}, True, "custom", ("agent", "--acp")),
        (
            {"agent_settings": {"agent_kind": "acp", "acp_server": "codex"}},
            True,
            "codex",
            ("npx", "-y", "codex-acp"),
        ),
        (
            {"agent": {**AGENT, "llm": {"model": "m"}}},
            True,
            "custom",
            ("x",),
        ),
        (
            {"agent": AGENT, "agent_settings": ACP},
            True,
            "custom",
            ("x",),
        ),
        ({"agent": None, "agent_settings": None, "agent_profile_id": None}, False, None, None),
    ],
)
async def test_forms_of_naming_an_agent(gateway, named, spelled_out, server, command):
    status, info = await gateway.call("POST", BASE, {"workspace": WORKSPACE, **named})
    assert status == 201
    request = gateway.supervisor.conversations[info["id"]].request
    assert request.spelled_out is spelled_out
    if server is None:
        assert request.agent is None
    else:
        assert (request.agent.acp_server, request.agent.acp_command) == (server, command)


OWN = {"acp_env": {"AWS_REGION": "eu-central-1"}, "acp_home": "shared", "acp_home_links": [".aws"]}
CODEX = {"agent_kind": "acp", "acp_server": "codex"}


@pytest.mark.parametrize(
    ("settings", "named", "inherits"),
    [
        (CODEX, {"agent_settings": CODEX}, True),
        (CODEX, {"agent_settings": {**CODEX, "acp_model": "m"}}, True),
        (CODEX, {"agent_settings": {**CODEX, "acp_env": {}}}, False),  # it knows them, and wants none
        (CODEX, {"agent_settings": {"agent_kind": "acp", "acp_server": "claude-code"}}, False),
        (ACP, {"agent_settings": ACP}, True),
        (ACP, {"agent": {"kind": "ACPAgent", "acp_command": ["agent", "--acp"]}}, True),
        (ACP, {"agent": AGENT}, False),  # another command is another agent
    ],
)
async def test_fields_that_clients_do_not_know_are_those_of_the_settings(gateway, settings, named, inherits):
    status, _ = await gateway.call("PATCH", "/api/settings", {"agent_settings_diff": {**settings, **OWN}})
    assert status == 200
    status, info = await gateway.call("POST", BASE, {"workspace": WORKSPACE, **named})
    assert status == 201
    agent = gateway.supervisor.conversations[info["id"]].request.agent
    wanted = (OWN["acp_env"], "shared", (".aws",)) if inherits else ({}, None, ())
    assert (agent.acp_env, agent.acp_home, agent.acp_home_links) == wanted


async def test_agent_profile(gateway):
    await gateway.call("POST", "/api/agent-profiles/mine", {"acp_server": "claude-code", "acp_model": "opus"})
    _, listed = await gateway.call("GET", "/api/agent-profiles")
    profile_id = next(each["id"] for each in listed["profiles"] if each["name"] == "mine")
    body = {"workspace": WORKSPACE, "agent_profile_id": profile_id}
    status, info = await gateway.call("POST", BASE, body)
    assert status == 201
    request = gateway.supervisor.conversations[info["id"]].request
    assert request.agent.acp_model == "opus"
    assert request.launched_agent_profile["agent_profile_id"] == profile_id
    status, body = await gateway.call("POST", BASE, {**body, "agent_settings": ACP})
    assert (status, body["detail"][0]["loc"]) == (422, ["body", "agent_profile_id"])
    status, body = await gateway.call(
        "POST", BASE, {"workspace": WORKSPACE, "agent_profile_id": str(uuid.uuid4())}
    )
    assert status == 404
    assert isinstance(body["detail"], str)


async def test_everything_of_a_start_request_arrives(gateway):
    await gateway.services.secrets.set("FOO", "stored")
    parent = await gateway.conversation()
    body = {
        "workspace": WORKSPACE,
        "agent_settings": ACP,
        "event_vocabulary": "core",
        "initial_message": user("hi"),
        "confirmation_policy": {"kind": "ConfirmRisky"},
        "security_analyzer": {"kind": "LLMSecurityAnalyzer"},
        "max_iterations": 7,
        "stuck_detection": False,
        "tags": {"clientsource": "test"},
        "title": "A title",
        "autotitle": False,
        "parent_conversation_id": parent.id,
        "client_tools": [],
        "tool_module_qualnames": {"ring": "bells.ring"},
        "hook_config": {"Stop": [{"hooks": [{"command": "check", "async_": True}]}]},
        "secrets": {
            "PLAIN": "a",
            "STATIC": {"kind": "StaticSecret", "value": "b"},
            "FOO": {"kind": "LookupSecret", "url": "/api/settings/secrets/FOO", "headers": {}},
            "SEEN": {"kind": "LookupSecret", "url": "http://localhost/api/settings/secrets/FOO"},
            "GONE": {"kind": "StaticSecret", "value": None},
        },
        "something": "that nobody knows",
    }
    status, info = await gateway.call("POST", BASE, body)
    assert status == 201, info
    conversation = gateway.supervisor.conversations[info["id"]]
    request = conversation.request
    assert request.working_dir == "/w"
    assert conversation.vocabulary is Vocabulary.CORE
    assert request.confirmation_policy == {
        "kind": "ConfirmRisky",
        "threshold": "HIGH",
        "confirm_unknown": True,
    }
    assert request.security_analyzer == {"kind": "LLMSecurityAnalyzer"}
    assert (request.max_iterations, request.stuck_detection) == (7, False)
    assert (request.title, request.autotitle, request.tags) == ("A title", False, {"clientsource": "test"})
    assert request.parent_conversation_id == parent.id
    hooks = request.extra.pop("hook_config")
    assert request.extra == {"client_tools": [], "tool_module_qualnames": {"ring": "bells.ring"}}
    (matcher,) = hooks["stop"]
    assert (matcher["matcher"], matcher["hooks"][0]["async"], hooks["session_end"]) == ("*", True, [])
    assert request.secrets == {"PLAIN": "a", "STATIC": "b", "FOO": "stored", "SEEN": "stored"}


@pytest.mark.parametrize(
    ("url", "own"),
    [
        ("https://ostler.example/api/settings/secrets/FOO", True),
        ("http://ostler.example/api/settings/secrets/FOO", True),
        ("https://ostler.example:8443/api/settings/secrets/FOO", False),
        ("https://other.example/api/settings/secrets/FOO", False),
        ("https://ostler.example.evil.example/api/settings/secrets/FOO", False),
    ],
)
async def test_behind_tls_our_own_secrets_are_our_own(gateway_with, url, own):
    """A client that speaks TLS to a proxy gives addresses with https, of which this server sees nothing."""
    async with gateway_with(session_api_keys=("k",)) as gateway:
        headers = {"Host": "ostler.example", "X-Session-API-Key": "k"}
        await gateway.call(
            "PUT", "/api/settings/secrets", {"name": "FOO", "value": "stored"}, headers=headers
        )
        body = {"workspace": WORKSPACE, "secrets": {"A": {"kind": "LookupSecret", "url": url}}}
        status, info = await gateway.call("POST", BASE, body, headers=headers)
        assert status == 201, info
        found = gateway.supervisor.conversations[info["id"]].request.secrets["A"]
        assert found == "stored" if own else found.url == url


async def test_encrypted_secrets_come_back_in_clear(gateway):
    token = gateway.services.secrets.cipher.encrypt(b"s3cr3t")
    servers = {"x": {"command": "x", "env": {"KEY": token, "PLAIN": "p"}}}
    body = {
        "workspace": WORKSPACE,
        "secrets_encrypted": True,
        "agent_settings": {**ACP, "mcp_config": servers},
        "secrets": {"A": token, "B": {"kind": "StaticSecret", "value": token}},
    }
    status, info = await gateway.call("POST", BASE, body)
    assert status == 201, info
    request = gateway.supervisor.conversations[info["id"]].request
    assert request.secrets == {"A": "s3cr3t", "B": "s3cr3t"}
    assert request.agent.mcp_config["x"]["env"] == {"KEY": "s3cr3t", "PLAIN": "p"}
    body["secrets"] = {"A": token[:-4]}
    status, info = await gateway.call("POST", BASE, body)
    assert (status, info["detail"][0]["loc"]) == (422, ["body", "secrets"])


@pytest.mark.parametrize(
    ("change", "loc", "kind"),
    [
        ({"workspace": None}, ["body", "workspace"], "missing"),
        ({"workspace": {}}, ["body", "workspace", "working_dir"], "missing"),
        ({"workspace": {"working_dir": 1}}, ["body", "workspace", "working_dir"], "string_type"),
        ({"workspace": {"working_dir": "a\0b"}}, ["body", "workspace", "working_dir"], "value_error"),
        ({"workspace": {"working_dir": "/w", "kind": "Remote"}}, ["body", "workspace", "kind"], "enum"),
        ({"workspace": "x"}, ["body", "workspace"], "dict_type"),
        ({"conversation_id": "x"}, ["body", "conversation_id"], "uuid_parsing"),
        ({"conversation_id": 5}, ["body", "conversation_id"], "string_type"),
        ({"agent_profile_id": "x"}, ["body", "agent_profile_id"], "uuid_parsing"),
        ({"agent": {"kind": "Agent"}}, ["body", "agent", "llm"], "missing"),
        ({"agent": {"kind": "Agent", "llm": {"model": 5}}}, ["body", "agent", "llm", "model"], "string_type"),
        (
            {"agent": {"kind": "Agent", "llm": {}, "mcp_config": {"a": {}}}},
            ["body", "agent", "mcp_config", "a"],
            "value_error",
        ),
        ({"agent": {"kind": "Agent", "llm": {}, "tools": {}}}, ["body", "agent", "tools"], "list_type"),
        ({"agent": {"kind": "Other"}}, ["body", "agent", "kind"], "union_tag_invalid"),
        ({"agent": {"kind": "ACPAgent"}}, ["body", "agent", "acp_command"], "missing"),
        (
            {"agent_settings": {"agent_kind": "openhands", "llm": 5}},
            ["body", "agent_settings", "llm"],
            "dict_type",
        ),
        (
            {"agent_settings": {"agent_kind": "acp", "acp_command": "x"}},
            ["body", "agent_settings", "acp_command"],
            "list_type",
        ),
        ({"event_vocabulary": "other"}, ["body", "event_vocabulary"], "enum"),
        ({"initial_message": {"content": "x"}}, ["body", "initial_message", "content"], "list_type"),
        (
            {"initial_message": {"content": [{"type": "text"}]}},
            ["body", "initial_message", "content", 0, "text"],
            "missing",
        ),
        ({"initial_message": {"role": "assistant"}}, ["body", "initial_message", "role"], "value_error"),
        (
            {"confirmation_policy": {"kind": "Maybe"}},
            ["body", POLICY, "kind"],
            "union_tag_invalid",
        ),
        ({"confirmation_policy": {}}, ["body", POLICY, "kind"], "missing"),
        ({"security_analyzer": {}}, ["body", "security_analyzer", "kind"], "missing"),
        ({"max_iterations": 0}, ["body", "max_iterations"], "greater_than_equal"),
        ({"max_iterations": "5"}, ["body", "max_iterations"], "int_type"),
        ({"max_iterations": True}, ["body", "max_iterations"], "int_type"),
        ({"stuck_detection": "yes"}, ["body", "stuck_detection"], "bool_type"),
        ({"tags": {"Bad": "x"}}, ["body", "tags", "Bad"], "value_error"),
        ({"tags": {"a": "x" * 257}}, ["body", "tags", "a"], "string_too_long"),
        ({"tags": {"a": 1}}, ["body", "tags", "a"], "string_type"),
        ({"tags": []}, ["body", "tags"], "dict_type"),
        ({"title": ""}, ["body", "title"], "string_too_short"),
        ({"secrets": {"1x": "v"}}, ["body", "secrets", "1x"], "value_error"),
        ({"secrets": {"X": 5}}, ["body", "secrets", "X"], "dict_type"),
        ({"secrets": {"X": {"url": "ftp://elsewhere/x"}}}, ["body", "secrets", "X", "url"], "value_error"),
        (
            {"secrets": {"X": {"url": LOOKUP + "NONE"}}},
            ["body", "secrets", "X", "url"],
            "value_error",
        ),
        ({"parent_conversation_id": str(uuid.uuid4())}, ["body", "parent_conversation_id"], "value_error"),
    ],
)
async def test_bad_start_requests(gateway, change, loc, kind):
    status, body = await gateway.call("POST", BASE, {"workspace": WORKSPACE, **change})
    assert status == 422
    assert [(problem["loc"], problem["type"]) for problem in body["detail"]] == [(loc, kind)]
    assert all(set(problem) == {"loc", "msg", "type"} for problem in body["detail"])
    assert not gateway.supervisor.conversations


async def test_all_mistakes_are_told_at_once(gateway):
    _, body = await gateway.call("POST", BASE, {"max_iterations": 0, "tags": 1, "secrets": {"?": ""}})
    assert {problem["loc"][1] for problem in body["detail"]} == {
        "workspace",
        "max_iterations",
        "tags",
        "secrets",
    }


def nested(levels):
    value = 1
    for _ in range(levels):
        value = {"a": value}
    return value


async def test_what_is_nested_too_deep_to_be_written_again_is_refused(gateway):
    body = {"workspace": WORKSPACE, "agent": AGENT, "client_tools": nested(252)}
    status, answer = await gateway.call("POST", BASE, body)
    assert status == 422
    (problem,) = answer["detail"]
    assert problem["loc"] == ["body"]
    assert "nested deeper than 64 levels" in problem["msg"]
    assert gateway.supervisor.conversations == {}
    assert (await gateway.call("POST", BASE, {**body, "client_tools": nested(60)}))[0] == 201
    # Many brackets are not many levels.
    assert (await gateway.call("POST", BASE, {**body, "client_tools": {"a": [[]] * 100}}))[0] == 201


@pytest.mark.parametrize("iterations", [1e300, 2**53])
async def test_a_number_that_no_client_could_read_back_is_refused(gateway, iterations):
    body = {"workspace": WORKSPACE, "agent": AGENT, "max_iterations": iterations}
    status, answer = await gateway.call("POST", BASE, body)
    assert (status, answer["detail"][0]["loc"]) == (422, ["body", "max_iterations"])
    assert answer["detail"][0]["type"] == "less_than_equal"


async def test_a_title_from_the_start_is_like_a_later_one(gateway):
    body = {"workspace": WORKSPACE, "agent": AGENT, "title": "   "}
    status, answer = await gateway.call("POST", BASE, body)
    assert (status, answer["detail"][0]["loc"]) == (422, ["body", "title"])
    status, info = await gateway.call("POST", BASE, {**body, "title": "  mine "})
    conversation = gateway.supervisor.conversations[info["id"]]
    assert conversation.request.title == "mine"


@pytest.mark.parametrize(
    ("settings", "policy", "analyzer"),
    [
        ({}, {"kind": "NeverConfirm"}, {"kind": "LLMSecurityAnalyzer"}),
        ({"confirmation_mode": True, "security_analyzer": None}, {"kind": "AlwaysConfirm"}, None),
        (
            {"confirmation_mode": True},
            {"kind": "ConfirmRisky", "threshold": "HIGH", "confirm_unknown": True},
            {"kind": "LLMSecurityAnalyzer"},
        ),
    ],
)
async def test_who_leaves_the_choice_to_the_settings_gets_all_of_them(gateway, settings, policy, analyzer):
    change = {"conversation_settings_diff": {"max_iterations": 7, **settings}}
    assert (await gateway.call("PATCH", "/api/settings", change))[0] == 200

    async def started(**named):
        status, info = await gateway.call("POST", BASE, {"workspace": WORKSPACE, **named})
        assert status == 201
        return gateway.supervisor.conversations[info["id"]].request

    request = await started()
    assert (request.max_iterations, request.confirmation_policy) == (7, policy)
    assert request.security_analyzer == analyzer
    request = await started(max_iterations=9, confirmation_policy={"kind": "NeverConfirm"})
    assert (request.max_iterations, request.confirmation_policy) == (9, {"kind": "NeverConfirm"})
    # Who names an agent has read the settings, and says what it wants of them.
    request = await started(agent=AGENT)
    assert (request.max_iterations, request.confirmation_policy) == (500, {"kind": "NeverConfirm"})


@pytest.mark.parametrize(
    "named",
    [
        {"agent": {"kind": "Agent", "llm": {"model": "m"}}},
        {"agent_settings": {"agent_kind": "openhands", "llm": {"model": "m"}}},
    ],
)
async def test_the_built_in_agent_is_shown_as_it_will_be_before_it_has_started(gateway, named):
    """The gateway of these tests holds each answer against the interface description."""
    status, info = await gateway.call("POST", BASE, {"workspace": WORKSPACE, **named})
    assert (status, info["agent"]["kind"]) == (201, "Agent")
    assert info["agent"]["include_default_tools"] == ["FinishTool", "ThinkTool"]
    assert (info["agent"]["llm"]["model"], info["agent"]["tools"]) == ("m", [])
    assert not any(name.startswith("acp_") for name in info["agent"])


@pytest.mark.parametrize(
    ("llm", "expected"),
    [
        ({"model": "m", "usage_id": "mine"}, "mine"),
        ({"model": "m"}, None),
        ({"usage_id": 5}, None),
        (None, None),
    ],
)
async def test_a_client_names_what_its_agent_uses(gateway, llm, expected):
    agent = {**AGENT, **({"llm": llm} if llm else {})}
    _, info = await gateway.call("POST", BASE, {"workspace": WORKSPACE, "agent": agent})
    assert gateway.supervisor.conversations[info["id"]].request.extra.get("usage_id") == expected
    for _ in range(2):
        assert list(info["stats"]["usage_to_metrics"]) == [expected or "acp-managed"]
        assert info["agent"]["llm"]["usage_id"] == (expected or "acp-managed")
        _, info = await gateway.call("GET", f"{BASE}/{info['id']}")
