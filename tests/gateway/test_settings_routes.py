"""`/api/settings`, its secrets, and `/api/agent-profiles`."""

from __future__ import annotations

import uuid

import pytest

from supervisor.agents.catalog import load_catalog, presets
from supervisor.credentials.store import SecretStore
from supervisor.settings.agent import match_preset
from supervisor.settings.wire_aliases import settings_on_wire
from tests.gateway.harness import PRESETS

SETTINGS = "/api/settings"
SECRETS = "/api/settings/secrets"
PROFILES = "/api/agent-profiles"


async def test_settings_have_the_wire_form(gateway):
    status, body = await gateway.call("GET", SETTINGS)
    assert status == 200
    assert set(body) == {
        "agent_settings",
        "conversation_settings",
        "llm_api_key_is_set",
        "active_profile",
        "active_agent_profile_id",
        "active_meta_profile",
        "misc_settings",
    }
    # Clients' enumeration of agents does not have the demo agent: it is a custom one to them.
    assert body["agent_settings"]["acp_server"] == "custom"
    assert body["agent_settings"]["acp_command"] == ["demo-agent"]


@pytest.mark.parametrize("keys", [["acp_server", "acp_command"], ["acp_server"], ["acp_command"], []])
async def test_the_demo_agent_comes_back_as_it_was_told(gateway, keys):
    told = (await gateway.call("GET", SETTINGS))[1]["agent_settings"]
    diff = {**{key: told[key] for key in keys}, "acp_model": "demo-terse"}
    status, body = await gateway.call("PATCH", SETTINGS, {"agent_settings_diff": diff})
    assert status == 200
    assert (body["agent_settings"]["acp_server"], body["agent_settings"]["acp_model"]) == (
        "custom",
        "demo-terse",
    )
    kept = await gateway.services.settings.get()
    assert kept.agent_settings["acp_server"] == "demo"
    assert tuple(kept.agent_settings["acp_command"]) == PRESETS["demo"]


async def test_the_first_profile_is_the_demo_agent_with_its_command(gateway):
    await gateway.call("GET", PROFILES)
    profile = (await gateway.call("GET", f"{PROFILES}/default"))[1]["profile"]
    assert (profile["acp_server"], profile["acp_command"]) == ("custom", "demo-agent")
    body = {key: value for key, value in profile.items() if key not in ("id", "revision")}
    assert (await gateway.call("POST", f"{PROFILES}/default", body))[0] == 201
    kept = await gateway.services.profiles.get("default")
    assert (kept.acp_server, kept.acp_command) == ("demo", None)
    assert (await gateway.call("GET", f"{PROFILES}/default"))[1]["profile"]["acp_command"] == "demo-agent"


async def test_every_agent_of_the_catalogue_has_a_name_that_clients_know():
    known = {"claude-code", "codex", "gemini-cli", "kimi-code", "pi", "opencode", "custom"}
    catalog = load_catalog()
    for key, command in presets(catalog).items():
        told = settings_on_wire({"acp_server": key, "acp_command": list(command)})
        assert told["acp_server"] in known
        assert match_preset(told["acp_server"], command, presets(catalog)) == (key, command)


async def test_choosing_an_agent(gateway):
    diff = {"agent_kind": "acp", "acp_server": "codex", "acp_model": "gpt-5.5"}
    status, body = await gateway.call("PATCH", SETTINGS, {"agent_settings_diff": diff})
    assert status == 200
    # The provider's own command is not spelled out, as the wire has it.
    assert body["agent_settings"]["acp_command"] == []
    assert (await gateway.call("GET", SETTINGS))[1] == body


@pytest.mark.parametrize(
    ("body", "status", "loc"),
    [
        ({}, 400, None),
        ({"unknown": 1}, 400, None),
        ([], 422, ["body"]),
        ({"agent_settings_diff": []}, 422, ["body", "agent_settings_diff"]),
        ({"agent_settings_diff": {"acp_server": "x"}}, 422, ["body", "agent_settings_diff", "acp_server"]),
        ({"agent_settings_diff": {"agent_kind": "x"}}, 422, ["body", "agent_settings_diff", "agent_kind"]),
        ({"active_agent_profile_id": "x"}, 422, ["body", "active_agent_profile_id"]),
        ({"active_agent_profile_id": str(uuid.uuid4())}, 404, None),
    ],
)
async def test_bad_changes(gateway, body, status, loc):
    found, answer = await gateway.call("PATCH", SETTINGS, body)
    assert found == status
    if loc is None:
        assert isinstance(answer["detail"], str)
    else:
        assert answer["detail"][0]["loc"] == loc


