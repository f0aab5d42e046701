"""Which credential an agent would use: told without any value."""

from __future__ import annotations

import json

from gateway.configuration.config import Config
from gateway.serving.server import open_services

PATH = "/api/agents/credentials"

LOGIN = {"claudeAiOauth": {"accessToken": "at-value", "refreshToken": "rt-value"}}


async def store(gateway, **secrets):
    for name, value in secrets.items():
        status, _ = await gateway.call(
            "PUT", "/api/settings/secrets", {"name": name, "value": value, "description": "d"}
        )
        assert status == 200


async def ask(gateway, agent):
    status, body = await gateway.call("GET", f"{PATH}?agent={agent}")
    assert status == 200, body
    (found,) = body["agents"]
    return found


async def test_a_key_then_a_login_then_a_token(gateway, tmp_path):
    assert (await ask(gateway, "claude-code"))["credential"]["kind"] == "none"
    await store(gateway, ANTHROPIC_API_KEY="key-value", ANTHROPIC_BASE_URL="http://url-value")
    assert await ask(gateway, "claude-code") == {
        "agent": "claude-code",
        "name": "Claude Code",
        "credential": {
            "kind": "api_key",
            "name": "ANTHROPIC_API_KEY",
            "file": None,
            "source": "store",
            "provider": "",
        },
        "also": [],
        "base_url": {"name": "ANTHROPIC_BASE_URL", "source": "store"},
        "withheld": [],
        "would_help": [
            "CLAUDE_CODE_OAUTH_TOKEN",
            "ANTHROPIC_AUTH_TOKEN",
            "ANTHROPIC_API_KEY",
        ],
    }
    file = tmp_path / ".claude" / ".credentials.json"
    file.parent.mkdir()
    file.write_text(json.dumps(LOGIN))
    found = await ask(gateway, "claude-code")
    assert found["credential"] == {
        "kind": "login",
        "name": None,
        "file": str(file),
        "source": "machine",
        "provider": "",
    }
    assert found["base_url"]["name"] == "ANTHROPIC_BASE_URL"
    (withheld,) = found["withheld"]
    assert withheld["name"] == "ANTHROPIC_API_KEY"
    assert withheld["reason"].startswith("a login takes priority over a key")
    await store(gateway, CLAUDE_CODE_OAUTH_TOKEN="oat-value")
    assert (await ask(gateway, "claude-code"))["credential"]["name"] == "CLAUDE_CODE_OAUTH_TOKEN"


async def test_all_agents_and_no_value(gateway, tmp_path):
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / ".credentials.json").write_text(json.dumps(LOGIN))
    secrets = {
        "ANTHROPIC_API_KEY": "key-value",
        "GROQ_API_KEY": "groq-value",
        "CODEX_AUTH_JSON": "auth-value",
    }
    await store(gateway, **secrets)
    status, body = await gateway.call("GET", PATH)
    assert status == 200
    found = {each["agent"]: each for each in body["agents"]}
    assert set(found) == set(gateway.services.launcher.catalog)
    assert found["custom"]["credential"]["kind"] == "unknown"
    assert found["gemini-cli"]["credential"]["kind"] == "none"
    assert [each["name"] for each in found["opencode"]["also"]] == ["GROQ_API_KEY"]
    assert not any(value in json.dumps(body) for value in (*secrets.values(), "at-value", "rt-value"))


async def test_an_unknown_agent(gateway):
    assert await gateway.call("GET", f"{PATH}?agent=nobody") == (404, {"detail": "No such agent"})


async def test_the_server_keeps_rotated_logins_and_knows_where_secrets_were_given(tmp_path):
    environ = {"HOME": str(tmp_path), "OSTLER_SECRET_GEMINI_API_KEY": "key-value"}
    async with open_services(Config(state=tmp_path / "state"), environ, "http://127.0.0.1", None) as services:
        assert (await services.launcher.credentials("gemini-cli")).credential.origin == "variable"
        login = json.dumps({"tokens": {"refresh_token": "one"}})
        await services.secrets.set("CODEX_AUTH_JSON", login, "mine")
        assert (await services.launcher.credentials("codex")).credential.origin == "store"
        target = tmp_path / "auth.json"
        logins = services.launcher._credentials.logins
        loan = await logins.checkout("CODEX_AUTH_JSON", login, user="c", target=target)
        target.write_text(login.replace("one", "two"))
        await logins.release(loan)
        assert await services.secrets.get("CODEX_AUTH_JSON") == login.replace("one", "two")
        (info,) = await services.secrets.list()
        assert info.description == "mine"
