"""Who may ask, from where, and how much: session keys, CORS, body sizes."""

from __future__ import annotations

import socket

import attrs
import pytest
import trio

from gateway.api.app import create_app
from gateway.configuration.config import Config
from gateway.http.access import Hosts, is_known
from supervisor.credentials.lookup import Lookups
from supervisor.credentials.source import LookupSecret

ORIGINS = [
    ("http://localhost:3000", True),
    ("https://localhost", True),
    ("http://127.0.0.1:18736", True),
    ("http://[::1]:5173", True),
    ("http://localhost.evil.example", False),
    ("http://evil.example", False),
    ("http://127.0.0.1.evil.example:80", False),
    ("null", False),
]


async def status_of(gateway, path, headers=None, method="GET"):
    return (await gateway.call(method, path, headers=headers or {}))[0]


async def test_keys_close_the_api_and_nothing_else(gateway_with):
    async with gateway_with(session_api_keys=("first", "schlüssel")) as gateway:
        for path in ("/api/settings", "/api/conversations/search", "/api/nothing"):
            for headers in ({}, {"X-Session-API-Key": "wrong"}, {"X-Session-API-Key": ""}):
                assert await gateway.call("GET", path, headers=headers) == (401, {"detail": "Unauthorized"})
        assert await status_of(gateway, "/api/settings", {"X-Session-API-Key": "first"}) == 200
        assert await status_of(gateway, "/api/settings", {"X-Session-API-Key": "schlüssel"}) == 200
        for path in ("/", "/alive", "/health", "/ready", "/server_info", "/openapi.json"):
            assert await status_of(gateway, path) == 200
        assert await status_of(gateway, "/api/settings?session_api_key=first") == 401


@pytest.mark.parametrize(("origin", "allowed"), ORIGINS)
async def test_cors(gateway, origin, allowed):
    client = gateway.app.test_client()
    for path in ("/server_info", "/api/settings", "/api/nothing", "/api/conversations/x"):
        response = await client.get(path, headers={"Origin": origin})
        assert response.headers.get("Access-Control-Allow-Origin") == (origin if allowed else None)
        assert response.headers.get("Access-Control-Allow-Credentials") == ("true" if allowed else None)
        assert response.headers["Vary"] == "Origin"


@pytest.mark.parametrize(("origin", "allowed"), ORIGINS)
async def test_preflights_need_no_key(gateway_with, origin, allowed):
    async with gateway_with(session_api_keys=("k",)) as gateway:
        headers = {
            "Origin": origin,
            "Access-Control-Request-Method": "PATCH",
            "Access-Control-Request-Headers": "x-session-api-key,x-expose-secrets,content-type",
        }
        response = await gateway.app.test_client().options("/api/settings", headers=headers)
        assert response.status_code == 204
        assert response.headers.get("Access-Control-Allow-Origin") == (origin if allowed else None)
        if allowed:
            assert "PATCH" in response.headers["Access-Control-Allow-Methods"]
            assert (
                response.headers["Access-Control-Allow-Headers"] == headers["Access-Control-Request-Headers"]
            )
        else:
            assert "Access-Control-Allow-Headers" not in response.headers


async def test_configured_origins(gateway_with):
    settings = {"cors_origins": ("https://ui.example",), "cors_origin_regex": r"https://.*\.team\.example"}
    async with gateway_with(**settings) as gateway:
        for origin, allowed in (
            ("https://ui.example", True),
            ("https://a.team.example", True),
            ("https://a.team.example.evil", False),
        ):
            response = await gateway.app.test_client().get("/alive", headers={"Origin": origin})
            assert ("Access-Control-Allow-Origin" in response.headers) is allowed


async def test_large_bodies_are_413(gateway_with):
    async with gateway_with(max_body_bytes=1000) as gateway:
        body = {"workspace": {"working_dir": "/w"}, "title": "x" * 1000}
        status, answer = await gateway.call("POST", "/api/conversations", body)
        assert status == 413
        assert isinstance(answer["detail"], str)
        conversation = await gateway.conversation()
        path = f"/api/conversations/{conversation.id}/events"
        assert (await gateway.call("GET", path, ["x" * 1000]))[0] == 413
        assert (await gateway.call("PATCH", "/api/settings", {"misc_settings_diff": {"a": "x" * 1000}}))[
            0
        ] == 413


OWN_NAMES = [
    *("localhost", "localhost:8000", "LOCALHOST.:1", "ui.localhost:3000", "127.0.0.1:8000", "127.4.5.6"),
    *("[::1]:8000", "[::1]", "[::ffff:127.0.0.1]:1"),
]
FOREIGN_NAMES = [
    *("evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example"),
    *("192.168.1.5:8000", "2130706433", "::1", "[::2]", "evillocalhost", "localhost:x", "localhost@evil"),
    *("evil.example#localhost", "a b", "", None),
]


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_names_of_an_open_server(host):
    hosts = Hosts(Config(host=host))
    assert [name for name in OWN_NAMES if not hosts.allows(name)] == []
    assert [name for name in FOREIGN_NAMES if hosts.allows(name)] == []