@pytest.mark.guarantee(name="secrets-stay-in")
async def test_exposing_secrets(gateway):
    servers = {"x": {"command": "x", "env": {"KEY": "s3cr3t"}}}
    body = {"agent_settings_diff": {"mcp_config": servers}}
    status, answer = await gateway.call("PATCH", SETTINGS, body)
    assert status == 200, answer
    assert "s3cr3t" not in str(answer)

    async def shown(header):
        headers = {} if header is None else {"X-Expose-Secrets": header}
        _, found = await gateway.call("GET", SETTINGS, headers=headers)
        return found["agent_settings"]["mcp_config"]["x"]["env"]["KEY"]

    assert await shown(None) == "**********"
    assert await shown("plaintext") == "s3cr3t"
    for header in ("encrypted", "true"):
        token = await shown(header)
        assert gateway.services.secrets.cipher.decrypt(token) == b"s3cr3t"
    status, answer = await gateway.call("GET", SETTINGS, headers={"X-Expose-Secrets": "please"})
    assert status == 400
    assert isinstance(answer["detail"], str)


async def test_unreadable_settings_are_409(gateway, tmp_path):
    (tmp_path / "settings.json").write_text("{")
    for method, body in (("GET", None), ("PATCH", {"misc_settings_diff": {"a": 1}})):
        status, answer = await gateway.call(method, SETTINGS, body)
        assert status == 409
        assert "settings.json" in answer["detail"]


@pytest.mark.parametrize(
    ("name", "model"), [("agent", "AgentSettings"), ("conversation", "ConversationSettings")]
)
async def test_schemas(gateway, name, model):
    status, body = await gateway.call("GET", f"{SETTINGS}/{name}-schema")
    assert (status, body["model_name"]) == (200, model)
    assert all(section["fields"] for section in body["sections"])


@pytest.mark.guarantee(name="secrets-stay-in")
async def test_secrets_are_never_listed(gateway):
    assert await gateway.call("GET", SECRETS) == (200, {"secrets": []})
    body = {"name": "MY_KEY", "value": "s3cr3t", "description": "mine"}
    assert await gateway.call("PUT", SECRETS, body) == (200, {"name": "MY_KEY", "description": "mine"})
    assert await gateway.call("PUT", SECRETS, {"name": "OTHER", "value": "x"}) == (
        200,
        {"name": "OTHER", "description": None},
    )
    assert await gateway.call("GET", SECRETS) == (
        200,
        {"secrets": [{"name": "MY_KEY", "description": "mine"}, {"name": "OTHER", "description": None}]},
    )
    response = await gateway.app.test_client().get(f"{SECRETS}/MY_KEY")
    assert response.status_code == 200
    assert response.content_type == "text/plain; charset=utf-8"
    assert response.headers["Cache-Control"] == "no-store"
    assert await response.get_data(as_text=True) == "s3cr3t"
    assert await gateway.call("DELETE", f"{SECRETS}/MY_KEY") == (200, {"deleted": True})
    for method in ("GET", "DELETE"):
        assert await gateway.call(method, f"{SECRETS}/MY_KEY") == (404, {"detail": "Secret not found"})


async def test_a_profile_sees_the_secrets_that_it_names(gateway):
    for name in ("A", "B"):
        await gateway.call("PUT", SECRETS, {"name": name, "value": "x"})
    await gateway.call("POST", f"{PROFILES}/all", {})
    await gateway.call("POST", f"{PROFILES}/some", {"secret_refs": ["B", "GONE"]})
    for profile, names in (("all", ["A", "B"]), ("some", ["B"])):
        _, detail = await gateway.call("GET", f"{PROFILES}/{profile}")
        _, listed = await gateway.call("GET", f"{SECRETS}?agent_profile_id={detail['profile']['id']}")
        assert [secret["name"] for secret in listed["secrets"]] == names
    status, body = await gateway.call("GET", f"{SECRETS}?agent_profile_id=x")
    assert (status, body["detail"][0]["loc"]) == (422, ["query", "agent_profile_id"])
    assert (await gateway.call("GET", f"{SECRETS}?agent_profile_id={uuid.uuid4()}"))[0] == 404


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({"value": "s3cr3t"}, ["body", "name"]),
        ({"name": "A"}, ["body", "value"]),
        ({"name": "1A", "value": "s3cr3t"}, ["body", "name"]),
        ({"name": "A B", "value": "s3cr3t"}, ["body", "name"]),
        ({"name": "A" * 65, "value": "s3cr3t"}, ["body", "name"]),
        ({"name": "A", "value": " "}, ["body", "value"]),
        ({"name": "A", "value": "**********"}, ["body", "value"]),
        ({"name": "A", "value": 1}, ["body", "value"]),
        ({"name": "A", "value": "s3cr3t", "description": 1}, ["body", "description"]),
    ],
)
async def test_bad_secrets(gateway, body, loc):
    status, answer = await gateway.call("PUT", SECRETS, body)
    assert (status, answer["detail"][0]["loc"]) == (422, loc)
    assert "s3cr3t" not in str(answer)


