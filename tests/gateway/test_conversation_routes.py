"""`/api/conversations`: happy paths and everything that clients get wrong."""

from __future__ import annotations

import uuid

import pytest

from supervisor.events import (
    ActionEvent,
    FinishAction,
    Message,
    MessageEvent,
    MessageToolCall,
    TextContent,
    Vocabulary,
)

BASE = "/api/conversations"
CODEX = ("npx", "-y", "codex-acp")
SETTINGS = "agent_settings"
INITIAL = "initial_message"
POLICY = "confirmation_policy"
LOOKUP = "/api/settings/secrets/"
WORKSPACE = {"kind": "LocalWorkspace", "working_dir": "/w"}
ACP = {"agent_kind": "acp", "acp_server": "custom", "acp_command": ["agent", "--acp"]}
AGENT = {"kind": "ACPAgent", "acp_command": ["x"]}


def user(text):
    return {"role": "user", "content": [{"type": "text", "text": text}], "run": True}


async def test_create_is_idempotent_by_id(gateway):
    conversation_id = str(uuid.uuid4())
    body = {"workspace": WORKSPACE, "conversation_id": conversation_id, "initial_message": user("hello")}
    status, info = await gateway.call("POST", BASE, body)
    assert (status, info["id"]) == (201, conversation_id)
    status, again = await gateway.call("POST", f"{BASE}?include_skills=true", body)
    assert (status, again) == (200, info)
    conversation = gateway.supervisor.conversations[conversation_id]
    assert [call[0] for call in conversation.calls] == ["send"]


async def test_hex_ids_are_the_same_conversations(gateway):
    conversation = await gateway.conversation()
    plain = conversation.id.replace("-", "")
    assert (await gateway.call("GET", f"{BASE}/{plain}"))[1]["id"] == conversation.id
    body = {"workspace": WORKSPACE, "conversation_id": plain.upper()}
    assert (await gateway.call("POST", BASE, body))[0] == 200


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


