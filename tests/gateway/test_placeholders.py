"""What Ostler has nothing of: honest empty lists, and refusals with a reason."""

from __future__ import annotations

import pytest

from gateway.api.routes.placeholders import ROUTES
from gateway.api.routing import PATH_PARAMETER, UUID_PARAMETERS

NOBODY = "00000000-0000-4000-8000-000000000000"

BODIES = {"InstallRequest": {"source": "x"}, "EnabledRequest": {"enabled": True}}

EMPTY = [
    ("GET", "/api/skills/catalog", None, {"skills": []}),
    ("GET", "/api/skills/installed", None, {"skills": []}),
    ("GET", "/api/skills/marketplace", None, {"skills": []}),
    ("POST", "/api/plugins", {}, {"plugins": []}),
    ("GET", "/api/plugins/installed", None, {"plugins": []}),
    ("GET", "/api/plugins/marketplace", None, {"plugins": []}),
    ("GET", "/api/canvas-extensions/installed", None, {"canvas_extensions": []}),
    ("POST", "/api/hooks", {"project_dir": "/nowhere"}, {"hook_config": None}),
    ("POST", "/api/hooks", {}, {"hook_config": None}),
]


@pytest.mark.parametrize(("method", "path", "body", "answer"), EMPTY)
async def test_empty_lists_have_the_wire_form(gateway, method, path, body, answer):
    assert await gateway.call(method, path, body) == (200, answer)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/api/skills/install", {"source": "x"}, 501),
        ("POST", "/api/plugins/install", {"source": "x"}, 501),
        ("POST", "/api/plugins/fetch", {"source": "x"}, 501),
        ("POST", "/api/canvas-extensions/install", {"source": "x"}, 501),
        ("POST", "/api/llm/subscription/openai/device/start", None, 501),
        ("POST", "/api/llm/subscription/openai/device/poll", {"device_code": "x"}, 404),
        ("GET", "/api/skills/installed/mine", None, 404),
        ("PATCH", "/api/plugins/installed/mine", {"enabled": True}, 404),
        ("POST", "/api/skills/installed/mine/refresh", None, 404),
        ("GET", "/api/vscode/url", None, 503),
        ("POST", "/api/skills/install", {}, 422),
        ("POST", "/api/skills", {"load_user": "yes"}, 422),
        ("POST", "/api/skills", [], 422),
        ("POST", "/api/plugins", None, 422),
        ("PATCH", "/api/plugins/installed/mine", {}, 422),
        # Not served by the peer either.
        ("GET", "/api/llm/balance", None, 404),
        ("GET", "/api/automation/health", None, 404),
    ],
)
async def test_refusals_have_a_reason(gateway, method, path, body, status):
    found, answer = await gateway.call(method, path, body)
    assert found == status
    detail = answer["detail"]
    assert isinstance(detail, list) if status == 422 else len(detail) > 8
    if "mine" in path and status == 404:
        assert "'mine' is not installed" in detail


async def test_a_subscription_is_not_connected_and_skills_cannot_be_fetched(gateway):
    base = "/api/llm/subscription/openai"
    for method, path in (("GET", "/status"), ("POST", "/logout")):
        status, answer = await gateway.call(method, f"{base}{path}")
        assert (status, answer["connected"]) == (200, False)
    assert (await gateway.call("GET", f"{base}/models"))[1] == {"vendor": "openai", "models": []}
    status, answer = await gateway.call("POST", "/api/skills/sync", {})
    assert (status, answer["status"]) == (200, "error")
    status, answer = await gateway.call("GET", "/api/vscode/status")
    assert (status, answer["running"], answer["enabled"]) == (200, False, False)


async def test_an_id_that_is_none_is_refused(gateway):
    status, answer = await gateway.call("GET", "/api/conversations/x/vscode/status")
    assert (status, answer["detail"][0]["loc"]) == (422, ["path", "conversation_id"])


async def test_every_such_route_answers_as_it_is_described(gateway):
    _, document = await gateway.call("GET", "/openapi.json")
    for each in ROUTES:
        path = PATH_PARAMETER.sub(lambda name: NOBODY if name[1] in UUID_PARAMETERS else "x", each.path)
        body = None if each.body is None else BODIES.get(each.body.NAME, {"device_code": "x"})
        status, _ = await gateway.call(each.method, path, body)
        assert status == each.status, each
        operation = document["paths"][PATH_PARAMETER.sub(r"{\1}", each.path)][each.method.lower()]
        assert str(status) in operation["responses"]
