"""`/api/profiles`, `/api/meta-profiles`, `/api/llm/provider-connections`, and materialize."""

from __future__ import annotations

import pytest

PROFILES = "/api/profiles"
SETTINGS = "/api/settings"
AGENTS = "/api/agent-profiles"
CONNECTIONS = "/api/llm/provider-connections"
KEY = "sk-s3cr3t"
LLM = {"model": "openai/gpt-5", "api_key": KEY}


async def test_profiles_have_the_wire_form(gateway):
    assert await gateway.call("GET", PROFILES) == (200, {"profiles": [], "active_profile": None})
    status, saved = await gateway.call("POST", f"{PROFILES}/mine", {"llm": LLM, "include_secrets": True})
    assert (status, saved) == (201, {"name": "mine", "message": "Profile 'mine' saved"})
    assert await gateway.call("POST", f"{PROFILES}/mine/activate", {}) == (
        200,
        {"name": "mine", "message": "Profile 'mine' activated", "llm_applied": False},
    )
    assert await gateway.call("GET", PROFILES) == (
        200,
        {
            "profiles": [
                {
                    "name": "mine",
                    "model": "openai/gpt-5",
                    "base_url": None,
                    "provider_connection_id": None,
                    "provider_connection_broken": False,
                    "api_key_set": True,
                }
            ],
            "active_profile": "mine",
        },
    )
    status, renamed = await gateway.call("POST", f"{PROFILES}/mine/rename", {"new_name": "yours"})
    assert (status, renamed["name"]) == (200, "yours")
    assert (await gateway.call("GET", SETTINGS))[1]["active_profile"] == "yours"
    for _ in range(2):
        status, deleted = await gateway.call("DELETE", f"{PROFILES}/yours")
        assert (status, deleted["name"]) == (200, "yours")
    assert (await gateway.call("GET", SETTINGS))[1]["active_profile"] is None


@pytest.mark.guarantee(name="keys-and-secrets")
@pytest.mark.guarantee(name="secrets-stay-in")
async def test_exposing_secrets_and_taking_them_back(gateway):
    await gateway.call("POST", f"{PROFILES}/mine", {"llm": {**LLM, "aws_session_token": "aws"}})

    async def shown(header):
        headers = {} if header is None else {"X-Expose-Secrets": header}
        status, found = await gateway.call("GET", f"{PROFILES}/mine", headers=headers)
        assert (status, found["name"], found["api_key_set"]) == (200, "mine", True)
        return found["config"]

    hidden = await shown(None)
    assert (hidden["api_key"], hidden["aws_session_token"]) == (None, "**********")
    assert (await shown("plaintext"))["api_key"] == KEY
    encrypted = await shown("encrypted")
    assert gateway.services.secrets.cipher.decrypt(encrypted["api_key"]) == KEY.encode()
    # What was shown encrypted can be stored again: as a profile, and in the settings.
    assert (await gateway.call("POST", f"{PROFILES}/copy", {"llm": encrypted}))[0] == 201
    _, copy = await gateway.call("GET", f"{PROFILES}/copy", headers={"X-Expose-Secrets": "plaintext"})
    assert copy["config"]["api_key"] == KEY
    diff = {"agent_settings_diff": {"agent_kind": "openhands", "llm": encrypted}}
    status, settings = await gateway.call("PATCH", SETTINGS, diff)
    assert (status, settings["llm_api_key_is_set"]) == (200, True)
    assert settings["agent_settings"]["llm"]["api_key"] == "**********"
    _, settings = await gateway.call("GET", SETTINGS, headers={"X-Expose-Secrets": "plaintext"})
    assert settings["agent_settings"]["llm"]["api_key"] == KEY
    for path, body, loc in (
        (f"{PROFILES}/x", {"llm": {**LLM, "api_key": "gAAAAforeign"}}, ["body", "llm"]),
        (
            SETTINGS,
            {"agent_settings_diff": {"llm": {"api_key": "gAAAAforeign"}}},
            ["body", "agent_settings_diff"],
        ),
    ):
        status, answer = await gateway.call("PATCH" if path == SETTINGS else "POST", path, body)
        assert (status, answer["detail"][0]["loc"]) == (422, loc)
        assert "gAAAAforeign" not in str(answer)
    status, _ = await gateway.call("GET", f"{PROFILES}/mine", headers={"X-Expose-Secrets": "please"})
    assert status == 400


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "loc"),
    [
        ("GET", "/nobody", None, 404, None),
        ("GET", "/bad name", None, 422, ["path", "name"]),
        ("POST", "/x", {}, 422, ["body", "llm"]),
        ("POST", "/x", {"llm": {}}, 422, ["body", "llm", "model"]),
        ("POST", "/x", {"llm": {"model": 1, "api_key": KEY}}, 422, ["body", "llm", "model"]),
        ("POST", "/x", {"llm": LLM, "include_secrets": 1}, 422, ["body", "include_secrets"]),
        ("POST", "/bad name", {"llm": LLM}, 422, ["path", "name"]),
        ("POST", "/nobody/rename", {"new_name": "x"}, 404, None),
        ("POST", "/there/rename", {"new_name": "other"}, 409, None),
        ("POST", "/there/rename", {"new_name": "../x"}, 422, ["body", "new_name"]),
        ("POST", "/nobody/activate", {}, 404, None),
        ("POST", "/there/validate", {"llm": {"model": "nobody"}}, 503, None),
        ("POST", "/there/validate", {"llm": {"model": "refused"}}, 422, ["body", "llm"]),
        ("POST", "/bad name/validate", {"llm": LLM}, 422, ["path", "name"]),
        (
            "POST",
            "/there/validate",
            {"llm": {**LLM, "provider_connection_id": "gone"}},
            422,
            ["body", "llm", "provider_connection_id"],
        ),
        ("POST", "/there/validate", {"llm": {"model": ""}}, 422, ["body", "llm", "model"]),
        ("DELETE", "/other", None, 409, None),
    ],
)
async def test_bad_requests(gateway, method, path, body, status, loc):
    for name in ("there", "other"):
        await gateway.call("POST", f"{PROFILES}/{name}", {"llm": LLM})
    profile = {"agent_kind": "openhands", "llm_profile_ref": "other"}
    assert (await gateway.call("POST", f"{AGENTS}/user", profile))[0] == 201
    found, answer = await gateway.call(method, f"{PROFILES}{path}", body)
    assert found == status, answer
    assert KEY not in str(answer)
    if loc is None:
        assert isinstance(answer["detail"], str)
    else:
        assert answer["detail"][0]["loc"] == loc


