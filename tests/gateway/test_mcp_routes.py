"""MCP over the interface: servers of the settings, trying one, logging in to one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx2
import pytest
import trio

from supervisor.credentials.secret import MasterKeyUnavailable
from tests.support.mcp_helper import helpers_inside
from tests.support.mcp_servers import STDIO, TOOLS, real_server
from tests.support.processes import mentioning

VALUE = "value-of-a-secret-header"
ONE = "/api/settings/mcp/files"


async def servers(gateway: Any) -> dict[str, Any]:
    _, found = await gateway.call("GET", "/api/settings", headers={"X-Expose-Secrets": "plaintext"})
    return found["agent_settings"]["mcp_config"]


async def test_servers_of_the_settings(gateway: Any) -> None:
    entry = {"command": "c", "env": {"A": VALUE, "B": "b"}, "args": None}
    status, found = await gateway.call("POST", ONE, entry)
    assert status == 201
    assert found["agent_settings"]["mcp_config"]["files"]["env"] == {"A": "**********", "B": "**********"}
    whole = {"command": "c", "env": {"A": VALUE, "B": "b"}, "enabled": True}
    assert (await servers(gateway))["files"] == whole
    status, found = await gateway.call("POST", ONE, entry)
    assert (status, "already" in found["detail"]) == (409, True)
    status, found = await gateway.call("PATCH", ONE, {"enabled": False, "env": {"B": None, "C": "c"}})
    assert status == 200
    assert (await servers(gateway))["files"] == {
        "command": "c", "env": {"A": VALUE, "C": "c"}, "enabled": False,
    }  # fmt: skip
    assert (await gateway.call("PATCH", ONE, {"command": None, "url": "https://x"}))[0] == 200
    assert (await servers(gateway))["files"]["url"] == "https://x"
    assert (await gateway.call("DELETE", ONE))[0] == 200
    assert await servers(gateway) == {}
    for method, body in (("PATCH", {"enabled": True}), ("DELETE", None)):
        assert (await gateway.call(method, ONE, body))[0] == 404


async def test_a_secret_that_was_shown_encrypted_comes_back_in_the_clear(gateway: Any) -> None:
    token = gateway.services.secrets.cipher.encrypt(VALUE.encode())
    assert (await gateway.call("POST", ONE, {"command": "c", "env": {"A": token}}))[0] == 201
    assert (await servers(gateway))["files"]["env"] == {"A": VALUE}
    assert (await gateway.call("PATCH", ONE, {"env": {"B": token}, "args": ["x"]}))[0] == 200
    assert (await servers(gateway))["files"]["env"] == {"A": VALUE, "B": VALUE}
    for method, body in (("PATCH", {"env": {"B": token[:-4]}}), ("PATCH", {"headers": {"H": "gAAAAno"}})):
        status, answer = await gateway.call(method, ONE, body)
        assert (status, answer["detail"][0]["loc"]) == (422, ["body"])
    assert (await servers(gateway))["files"]["env"] == {"A": VALUE, "B": VALUE}


async def test_without_a_key_no_token_is_taken_for_a_secret(gateway: Any) -> None:
    token = gateway.services.secrets.cipher.encrypt(VALUE.encode())

    class Keyless:
        @property
        def cipher(self) -> Any:
            raise MasterKeyUnavailable("x", "there is none")

    object.__setattr__(gateway.services, "secrets", Keyless())
    bodies = {
        ("POST", ONE): {"command": "c", "env": {"A": token}},
        ("PATCH", "/api/settings"): {
            "agent_settings_diff": {"mcp_config": {"x": {"command": "c", "env": {"A": token}}}}
        },
        ("POST", "/api/profiles/p"): {"llm": {"model": "m", "api_key": token}},
    }
    for (method, path), body in bodies.items():
        assert (await gateway.call(method, path, body))[0] == 503
    # What is in the clear needs no key here.
    assert (await gateway.call("POST", ONE, {"command": "c", "args": ["x"]}))[0] == 201


async def test_a_trial_is_answered_before_its_client_gives_up(gateway: Any, monkeypatch: Any) -> None:
    async def stuck(*_: Any, **__: Any) -> dict[str, Any]:
        await trio.sleep_forever()
        raise AssertionError

    monkeypatch.setattr("supervisor.conversations.mcp.probe.ask_helper", stuck)
    monkeypatch.setattr("gateway.api.routes.settings.mcp.MORE_SECONDS", 0.1)
    body = {"server": {"type": "http", "url": "http://127.0.0.1:1"}, "timeout": 0.1}
    with trio.fail_after(30):
        status, answer = await gateway.call("POST", "/api/mcp/test", body)
    assert (status, answer["ok"], answer["error_kind"]) == (200, False, "timeout")


@pytest.mark.parametrize(
    ("method", "body", "loc"),
    [
        ("POST", {"command": 1}, ["body", "command"]),
        ("POST", {}, ["body"]),
        ("POST", [], ["body"]),
        ("POST", {"command": "c", "odd": 1}, ["body", "odd"]),
        ("POST", {"command": "c", "url": "u"}, ["body"]),
        ("PATCH", {"env": {"A": 1}}, ["body", "env", "A"]),
        ("PATCH", {"command": None}, ["body"]),
        ("PATCH", "x", ["body"]),
        ("PATCH", ..., ["body"]),
        ("POST", ..., ["body"]),
    ],
)
async def test_what_is_no_server(gateway: Any, method: str, body: Any, loc: list[str]) -> None:
    if method == "PATCH":
        assert (await gateway.call("POST", ONE, {"command": "c"}))[0] == 201
    before = await servers(gateway)
    more = {"data": b"null", "headers": {"Content-Type": "application/json"}} if body is ... else {}
    status, found = await gateway.call(method, ONE, None if body is ... else body, **more)
    assert status == 422
    assert found["detail"][0]["loc"] == loc
    assert await servers(gateway) == before


@pytest.fixture
def helpers_in_here() -> Iterator[None]:
    """Helpers start no process: the SDK, which they import, is imported once."""
    with helpers_inside(logins=True):
        yield


async def test_trying_a_command(gateway: Any, tmp_path: Path) -> None:
    await gateway.services.secrets.set("TRACKER", VALUE)
    server = {"type": "stdio", **STDIO, "env": {"KEY": "${TRACKER}", "PLACE": str(tmp_path)}}
    call = {"name": "secret_sum", "arguments": {"a": 1, "b": 2}}
    with helpers_inside():
        status, found = await gateway.call("POST", "/api/mcp/test", {"server": server, "tool_call": call})
    assert (status, found["ok"]) == (200, True), found
    assert found["tools"] == TOOLS
    assert found["tool_result"] == {"is_error": False, "text": "the secret sum is 1003"}
    call = {"name": "environment"}  # of a helper that is a process
    _, found = await gateway.call("POST", "/api/mcp/test", {"server": server, "tool_call": call})
    names = found["tool_result"]["text"].split()
    assert "KEY" in names
    assert not [name for name in names if name.startswith(("PYTEST", "COVERAGE", "OH_"))]
    assert not mentioning(tmp_path)


async def test_trying_what_does_not_work(gateway: Any, helpers_in_here: None) -> None:
    for server, kind, words in (
        ({"command": "no-such-command"}, "connection", "Command not found"),
        ({"command": "sh", "args": ["-c", f"echo {VALUE} >&2"], "env": {"A": VALUE}}, "connection", "exited"),
        ({"command": "sleep", "args": ["60"]}, "timeout", "Time-out"),
        ({"type": "http", "url": "http://127.0.0.1:1/"}, "connection", "cannot be reached"),
        ({"type": "http", "url": "http://x/", "headers": {"A": "${NONE}"}}, "unknown", "NONE"),
        (
            {"type": "shttp", "url": "http://127.0.0.1:1/", "auth": {"strategy": "oauth2"}},
            "unknown",
            "ostler mcp login tracker",
        ),
    ):
        body = {"name": "tracker", "server": server, "timeout": 3}
        status, found = await gateway.call("POST", "/api/mcp/test", body)
        assert status == 200
        assert (found["ok"], found["error_kind"]) == (False, kind), found
        assert words in found["error"]
        assert VALUE not in found["error"]


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({}, ["body", "server"]),
        ({"server": {}}, ["body", "server", "command"]),
        ({"server": {"type": "http"}}, ["body", "server", "url"]),
        ({"server": {"type": "http", "url": "u", "headers": {"A": 1}}}, ["body", "server", "headers", "A"]),
        ({"server": {"type": "http", "url": "u", "auth": {}}}, ["body", "server", "auth", "strategy"]),
        ({"server": {"type": "pigeon", "url": "x"}}, ["body", "server", "type"]),
        ({"server": {"command": "c", "env": {"A": []}}}, ["body", "server", "env", "A"]),
        ({"server": {"command": "c"}, "timeout": 0}, ["body", "timeout"]),
        ({"server": {"command": "c"}, "timeout": 121}, ["body", "timeout"]),
        ({"server": {"command": "c"}, "timeout": True}, ["body", "timeout"]),
        ({"server": {"command": "c"}, "name": ""}, ["body", "name"]),
        ({"server": {"command": "c"}, "name": "x" * 129}, ["body", "name"]),
        ({"server": {"command": "c"}, "tool_call": {}}, ["body", "tool_call", "name"]),
        (
            {"server": {"type": "http", "url": "u", "auth": {"strategy": "x"}}},
            ["body", "server", "auth", "strategy"],
        ),
    ],
)
async def test_what_cannot_be_tried(gateway: Any, body: Any, loc: list[str]) -> None:
    for path in ("/api/mcp/test", "/api/mcp/oauth/start"):
        status, found = await gateway.call("POST", path, body)
        assert status == 422, found
        assert loc in [each["loc"] for each in found["detail"]], found


async def test_a_login_over_the_interface(gateway: Any, tmp_path: Path) -> None:
    with real_server("oauth", tmp_path) as real:
        body = {"name": "calc", "server": {"type": "http", "url": real.url, "auth": {"strategy": "oauth2"}}}
        status, begun = await gateway.call("POST", "/api/mcp/oauth/start", {**body, "timeout": 60})
        assert (status, begun["ok"]) == (200, True), begun
        path = f"/api/mcp/oauth/status/{begun['job_id']}"
        _, found = await gateway.call("GET", path)
        assert (found["status"], found["callback_ready"]) == ("authorizing", True)
        assert found["authorization_url"] == begun["authorization_url"]
        back = await trio.to_thread.run_sync(
            lambda: httpx2.get(begun["authorization_url"]).headers["Location"]
        )
        callback = f"/api/mcp/oauth/callback/{begun['job_id']}"
        _, found = await gateway.call("POST", callback, {"callback_url": "http://x/callback?code=a&state=b"})
        assert (found["ok"], found["status"]) == (False, "authorizing")
        assert "not the answer" in found["error"]
        _, found = await gateway.call("POST", callback, {"callback_url": back})
        with trio.fail_after(60):
            while found["status"] == "authorizing":
                await trio.sleep(0.1)
                _, found = await gateway.call("GET", path)
        assert (found["ok"], found["status"], found["tools"]) == (True, "succeeded", TOOLS), found
        assert found["oauth_state"]["tokens"]["access_token"] == "**********"
        _, found = await gateway.call("GET", path, headers={"X-Expose-Secrets": "plaintext"})
        token = real.lines("took")[-1].split()[1]
        assert found["oauth_state"]["tokens"]["access_token"] == token
        assert token not in (tmp_path / "mcp-logins.json").read_text()
        assert [
            each["name"] for each in (await gateway.call("GET", "/api/settings/secrets"))[1]["secrets"]
        ] == []
        _, found = await gateway.call("POST", "/api/mcp/test", {**body, "timeout": 60})
        assert found["ok"] is True, found


async def test_logins_that_cannot_begin(gateway: Any, helpers_in_here: None) -> None:
    status, found = await gateway.call("POST", "/api/mcp/oauth/start", {"server": {"command": "c"}})
    assert status == 422
    body = {"server": {"type": "http", "url": "http://127.0.0.1:1/"}, "timeout": 60}
    status, found = await gateway.call("POST", "/api/mcp/oauth/start", body)
    assert (status, found["ok"], found["authorization_url"]) == (200, False, None)
    assert "cannot be reached" in found["error"]
    status, found = await gateway.call("GET", f"/api/mcp/oauth/status/{found['job_id']}")
    assert (found["ok"], found["status"]) == (False, "failed")
    for method, path, body in (
        ("GET", "/api/mcp/oauth/status/nothing", None),
        ("POST", "/api/mcp/oauth/callback/nothing", {"callback_url": "http://x"}),
    ):
        assert (await gateway.call(method, path, body))[0] == 404


async def test_the_end_of_the_server_ends_a_login(gateway_with: Any, tmp_path: Path) -> None:
    with real_server("oauth", tmp_path) as real:
        async with gateway_with() as gateway:
            body = {"server": {"type": "http", "url": real.url}, "timeout": 60}
            _, begun = await gateway.call("POST", "/api/mcp/oauth/start", body)
            query = parse_qs(urlsplit(begun["authorization_url"]).query)
            address = query["redirect_uri"][0]
        with pytest.raises(httpx2.ConnectError):
            await trio.to_thread.run_sync(lambda: httpx2.get(address))
