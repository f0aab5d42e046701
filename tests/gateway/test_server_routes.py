"""What the server says about itself, and what it says to requests that no route is for."""

from __future__ import annotations

import re
import threading

import orjson
import pytest
import trio
import trio.testing
from jsonschema import Draft202012Validator

from gateway.api.usable_tools import TOOLS_SECONDS, UsableTools
from supervisor.agents.sdk_facts import Browsers
from supervisor.patience import PATH_SECONDS
from supervisor.version import __version__
from tests.support.requirements import ROOT


@pytest.mark.parametrize("path", ["/alive", "/health"])
async def test_alive(gateway, path):
    assert await gateway.call("GET", path) == (200, {"status": "ok"})


async def test_ready_until_closing(gateway):
    assert await gateway.call("GET", "/ready") == (200, {"status": "ready"})
    gateway.services.closing.set()
    status, body = await gateway.call("GET", "/ready")
    assert (status, body["status"]) == (503, "initializing")


@pytest.mark.parametrize("path", ["/", "/server_info"])
async def test_server_info(gateway, path):
    status, info = await gateway.call("GET", path)
    assert status == 200
    assert info["title"] == "Ostler"
    assert info["ostler_version"] == __version__
    major, minor, patch = map(int, info["version"].split("."))
    assert (major, minor, patch) >= (1, 28, 0)
    assert info["sdk_version"] == info["tools_version"] == info["version"]
    assert info["capabilities"] == [
        "conversation_runtime_routes_v1",
        "idempotent_conversation_create_v1",
        "profile_secret_scope_v1",
    ]
    assert 0 <= info["idle_time"] <= info["uptime"]


@pytest.mark.parametrize("has", [True, False])
async def test_tools_are_usable_where_they_are(gateway, monkeypatch, has):
    """Clients give the built-in agent the browser only where the server says that it can use one."""
    registered = await gateway.call("GET", "/api/tools/")
    monkeypatch.setattr(Browsers, "there", lambda self, environ: has)
    _, info = await gateway.call("GET", "/server_info")
    assert set(registered[1]) - set(info["usable_tools"]) == (set() if has else {"browser_tool_set"})
    assert {"terminal", "file_editor", "task_tracker"} <= set(info["usable_tools"])


async def test_a_disk_that_hangs_holds_up_no_description(gateway, monkeypatch, mock_clock):
    """Strangers may ask for it, and it looks for a browser below HOME."""
    looked = []

    def hangs(self, environ):
        looked.append(environ)
        assert ended.wait(30)
        return True

    async def description():
        nonlocal told
        told = (await gateway.call("GET", "/server_info"))[1]["usable_tools"]

    ended = threading.Event()
    monkeypatch.setattr(Browsers, "there", hangs)
    told = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(description)
        while not looked:
            await trio.lowlevel.checkpoint()
        mock_clock.jump(PATH_SECONDS + 1)
    for _ in range(5):
        await description()
        assert told == []
    ended.set()
    assert len(looked) == 1
    mock_clock.jump(TOOLS_SECONDS + 1)
    await description()
    assert "browser_tool_set" in told


def test_a_look_that_outlives_its_run_of_trio_holds_up_none_of_the_next(monkeypatch):
    """A token that a thread holds when its run has ended never comes back."""

    async def given_up():
        clock = trio.lowlevel.current_clock()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(UsableTools({}))
            while not looked:
                await trio.lowlevel.checkpoint()
            clock.jump(PATH_SECONDS + 1)

    def looks(self, environ):
        looked.append(threading.current_thread())
        assert ended.wait(30)
        return True

    looked, ended = [], threading.Event()
    monkeypatch.setattr(Browsers, "there", looks)
    trio.run(given_up, clock=trio.testing.MockClock())
    ended.set()
    assert "browser_tool_set" in trio.run(UsableTools({}))
    assert len(looked) == 2