def test_names_of_an_open_server_on_the_network():
    """No address can be rebound, and a name of the machine must be told."""
    hosts = Hosts(Config(host="0.0.0.0", allow_open=True))
    assert all(map(hosts.allows, (*OWN_NAMES, "192.168.1.5:8000", "[fe80::1]:8000", "0.0.0.0:8000")))
    assert not any(map(hosts.allows, ("evil.example", "box", None, "")))
    assert Hosts(Config(host="Box.example", allow_open=True)).allows("box.example:8000")


def test_names_that_the_operator_adds():
    for keys in ((), ("k",)):
        hosts = Hosts(Config(allowed_hosts=("A.example", "*.b.example"), session_api_keys=keys))
        assert all(
            map(hosts.allows, ("a.example", "a.EXAMPLE.:443", "x.b.example", "x.y.b.example:80", "localhost"))
        )
        assert not any(map(hosts.allows, ("b.example", "xb.example", "x.a.example", "evil.example")))
    assert Hosts(Config(allowed_hosts=("*",))).allows("evil.example")


def test_a_server_with_keys_takes_any_name():
    assert all(map(Hosts(Config(session_api_keys=("k",))).allows, (*OWN_NAMES, *FOREIGN_NAMES)))


@pytest.mark.guarantee(name="web-pages")
async def test_a_rebound_name_reaches_nothing(gateway):
    """A page whose name resolves to this machine: to the browser its requests are to its own server."""
    rebound = {"Host": "evil.example:8000", "Origin": "http://evil.example:8000"}
    for method, path in (
        ("GET", "/api/settings"),
        ("GET", "/api/conversations/search"),
        ("GET", "/api/nothing"),
        ("GET", "/server_info"),
        ("GET", "/metrics"),
        ("GET", "/openapi.json"),
        ("POST", "/api/conversations"),
        ("OPTIONS", "/api/settings"),
    ):
        for headers in (rebound, {"Host": rebound["Host"]}):
            status, answer = await gateway.call(method, path, headers=headers)
            assert (status, list(answer)) == (421, ["detail"]), (method, path)
            assert isinstance(answer["detail"], str)
    for path in ("/alive", "/health", "/ready"):
        assert await status_of(gateway, path, {"Host": "10.0.0.7:8000"}) == 200


async def test_a_proxy_under_its_own_name_needs_a_key_only(gateway_with):
    async with gateway_with(session_api_keys=("k",)) as gateway:
        proxied = {"Host": "ostler.example", "Origin": "https://ostler.example"}
        assert await status_of(gateway, "/api/settings", proxied) == 401
        headers = {**proxied, "X-Session-API-Key": "k"}
        assert await status_of(gateway, "/api/settings", headers) == 200
        conversation = await gateway.conversation()
        path = f"/api/conversations/{conversation.id}/run"
        assert await status_of(gateway, path, headers, "POST") == 200
        assert await status_of(gateway, path, proxied, "POST") == 401


@pytest.mark.guarantee(name="web-pages")
@pytest.mark.parametrize(("origin", "allowed"), [*ORIGINS, (None, True), ("http://LOCALHOST:9", False)])
async def test_foreign_pages_change_nothing_on_an_open_server(gateway, origin, allowed):
    conversation = await gateway.conversation()
    headers = {} if origin is None else {"Origin": origin}
    base = f"/api/conversations/{conversation.id}"
    for method, path in (
        ("POST", f"{base}/run"),  # without a body: a form of any page can send this
        ("POST", f"{base}/interrupt"),
        ("POST", "/api/nothing"),
        ("PATCH", base),
        ("PUT", "/api/settings/secrets"),
        ("DELETE", "/api/nothing"),
    ):
        status, answer = await gateway.call(method, path, headers=headers)
        assert (status == 403) is not allowed, (method, path)
        assert allowed or isinstance(answer["detail"], str)
    assert ("run" in conversation.calls) is allowed
    # Reading is safe: a browser does not show the answer to a page that CORS does not name.
    assert await status_of(gateway, "/api/settings", headers) == 200


async def test_a_page_that_we_serve_may_act(gateway_with):
    async with gateway_with(allowed_hosts=("box.example",)) as gateway:
        conversation = await gateway.conversation()
        path = f"/api/conversations/{conversation.id}/run"
        for host, origin, status in (
            ("box.example:8000", "http://box.example:8000", 200),
            ("box.example", "https://box.example", 200),
            ("box.example:8000", "http://box.example:9000", 403),
            ("box.example:8000", "http://evil.example", 403),
            ("box.example", "null", 403),
        ):
            headers = {"Host": host, "Origin": origin}
            assert await status_of(gateway, path, headers, "POST") == status, origin


async def test_configured_origins_may_act(gateway_with):
    async with gateway_with(cors_origins=("https://ui.example",)) as gateway:
        conversation = await gateway.conversation()
        path = f"/api/conversations/{conversation.id}/run"
        assert await status_of(gateway, path, {"Origin": "https://ui.example"}, "POST") == 200
        assert await status_of(gateway, path, {"Origin": "https://ui.example.evil"}, "POST") == 403