async def test_the_limit_is_told(gateway):
    for number in range(50):
        assert (await gateway.call("POST", f"{PROFILES}/p{number}", {"llm": {"model": "m"}}))[0] == 201
    status, answer = await gateway.call("POST", f"{PROFILES}/p50", {"llm": {"model": "m"}})
    assert status == 409
    assert "50" in answer["detail"]


@pytest.mark.guarantee(name="secrets-stay-in")
async def test_a_connection_is_shared_and_its_key_is_never_shown(gateway):
    assert await gateway.call("GET", CONNECTIONS) == (200, [])
    body = {"display_name": "Work", "provider": "openai", "api_key": KEY, "base_url": "https://x"}
    status, connection = await gateway.call("POST", CONNECTIONS, body)
    assert (status, connection["api_key_set"]) == (201, True)
    linked = {"llm": {"model": "m", "provider_connection_id": connection["id"]}}
    await gateway.call("POST", f"{PROFILES}/linked", linked)
    _, detail = await gateway.call("GET", f"{PROFILES}/linked")
    assert (detail["api_key_set"], detail["config"]["base_url"]) == (True, None)
    _, detail = await gateway.call("GET", f"{PROFILES}/linked", headers={"X-Expose-Secrets": "plaintext"})
    assert (detail["config"]["api_key"], detail["config"]["base_url"]) == (KEY, "https://x")
    one = f"{CONNECTIONS}/{connection['id']}"
    # A key that was shown encrypted is that key.
    token = gateway.services.secrets.cipher.encrypt(b"another key")
    for change in ({"api_key": token}, {"api_key": "another key"}):
        assert (await gateway.call("PATCH", one, change))[0] == 200
        _, detail = await gateway.call("GET", f"{PROFILES}/linked", headers={"X-Expose-Secrets": "plaintext"})
        assert detail["config"]["api_key"] == "another key"
    status, changed = await gateway.call("PATCH", one, {"base_url": None})
    assert (status, changed["base_url"], changed["api_key_set"]) == (200, None, True)
    assert (await gateway.call("DELETE", one))[0] == 409
    await gateway.call("DELETE", f"{PROFILES}/linked")
    status, deleted = await gateway.call("DELETE", one)
    assert (status, deleted["id"], deleted["api_key_set"]) == (200, connection["id"], False)
    for method, change in (("PATCH", {"provider": "x"}), ("DELETE", None)):
        assert (await gateway.call(method, one, change))[0] == 404
    for wrong in ({}, {**body, "api_key": " "}, {**body, "more": 1}):
        status, answer = await gateway.call("POST", CONNECTIONS, wrong)
        assert status == 422
        assert KEY not in str(answer)


async def test_meta_profiles_have_the_wire_form(gateway):
    base = "/api/meta-profiles"
    assert await gateway.call("GET", base) == (200, {"meta_profiles": [], "active_meta_profile": None})
    config = {"classifier_model": "small", "classes": [{"description": "UI", "model": "big"}]}
    assert (await gateway.call("POST", f"{base}/route", config))[0] == 201
    assert await gateway.call("GET", f"{base}/route") == (
        200,
        {"name": "route", "config": {**config, "prompt_template": None, "model_table": None}},
    )
    status, answer = await gateway.call("POST", f"{base}/route/activate", {})
    assert (status, answer["applied"]) == (200, False)
    await gateway.call("PATCH", SETTINGS, {"agent_settings_diff": {"agent_kind": "openhands"}})
    status, answer = await gateway.call("POST", f"{base}/route/activate", {})
    assert (status, answer["applied"]) == (200, True)
    assert (await gateway.call("GET", base))[1] == {
        "meta_profiles": [{"name": "route", "classifier_model": "small", "num_classes": 1}],
        "active_meta_profile": "route",
    }
    assert (await gateway.call("DELETE", f"{base}/route"))[0] == 200
    assert (await gateway.call("GET", base))[1]["active_meta_profile"] is None
    for method, path in (("GET", "/route"), ("POST", "/route/activate")):
        assert (await gateway.call(method, f"{base}{path}"))[0] == 404
    status, answer = await gateway.call("POST", f"{base}/x", {"classifier_model": "m"})
    assert (status, answer["detail"][0]["loc"]) == (422, ["body"])


