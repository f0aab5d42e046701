"""Who may ask, from where, and how much: session keys, CORS, body sizes."""

from __future__ import annotations

import pytest

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