async def test_plaintext_needs_what_everything_needs(gateway_with):
    """A key where there are keys; and never a page that may not read."""
    async with gateway_with(session_api_keys=("k",)) as gateway:
        headers = {"X-Expose-Secrets": "plaintext"}
        assert await status_of(gateway, "/api/settings", headers) == 401
        assert await status_of(gateway, "/api/settings", {**headers, "X-Session-API-Key": "k"}) == 200
        client = gateway.app.test_client()
        foreign = {**headers, "X-Session-API-Key": "k", "Origin": "https://evil.example"}
        response = await client.get("/api/settings", headers=foreign)
        assert "Access-Control-Allow-Origin" not in response.headers
        assert response.headers["Cache-Control"] == "no-store"


async def test_no_cookies(gateway_with):
    """Nothing that a browser sends by itself, but for files of workspaces (test_workspace_routes.py)."""
    async with gateway_with(session_api_keys=("k",)) as gateway:
        client = gateway.app.test_client()
        for method, path in (
            ("GET", "/server_info"),
            ("GET", "/api/settings"),
        ):
            response = await client.open(path, method=method, headers={"X-Session-API-Key": "k"})
            assert "Set-Cookie" not in response.headers
        cookie = {"Cookie": "oh_workspace_session_key=k; session_api_key=k"}
        assert await status_of(gateway, "/api/settings", cookie) == 401


async def test_conversations_are_bounded(gateway_with):
    async with gateway_with(max_conversations=2) as gateway:
        conversation = await gateway.conversation()
        await gateway.conversation()
        body = {"workspace": {"working_dir": "/w"}}
        status, answer = await gateway.call("POST", "/api/conversations", body)
        assert status == 429
        assert "OSTLER_MAX_CONVERSATIONS" in answer["detail"]
        # What is there already is answered as ever.
        again = {**body, "conversation_id": conversation.id}
        assert (await gateway.call("POST", "/api/conversations", again))[0] == 200
        other = {**body, "conversation_id": "00000000-0000-4000-8000-000000000000"}
        assert (await gateway.call("POST", "/api/conversations", other))[0] == 429
        await gateway.call("DELETE", f"/api/conversations/{conversation.id}")
        assert (await gateway.call("POST", "/api/conversations", body))[0] == 201


def test_keys_that_are_no_text():
    """The environment and JSON may hold what cannot be encoded."""
    assert is_known("a\udcff", ("b", "a\udcff"))
    assert not is_known("\ud800", ("a\udcff", "b"))
    assert not is_known("", ("a",))


@pytest.mark.guarantee(name="malicious-agents")
@pytest.mark.parametrize(
    "form", ["http://127.0.0.1:{}/", "http://[::ffff:127.0.0.1]:{}/x", "http://localhost.:{}/"]
)
async def test_no_request_makes_the_server_fetch_anything(gateway, form):
    """A secret that is kept elsewhere is fetched when an agent starts, and no MCP server is asked either."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        url = form.format(listening.getsockname()[1])
        body = {
            "workspace": {"working_dir": "/w"},
            "secrets": {"A": {"kind": "LookupSecret", "url": url, "headers": {"X-Session-API-Key": "k"}}},
        }
        status, info = await gateway.call("POST", "/api/conversations", body)
        assert status == 201
        path = f"/api/conversations/{info['id']}/secrets"
        assert (await gateway.call("POST", path, {"secrets": body["secrets"]}))[0] == 200
        kept = gateway.supervisor.conversations[info["id"]]
        assert (
            kept.request.secrets
            == kept.secrets
            == {"A": LookupSecret(url, headers={"X-Session-API-Key": "k"})}
        )
        servers = {"agent_settings_diff": {"mcp_config": {"far": {"url": url, "transport": "http"}}}}
        assert (await gateway.call("PATCH", "/api/settings", servers))[0] == 200
        assert (await gateway.call("POST", "/api/conversations", {"workspace": {"working_dir": "/w"}}))[
            0
        ] == 201
        await trio.sleep(0.05)
        with pytest.raises(BlockingIOError):
            listening.accept()


@pytest.mark.guarantee(name="clients-with-a-key")
async def test_an_operator_names_the_hosts_that_keep_secrets(gateway):
    launcher = attrs.evolve(gateway.services.launcher, lookups=Lookups(("keys.example",)))
    app = create_app(attrs.evolve(gateway.services, launcher=launcher))
    closed = attrs.evolve(gateway, app=app)
    conversation = await gateway.conversation()
    for path, more in (
        ("/api/conversations", {"workspace": {"working_dir": "/w"}}),
        (f"/api/conversations/{conversation.id}/secrets", {}),
    ):
        for host, expected in (("keys.example", {200, 201}), ("127.0.0.1", {422})):
            body = {**more, "secrets": {"A": {"kind": "LookupSecret", "url": f"https://{host}/a"}}}
            status, answer = await closed.call("POST", path, body)
            assert status in expected
            if status == 422:
                assert answer["detail"][0]["loc"] == ["body", "secrets", "A", "url"]
                assert "OSTLER_SECRET_LOOKUPS" in answer["detail"][0]["msg"]