async def test_materialize_never_fails(gateway):
    await gateway.call("GET", AGENTS)
    for body in (None, {}, {"profile": None}):
        status, found = await gateway.call("POST", f"{AGENTS}/default/materialize", body)
        assert (status, found["valid"], found["agent_kind"]) == (200, True, "acp")
    draft = {"agent_kind": "openhands", "llm_profile_ref": "nobody"}
    status, found = await gateway.call("POST", f"{AGENTS}/new/materialize", {"profile": draft})
    assert (status, found["valid"], found["llm_profile_ref"]) == (200, False, "nobody")
    assert (await gateway.call("GET", f"{AGENTS}/new"))[0] == 404  # a draft is not stored
    draft = {"agent_kind": "acp", "acp_server": "codex"}
    _, found = await gateway.call("POST", f"{AGENTS}/new/materialize", {"profile": draft})
    assert (found["acp_api_key_secret_name"], found["acp_base_url_secret_name"]) == (
        "OPENAI_API_KEY",
        "OPENAI_BASE_URL",
    )
    assert found["acp_file_secret_names"] == ["CODEX_AUTH_JSON"]


async def test_a_start_with_a_profile_whose_model_is_gone_says_so(gateway):
    await gateway.call("POST", f"{AGENTS}/user", {"agent_kind": "openhands", "llm_profile_ref": "x"})
    _, detail = await gateway.call("GET", f"{AGENTS}/user")
    assert (detail["profile"]["agent_kind"], detail["profile"]["revision"]) == ("openhands", 0)
    body = {"workspace": {"working_dir": "/w"}, "agent_profile_id": detail["profile"]["id"]}
    status, answer = await gateway.call("POST", "/api/conversations", body)
    assert (status, answer["detail"][0]["loc"]) == (422, ["body", "agent_profile_id"])
    assert "There is no LLM profile 'x'" in answer["detail"][0]["msg"]


async def test_a_restarted_server_has_everything(tmp_path, gateway_with):
    async with gateway_with() as gateway:
        await gateway.call("POST", f"{PROFILES}/mine", {"llm": LLM})
        await gateway.call("PATCH", SETTINGS, {"agent_settings_diff": {"agent_kind": "openhands"}})
        await gateway.call("POST", f"{PROFILES}/mine/activate")
        before = await gateway.call("GET", SETTINGS)
    async with gateway_with() as gateway:
        assert await gateway.call("GET", SETTINGS) == before
        assert (await gateway.call("GET", PROFILES))[1]["active_profile"] == "mine"


async def test_a_draft_is_tried_with_the_key_that_it_would_have(gateway):
    tried = gateway.supervisor.calls
    status, answer = await gateway.call("POST", f"{PROFILES}/new/validate", {"llm": LLM})
    assert (status, answer) == (200, {"valid": True, "error": None})
    assert tried[-1] == ("try_model", tried[-1][1] | LLM)
    # As a client got it that may not see the key.
    assert (await gateway.call("POST", f"{PROFILES}/kept", {"llm": LLM}))[0] == 201
    headers = {"X-Expose-Secrets": "encrypted"}
    shown = (await gateway.call("GET", f"{PROFILES}/kept", headers=headers))[1]["config"]
    assert shown["api_key"] != KEY
    assert (await gateway.call("POST", f"{PROFILES}/kept/validate", {"llm": shown}))[1]["valid"]
    assert tried[-1][1]["api_key"] == KEY
    # Of a connection it is the connection's.
    made = {"display_name": "c", "api_key": "sk-of-the-connection", "base_url": "http://c.example"}
    status, connection = await gateway.call("POST", CONNECTIONS, {"provider": "openai", **made})
    assert status == 201, connection
    linked = {"model": "m", "provider_connection_id": connection["id"]}
    assert (await gateway.call("POST", f"{PROFILES}/new/validate", {"llm": linked}))[1]["valid"]
    assert (tried[-1][1]["api_key"], tried[-1][1]["base_url"]) == ("sk-of-the-connection", "http://c.example")
    status, answer = await gateway.call("POST", f"{PROFILES}/new/validate", {"llm": {"model": "m"}})
    assert (status, answer) == (200, {"valid": False, "error": {"type": "LLMError", "message": "no key"}})
    names = [each["name"] for each in (await gateway.call("GET", PROFILES))[1]["profiles"]]
    assert names == ["kept"]