async def test_what_is_announced_below_conversations_is_there(gateway):
    """Clients that read the capability ask for these below the conversation alone."""
    peer = orjson.loads((ROOT / "docs/compatibility/peer.json").read_bytes())["operations"]
    _, document = await gateway.call("GET", "/openapi.json")
    one = re.compile(r"\{\w*conversation_id\}")
    ours = {
        (method.upper(), one.sub("{}", path)) for path, found in document["paths"].items() for method in found
    }
    prefix = "/api/conversations/{runtime_conversation_id}/"
    announced = [each for each in peer if prefix in each]
    assert len(announced) > 15
    missing = [each for each in announced if (each.split()[0], one.sub("{}", each.split()[1])) not in ours]
    assert missing == []
    conversation = await gateway.conversation()
    for name, status in (("status", 200), ("url", 503)):
        path = f"/api/conversations/{conversation.id}/vscode/{name}"
        assert (await gateway.call("GET", path))[0] == status


async def test_openapi_describes_every_route(gateway):
    status, document = await gateway.call("GET", "/openapi.json")
    assert status == 200
    assert document["info"]["version"] == "0.1.0"
    described = {
        (method.upper(), path) for path, operations in document["paths"].items() for method in operations
    }
    registered = {
        (method, re.sub(r"<(?:path:)?(\w+)>", r"{\1}", rule.rule))
        for rule in gateway.app.url_map.iter_rules()
        if not rule.websocket and not rule.rule.startswith(("/docs/", "/console/"))  # what pages load
        for method in rule.methods - {"HEAD", "OPTIONS"}
    }
    assert described == registered
    assert ("GET", "/api/conversations/{conversation_id}/events") in described


async def test_openapi_references_lead_somewhere(gateway):
    _, document = await gateway.call("GET", "/openapi.json")
    components = document["components"]["schemas"]
    references = set(re.findall(r"#/components/schemas/([\w-]+)", str(document)))
    assert references <= set(components)
    for schema in components.values():
        Draft202012Validator.check_schema(schema)
    batch = document["paths"]["/api/conversations/{conversation_id}/events"]["get"]
    assert batch["requestBody"]["content"]["application/json"]["schema"]["items"] == {"type": "string"}
    assert "422" in batch["responses"]
    ids = [
        operation["operationId"]
        for operations in document["paths"].values()
        for operation in operations.values()
    ]
    assert len(ids) == len(set(ids))


@pytest.mark.parametrize(
    "path",
    [
        "/nothing",
        "/api/nothing",
        "/api//settings",
        "/api",
        "/%00",
        "/docs/x",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_unknown_paths_are_json_404(gateway, method, path):
    assert await gateway.call(method, path) == (404, {"detail": "Not Found"})


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("DELETE", "/alive"),
        ("PUT", "/api/conversations"),
        ("POST", "/api/settings"),
        ("OPTIONS", "/api/settings"),
        ("DELETE", "/api/conversations/search"),
        ("PATCH", "/api/settings/secrets"),
    ],
)
async def test_wrong_methods_are_json_405(gateway, method, path):
    if path == "/api/conversations/search":
        # The path of a conversation of that name, which is no UUID.
        status, body = await gateway.call(method, path)
        assert (status, body["detail"][0]["type"]) == (422, "uuid_parsing")
        return
    assert await gateway.call(method, path) == (405, {"detail": "Method Not Allowed"})


async def test_unforeseen_failures_are_json_500_without_their_message(gateway, capsys):
    gateway.supervisor.failure = RuntimeError("s3cr3t")
    status, body = await gateway.call("POST", "/api/conversations", {"workspace": {"working_dir": "/w"}})
    assert status == 500
    assert body["detail"] == "Internal Server Error"
    assert body["exception"] == "RuntimeError"
    assert re.fullmatch(r"[0-9a-f]{32}", body["error_id"])
    assert "s3cr3t" not in str(body)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_a_slash_at_the_end_is_one_too_many(gateway, method):
    """A client that writes one is sent on with its method and body, as by the interface's own server."""
    client = gateway.app.test_client()
    response = await client.open("/api/conversations/search/?limit=1&tag=a%20b", method=method)
    assert (response.status_code, response.headers["Location"]) == (
        307,
        "../search?limit=1&tag=a%20b",  # below the prefix of a proxy, too
    )
    for path in ("/api/nothing/", "/api//", "//evil.example/", "/api/conversations/search//"):
        response = await client.open(path, method=method)
        assert (response.status_code, response.headers.get("Location")) == (404, None), path