async def test_a_wrong_master_key_is_told_and_destroys_nothing(gateway, tmp_path):
    await gateway.call("PUT", SECRETS, {"name": "A", "value": "x"})
    stored = (tmp_path / "secrets.json").read_bytes()
    (tmp_path / "master.key").unlink()  # a key that fits would win
    other = await SecretStore.open(tmp_path, {"OSTLER_MASTER_KEY": "another"})
    object.__setattr__(gateway.services, "secrets", other)
    status, body = await gateway.call("GET", SECRETS)
    assert status == 409
    assert "master key" in body["detail"]
    assert (tmp_path / "secrets.json").read_bytes() == stored


async def test_profiles(gateway):
    status, listed = await gateway.call("GET", PROFILES)
    assert status == 200
    assert [profile["name"] for profile in listed["profiles"]] == ["default"]
    assert listed["active_agent_profile_id"] == listed["profiles"][0]["id"]

    status, saved = await gateway.call(
        "POST", f"{PROFILES}/mine", {"agent_kind": "acp", "acp_server": "codex"}
    )
    assert (status, saved["name"]) == (201, "mine")
    status, detail = await gateway.call("GET", f"{PROFILES}/mine")
    assert (status, detail["name"], detail["profile"]["acp_server"]) == (200, "mine", "codex")
    profile_id = detail["profile"]["id"]

    for spelling in (profile_id, profile_id.replace("-", "")):
        status, activated = await gateway.call("POST", f"{PROFILES}/{spelling}/activate")
        assert (status, activated["id"], activated["agent_settings_applied"]) == (200, profile_id, False)
    assert (await gateway.call("GET", PROFILES))[1]["active_agent_profile_id"] == profile_id

    status, renamed = await gateway.call("POST", f"{PROFILES}/mine/rename", {"new_name": "yours"})
    assert (status, renamed["name"]) == (200, "yours")
    assert (await gateway.call("DELETE", f"{PROFILES}/yours"))[0] == 200
    assert (await gateway.call("DELETE", f"{PROFILES}/yours"))[0] == 200
    assert (await gateway.call("GET", f"{PROFILES}/yours"))[0] == 404


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/bad name", {}, 422),
        ("POST", "/p", {"acp_server": "unknown"}, 422),
        ("POST", "/p", {"unknown": 1}, 422),
        ("POST", "/p", {"agent_kind": "openhands"}, 422),
        ("POST", "/p", {"agent_kind": "openhands", "llm_profile_ref": "x", "acp_server": "codex"}, 422),
        ("POST", "/p/materialize", None, 404),
        ("POST", "/p/materialize", {"profile": []}, 422),
        ("POST", "/p/materialize", {"profile": {"acp_server": "unknown"}}, 422),
        ("POST", "/p/materialize", {"draft": {}}, 422),
        ("GET", "/p", None, 404),
        ("POST", "/p/rename", {"new_name": "q"}, 404),
        ("POST", "/default/rename", {}, 422),
        ("POST", "/default/rename", {"new_name": "a b"}, 422),
        ("POST", "/default/activate", None, 422),
        ("POST", f"/{uuid.UUID(int=4)}/activate", None, 404),
    ],
)
async def test_bad_profile_requests(gateway, method, path, body, status):
    await gateway.call("GET", PROFILES)
    found, answer = await gateway.call(method, f"{PROFILES}{path}", body)
    assert found == status
    assert isinstance(answer["detail"], list if status == 422 else str)