async def test_agent_profile(gateway):
    await gateway.call("POST", "/api/agent-profiles/mine", {"acp_server": "claude-code", "acp_model": "opus"})
    _, listed = await gateway.call("GET", "/api/agent-profiles")
    profile_id = listed["profiles"][0]["id"]
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
        "hook_config": {"stop": []},
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
    assert request.extra == {"client_tools": [], "hook_config": {"stop": []}}
    assert request.secrets == {"PLAIN": "a", "STATIC": "b", "FOO": "stored", "SEEN": "stored"}


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
        ({"agent": {"kind": "Agent"}}, ["body", "agent", "kind"], "value_error"),
        ({"agent": {"kind": "ACPAgent"}}, ["body", "agent", "acp_command"], "missing"),
        (
            {"agent_settings": {"agent_kind": "openhands"}},
            ["body", "agent_settings", "agent_kind"],
            "value_error",
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
        ({"secrets": {"X": {"url": "http://elsewhere/x"}}}, ["body", "secrets", "X", "url"], "value_error"),
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


async def test_batch_in_the_order_asked(gateway):
    first, second = await gateway.conversation(), await gateway.conversation()
    unknown = uuid.uuid4()
    status, found = await gateway.call(
        "GET", f"{BASE}?ids={second.id}&ids={unknown}&ids={first.id.replace('-', '')}&include_skills=false"
    )
    assert status == 200
    assert [info and info["id"] for info in found] == [second.id, None, first.id]


@pytest.mark.parametrize(
    ("query", "loc", "kind"),
    [
        ("", ["query", "ids"], "missing"),
        ("?ids=x", ["query", "ids", 0], "uuid_parsing"),
        ("?" + "&".join(f"ids={uuid.UUID(int=n)}" for n in range(100)), ["query", "ids"], "too_long"),
    ],
)
async def test_bad_batches(gateway, query, loc, kind):
    status, body = await gateway.call("GET", f"{BASE}{query}")
    assert status == 422
    assert (body["detail"][0]["loc"], body["detail"][0]["type"]) == (loc, kind)


async def test_search_pages_by_inclusive_cursor(gateway):
    ids = [(await gateway.conversation()).id for _ in range(3)]
    status, page = await gateway.call("GET", f"{BASE}/search?limit=2&sort_order=CREATED_AT")
    assert status == 200
    assert [info["id"] for info in page["items"]] == ids[:2]
    assert page["next_page_id"] == ids[2].replace("-", "")
    _, rest = await gateway.call(
        "GET", f"{BASE}/search?limit=2&sort_order=CREATED_AT&page_id={page['next_page_id']}"
    )
    assert [info["id"] for info in rest["items"]] == ids[2:]
    assert rest["next_page_id"] is None
    _, restarted = await gateway.call("GET", f"{BASE}/search?page_id=unknown&sort_order=CREATED_AT")
    assert [info["id"] for info in restarted["items"]] == ids
    _, newest = await gateway.call("GET", f"{BASE}/search")
    assert [info["id"] for info in newest["items"]] == ids[::-1]


async def test_count_and_status_filter(gateway):
    await gateway.conversation()
    (await gateway.conversation()).status = "running"
    assert await gateway.call("GET", f"{BASE}/count") == (200, 2)
    assert await gateway.call("GET", f"{BASE}/count?status=running") == (200, 1)
    _, page = await gateway.call("GET", f"{BASE}/search?status=running&status=idle")
    assert len(page["items"]) == 1


@pytest.mark.parametrize("route", [f"{BASE}/search", f"{BASE}/{{id}}/events/search"])
@pytest.mark.parametrize(
    ("query", "name", "kind"),
    [
        ("limit=0", "limit", "greater_than_equal"),
        ("limit=101", "limit", "less_than_equal"),
        ("limit=ten", "limit", "int_parsing"),
        ("limit=", "limit", "int_parsing"),
        ("limit=1&limit=1000", "limit", "less_than_equal"),
        ("sort_order=UP", "sort_order", "enum"),
    ],
)
async def test_bad_page_queries(gateway, route, query, name, kind):
    conversation = await gateway.conversation()
    status, body = await gateway.call("GET", f"{route.format(id=conversation.id)}?{query}")
    assert status == 422
    assert (body["detail"][0]["loc"], body["detail"][0]["type"]) == (["query", name], kind)


async def test_unknown_status_is_422(gateway):
    for path in ("search", "count"):
        status, body = await gateway.call("GET", f"{BASE}/{path}?status=sleeping")
        assert (status, body["detail"][0]["loc"]) == (422, ["query", "status"])
        assert "'idle'" in body["detail"][0]["msg"]


async def test_update(gateway):
    conversation = await gateway.conversation(tags={"a": "1"})
    path = f"{BASE}/{conversation.id}"
    assert await gateway.call("PATCH", path, {"title": "  New "}) == (200, {"success": True})
    assert (conversation.title, conversation.tags) == ("New", {"a": "1"})
    assert await gateway.call("PATCH", path, {"tags": {"b": "2"}}) == (200, {"success": True})
    assert (conversation.title, conversation.tags) == ("New", {"b": "2"})
    assert await gateway.call("PATCH", path, {"title": None}) == (200, {"success": True})
    assert conversation.title == "New"


@pytest.mark.parametrize(
    "body", [{"title": ""}, {"title": "  "}, {"title": "x" * 201}, {"title": 1}, {"tags": {"A": ""}}, [], "x"]
)
async def test_bad_updates(gateway, body):
    conversation = await gateway.conversation()
    status, answer = await gateway.call("PATCH", f"{BASE}/{conversation.id}", body)
    assert status == 422
    assert answer["detail"][0]["loc"][0] == "body"


async def test_delete(gateway):
    conversation = await gateway.conversation()
    path = f"{BASE}/{conversation.id}"
    assert await gateway.call("DELETE", path) == (200, {"success": True})
    assert (await gateway.call("DELETE", path))[0] == 404
    assert (await gateway.call("GET", path))[0] == 404


@pytest.mark.parametrize("action", ["run", "pause", "interrupt"])
@pytest.mark.parametrize("body", [None, {}])
async def test_driving(gateway, action, body):
    conversation = await gateway.conversation()
    assert await gateway.call("POST", f"{BASE}/{conversation.id}/{action}", body) == (200, {"success": True})
    assert conversation.calls == [action]


async def test_run_while_running_is_409(gateway):
    conversation = await gateway.conversation()
    conversation.status = "running"
    status, body = await gateway.call("POST", f"{BASE}/{conversation.id}/run")
    assert (status, body) == (
        409,
        {"detail": "Conversation already running. Wait for completion or pause first."},
    )


async def test_respond_to_confirmation(gateway):
    conversation = await gateway.conversation()
    path = f"{BASE}/{conversation.id}/events/respond_to_confirmation"
    assert await gateway.call("POST", path, {"accept": True}) == (200, {"success": True})
    assert await gateway.call("POST", path, {"accept": False, "reason": "no"}) == (200, {"success": True})
    assert conversation.calls == [("respond", True, "User rejected the action."), ("respond", False, "no")]
    for bad in ({}, {"accept": "yes"}, {"accept": True, "reason": 1}):
        assert (await gateway.call("POST", path, bad))[0] == 422


async def test_confirmation_policy(gateway):
    conversation = await gateway.conversation()
    path = f"{BASE}/{conversation.id}/confirmation_policy"
    assert await gateway.call("POST", path, {"policy": {"kind": "AlwaysConfirm"}}) == (200, {"success": True})
    assert conversation.policy == {"kind": "AlwaysConfirm"}
    for bad in (
        {},
        {"policy": {}},
        {"policy": {"kind": "X"}},
        {"policy": {"kind": "ConfirmRisky", "threshold": "?"}},
    ):
        status, body = await gateway.call("POST", path, bad)
        assert (status, body["detail"][0]["loc"][:2]) == (422, ["body", "policy"])
    assert conversation.policy == {"kind": "AlwaysConfirm"}


async def test_security_analyzer(gateway):
    conversation = await gateway.conversation()
    path = f"{BASE}/{conversation.id}/security_analyzer"
    for analyzer in ({"kind": "LLMSecurityAnalyzer"}, None):
        assert await gateway.call("POST", path, {"security_analyzer": analyzer}) == (200, {"success": True})
        assert conversation.analyzer == analyzer
    for bad in ({}, {"security_analyzer": {}}, {"security_analyzer": "x"}):
        assert (await gateway.call("POST", path, bad))[0] == 422


async def test_conversation_secrets(gateway):
    await gateway.services.secrets.set("FOO", "stored")
    conversation = await gateway.conversation()
    path = f"{BASE}/{conversation.id}/secrets"
    given = {"A": "plain", "B": {"value": "v"}, "C": {"url": "/api/settings/secrets/FOO"}}
    assert await gateway.call("POST", path, {"secrets": given}) == (200, {"success": True})
    assert conversation.secrets == {"A": "plain", "B": "v", "C": "stored"}
    status, body = await gateway.call("POST", path, {"secrets": {"bad name": "s3cr3t"}})
    assert (status, body["detail"][0]["loc"]) == (422, ["body", "secrets", "bad name"])
    assert "s3cr3t" not in str(body)
    assert (await gateway.call("POST", path, {}))[0] == 422


async def test_agent_final_response(gateway):
    conversation = await gateway.conversation()
    path = f"{BASE}/{conversation.id}/agent_final_response"
    assert await gateway.call("GET", path) == (200, {"response": ""})

    def message(source, text):
        content = (TextContent(text=text),)
        return MessageEvent(source=source, llm_message=Message(role="assistant", content=content))

    await conversation.record(message("agent", "said"), message("user", "FinishAction"))
    assert await gateway.call("GET", path) == (200, {"response": "said"})
    call = MessageToolCall(id="1", name="finish", arguments="{}", origin="completion")
    finish = ActionEvent(
        thought=(),
        action=FinishAction(message="done"),
        tool_name="finish",
        tool_call_id="1",
        tool_call=call,
        llm_response_id="r",
    )
    await conversation.record(finish)
    assert await gateway.call("GET", path) == (200, {"response": "done"})
    await conversation.record(message("agent", "later"))
    assert await gateway.call("GET", path) == (200, {"response": "later"})


ROUTES = [
    ("GET", "", None),
    ("PATCH", "", {"title": "x"}),
    ("DELETE", "", None),
    ("POST", "/run", None),
    ("POST", "/pause", None),
    ("POST", "/interrupt", None),
    ("POST", "/events", user("x")),
    ("GET", "/events", ["x"]),
    ("GET", "/events/search", None),
    ("GET", "/events/count", None),
    ("GET", "/events/some-id", None),
    ("POST", "/events/respond_to_confirmation", {"accept": True}),
    ("POST", "/confirmation_policy", {"policy": {"kind": "NeverConfirm"}}),
    ("POST", "/security_analyzer", {"security_analyzer": None}),
    ("POST", "/secrets", {"secrets": {}}),
    ("GET", "/agent_final_response", None),
]


@pytest.mark.parametrize(("method", "path", "body"), ROUTES)
async def test_unknown_conversations_are_404(gateway, method, path, body):
    status, answer = await gateway.call(method, f"{BASE}/{uuid.uuid4()}{path}", body)
    assert status == 404
    assert isinstance(answer["detail"], str)


@pytest.mark.parametrize("bad", ["x", "1234", "0" * 31, "0" * 33, "{" + "0" * 32 + "}", "%20", "g" * 32])
@pytest.mark.parametrize(("method", "path", "body"), ROUTES)
async def test_ids_that_are_no_uuids_are_422(gateway, method, path, body, bad):
    status, answer = await gateway.call(method, f"{BASE}/{bad}{path}", body)
    assert status == 422
    problem = answer["detail"][0]
    assert (problem["loc"], problem["type"]) == (["path", "conversation_id"], "uuid_parsing")


WITH_BODY = [
    ("POST", BASE),
    ("PATCH", f"{BASE}/{{id}}"),
    ("POST", f"{BASE}/{{id}}/events"),
    ("GET", f"{BASE}/{{id}}/events"),
    ("POST", f"{BASE}/{{id}}/events/respond_to_confirmation"),
    ("POST", f"{BASE}/{{id}}/confirmation_policy"),
    ("POST", f"{BASE}/{{id}}/security_analyzer"),
    ("POST", f"{BASE}/{{id}}/secrets"),
    ("PATCH", "/api/settings"),
    ("PUT", "/api/settings/secrets"),
    ("POST", "/api/agent-profiles/p"),
    ("POST", "/api/agent-profiles/p/rename"),
]


@pytest.mark.parametrize(("method", "path"), WITH_BODY)
async def test_bodies_that_are_no_json(gateway, method, path):
    path = path.format(id=(await gateway.conversation()).id)
    headers = {"Content-Type": "application/json"}
    for data in (b"{", b"nul", b"\xff\xfe", b'{"a": "\\ud800"}', b"[" * 100_000, b'{"a": NaN}'):
        status, body = await gateway.call(method, path, data=data, headers=headers)
        assert status == 422, data
        assert (body["detail"][0]["loc"][0], body["detail"][0]["type"]) == ("body", "json_invalid")
    status, body = await gateway.call(method, path)
    assert (status, body["detail"][0]) == (
        422,
        {"loc": ["body"], "msg": "Field required", "type": "missing"},
    )
    for content_type in (
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data; boundary=x",
    ):
        status, body = await gateway.call(method, path, data=b"{}", headers={"Content-Type": content_type})
        assert status == 415
        assert isinstance(body["detail"], str)
    for data in (b"[]", b"{}", b"null", b"1", b'"x"', b"true", b"[1]"):
        status, body = await gateway.call(method, path, data=data, headers=headers)
        assert status < 500, (data, body)


@pytest.mark.parametrize(
    "content_type",
    [
        "application/json",
        "application/json; charset=utf-8",
        "APPLICATION/JSON",
        "application/merge-patch+json",
    ],
)
async def test_json_by_any_of_its_names(gateway, content_type):
    conversation = await gateway.conversation()
    status, _ = await gateway.call(
        "PATCH", f"{BASE}/{conversation.id}", data=b'{"title":"x"}', headers={"Content-Type": content_type}
    )
    assert status == 200


async def test_capacity_is_503_and_says_for_how_long(gateway):
    conversation = await gateway.conversation()
    conversation.capacity = False
    response = await gateway.app.test_client().post(f"{BASE}/{conversation.id}/events", json=user("x"))
    assert response.status_code == 503
    assert response.headers["Retry-After"] == "5"
    assert "saved" in (await response.get_json())["detail"]


def nested(levels):
    value = 1
    for _ in range(levels):
        value = {"a": value}
    return value


async def test_what_is_nested_too_deep_to_be_written_again_is_refused(gateway):
    body = {"workspace": WORKSPACE, "agent": AGENT, "hook_config": nested(252)}
    status, answer = await gateway.call("POST", BASE, body)
    assert status == 422
    (problem,) = answer["detail"]
    assert problem["loc"] == ["body"]
    assert "nested deeper than 64 levels" in problem["msg"]
    assert gateway.supervisor.conversations == {}
    assert (await gateway.call("POST", BASE, {**body, "hook_config": nested(60)}))[0] == 201
    # Many brackets are not many levels.
    assert (await gateway.call("POST", BASE, {**body, "hook_config": {"a": [[]] * 100}}))[0] == 201


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
        ({}, {"kind": "NeverConfirm"}, None),
        ({"confirmation_mode": True}, {"kind": "AlwaysConfirm"}, None),
        (
            {"confirmation_mode": True, "security_analyzer": "llm"},
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
