"""`/api/conversations`: happy paths and everything that clients get wrong."""

from __future__ import annotations

import uuid

import pytest

from supervisor.conversations.state.errors import NotAccepted, NotPossible
from supervisor.events import (
    ActionEvent,
    FinishAction,
    Message,
    MessageEvent,
    MessageToolCall,
    TextContent,
)

BASE = "/api/conversations"
WORKSPACE = {"kind": "LocalWorkspace", "working_dir": "/w"}


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


@pytest.mark.parametrize("name", ["acp_session_mode", "acp_model", "agent_settings", "confirmation_policy"])
async def test_what_an_update_does_not_change_is_refused(gateway, name):
    conversation = await gateway.conversation()
    body = {"title": "New", name: "plan"}
    status, answer = await gateway.call("PATCH", f"{BASE}/{conversation.id}", body)
    assert (status, answer["detail"][0]["loc"]) == (422, ["body", name])
    assert "changes the title and the tags alone" in answer["detail"][0]["msg"]
    assert conversation.title != "New"


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


async def test_delete_that_can_be_undone(gateway):
    conversation = await gateway.conversation()
    path = f"{BASE}/{conversation.id}"
    status, answer = await gateway.call("DELETE", f"{path}?undo_seconds=300")
    assert (status, answer) == (200, {"success": True, "undo_until": "2027-01-15T08:00:00.000000Z"})
    assert await gateway.call("POST", f"{path}/restore") == (200, {"success": True})
    asked = [("delete_later", conversation.id, 300), ("restore", conversation.id)]
    assert [call for call in gateway.supervisor.calls if call in asked] == asked


@pytest.mark.parametrize("bad", ["0", "301", "-1", "x", "1.5", ""])
async def test_bad_times_for_undoing_a_deletion(gateway, bad):
    conversation = await gateway.conversation()
    path = f"{BASE}/{conversation.id}"
    status, answer = await gateway.call("DELETE", f"{path}?undo_seconds={bad}")
    assert status == 422
    assert answer["detail"][0]["loc"] == ["query", "undo_seconds"]
    assert (await gateway.call("GET", path))[0] == 200


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


async def test_one_request_is_answered_by_its_id(gateway):
    conversation = await gateway.conversation()
    path = f"{BASE}/{conversation.id}/events/respond_to_confirmation"
    named = {"accept": False, "reason": "no", "request_id": "r", "option_id": "o"}
    assert await gateway.call("POST", path, named) == (200, {"success": True})
    assert conversation.calls == [("respond", False, "no", "r", "o")]
    nulls = {"accept": True, "request_id": None, "option_id": None}
    assert await gateway.call("POST", path, nulls) == (200, {"success": True})
    for bad in ({"request_id": 1}, {"option_id": []}, {"request_id": "x" * 10_001}):
        status, body = await gateway.call("POST", path, {"accept": True, **bad})
        assert (status, body["detail"][0]["loc"]) == (422, ["body", *bad])
    for failure, expected in ((NotPossible("No such request waits: r"), 409), (NotAccepted("Unknown"), 400)):
        conversation.failure = failure
        assert await gateway.call("POST", path, named) == (expected, {"detail": str(failure)})


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
    assert await gateway.call("POST", path, {"secrets": {"MY-API.KEY": "s3cr3t"}}) == (200, {"success": True})
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
    ("POST", "/restore", None),
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
    for data in (b"{", b"nul", b"\xff\xfe", b'{"a": "\\ud800"}', b"[" * 60, b'{"a": NaN}'):
        status, body = await gateway.call(method, path, data=data, headers=headers)
        assert status == 422, data
        assert (body["detail"][0]["loc"][0], body["detail"][0]["type"]) == ("body", "json_invalid")
    status, body = await gateway.call(method, path, data=b"[" * 100_000, headers=headers)
    assert (status, body["detail"][0]["msg"]) == (422, "Value error, more than 20000 values")
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
