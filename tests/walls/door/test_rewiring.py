"""What an agent behind the door gets in place of its keys and addresses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from supervisor.agents.catalog import Descriptor, Kind, load_catalog
from supervisor.agents.environment import compose_environment
from supervisor.agents.homes.credential import MACHINE, Choice, Credential, choose_credential
from supervisor.agents.walls.door.hosts import allow_list
from supervisor.agents.walls.door.rewiring import (
    API_URL,
    MODEL_APIS,
    PROXY_URL,
    OtherKey,
    Upstream,
    Wiring,
    placeholder,
)

KEY = "sk-ant-api03-abcDEF0123456789abcDEF0123456789-abcdefAA"
OTHER = "sk-proj-ABCdef0123456789ABCdef0123456789"


def composed(
    agent: str, secrets: Mapping[str, str], server: Mapping[str, str] | None = None
) -> tuple[Descriptor, dict[str, str], Choice]:
    descriptor = load_catalog()[agent]
    choice = choose_credential(descriptor, dict.fromkeys(secrets, "store"))
    env = compose_environment(
        server_env={"PATH": "/usr/bin", "HTTPS_PROXY": "http://proxy.corp:3128", **(server or {})},
        descriptor=descriptor,
        secrets=secrets,
        data_dir=Path("/data"),
        extra={},
        choice=choice,
    )
    return descriptor, env, choice


def wired(agent: str, secrets: Mapping[str, str]) -> tuple[Wiring, dict[str, str]]:
    descriptor, env, choice = composed(agent, secrets)
    wiring = Wiring()
    return wiring, wiring.environment(descriptor, env, choice, secrets)


def used(upstream: Upstream, presented: str) -> str:
    """The key in the request of an agent that presents this one."""
    [(_, value)] = upstream.headers([(b"x-api-key", presented.encode())])
    return value.decode()


@pytest.mark.parametrize(
    ("agent", "secrets", "url", "base", "origin"),
    [
        ("claude-code", {"ANTHROPIC_API_KEY": KEY}, "ANTHROPIC_BASE_URL", "", "https://api.anthropic.com"),
        ("claude-code", {"ANTHROPIC_AUTH_TOKEN": KEY}, "ANTHROPIC_BASE_URL", "", "https://api.anthropic.com"),
        (
            "claude-code",
            {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": "https://gate.example:8443/a/v1"},
            "ANTHROPIC_BASE_URL",
            "/a/v1",
            "https://gate.example:8443",
        ),
        (
            "gemini-cli",
            {"GEMINI_API_KEY": KEY},
            "GOOGLE_GEMINI_BASE_URL",
            "",
            "https://generativelanguage.googleapis.com",
        ),
        (
            "gemini-cli",
            {"GEMINI_API_KEY": KEY, "GEMINI_BASE_URL": "http://127.0.0.1:8001"},
            "GOOGLE_GEMINI_BASE_URL",
            "",
            "http://127.0.0.1:8001",
        ),
        ("qwen-code", {"OPENAI_API_KEY": KEY}, "OPENAI_BASE_URL", "/v1", "https://api.openai.com"),
        (
            "qwen-code",
            {"DASHSCOPE_API_KEY": KEY},
            "OPENAI_BASE_URL",
            "/compatible-mode/v1",
            "https://dashscope.aliyuncs.com",
        ),
        ("kimi-code", {"MOONSHOT_API_KEY": KEY}, "KIMI_MODEL_BASE_URL", "/v1", "https://api.moonshot.ai"),
        (
            "kimi-code",
            {"KIMI_API_KEY": KEY, "KIMI_BASE_URL": "https://api.kimi.com/coding/v1"},
            "KIMI_MODEL_BASE_URL",
            "/coding/v1",
            "https://api.kimi.com",
        ),
        (
            "copilot",
            {"COPILOT_PROVIDER_API_KEY": KEY, "COPILOT_PROVIDER_BASE_URL": "https://own.example/v1"},
            "COPILOT_PROVIDER_BASE_URL",
            "/v1",
            "https://own.example",
        ),
        (
            "fast-agent",
            {"GENERIC_API_KEY": KEY, "GENERIC_BASE_URL": "http://10.0.0.1:8080/v1"},
            "GENERIC_BASE_URL",
            "/v1",
            "http://10.0.0.1:8080",
        ),
        ("custom", {"OPENAI_API_KEY": KEY}, "OPENAI_BASE_URL", "/v1", "https://api.openai.com"),
    ],
)
def test_a_key_becomes_a_placeholder_and_its_api_the_doors(
    agent: str, secrets: dict[str, str], url: str, base: str, origin: str
) -> None:
    wiring, env = wired(agent, secrets)
    [upstream] = wiring.upstreams
    assert env[url] == f"{API_URL}/p/0{base}"
    assert upstream.origin == origin
    [(instead, key)] = upstream.keys.items()
    assert (key, used(upstream, instead)) == (KEY, KEY)
    name = next(name for name, value in secrets.items() if value == KEY)
    assert env[name] == instead
    assert not any(KEY in value for value in env.values())
    assert not any(origin in value for value in env.values())
    assert wiring.kept == []
    assert wiring.hosts == ()


def test_a_key_may_be_in_other_variables_too() -> None:
    header = f"Authorization: Bearer {KEY}"
    wiring, env = wired("claude-code", {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_CUSTOM_HEADERS": header})
    assert KEY not in json.dumps(env)
    assert env["ANTHROPIC_CUSTOM_HEADERS"] == f"Authorization: Bearer {env['ANTHROPIC_API_KEY']}"
    assert wiring.kept == []


def test_the_address_of_another_api_is_not_the_keys() -> None:
    secrets = {"GOOGLE_API_KEY": KEY, "GEMINI_BASE_URL": "https://gate.example"}
    wiring, env = wired("gemini-cli", secrets)
    vertex, gemini = wiring.upstreams
    assert (vertex.origin, [*vertex.keys.values()]) == ("https://aiplatform.googleapis.com", [KEY])
    assert (gemini.origin, gemini.keys) == ("https://gate.example", {})
    assert env["GOOGLE_VERTEX_BASE_URL"] == f"{API_URL}/p/0"
    assert env["GOOGLE_GEMINI_BASE_URL"] == f"{API_URL}/p/1"


def test_codex_takes_its_address_from_a_document() -> None:
    wiring, env = wired("codex", {"OPENAI_API_KEY": OTHER, "OPENAI_BASE_URL": "https://gate.example/v1"})
    assert json.loads(env["CODEX_CONFIG"])["openai_base_url"] == f"{API_URL}/p/0/v1"
    assert env["OPENAI_BASE_URL"] == f"{API_URL}/p/0/v1"
    assert [each.origin for each in wiring.upstreams] == ["https://gate.example"]
    _, env = wired("codex", {"OPENAI_API_KEY": OTHER})
    config = json.loads(env["CODEX_CONFIG"])
    assert config["openai_base_url"] == f"{API_URL}/p/0/v1"
    assert config["check_for_update_on_startup"] is False


def test_a_provider_that_a_document_describes_has_the_key_alone() -> None:
    provider = {"base_url": "http://127.0.0.1:9/v1", "wire_api": "responses", "env_key": "OPENAI_API_KEY"}
    config = {"model_provider": "local", "model_providers": {"local": provider}}
    wiring, env = wired("codex", {"OPENAI_API_KEY": OTHER, "CODEX_CONFIG": json.dumps(config)})
    found = json.loads(env["CODEX_CONFIG"])
    assert found["model_providers"]["local"]["base_url"] == f"{API_URL}/p/0/v1"
    assert "openai_base_url" not in found
    assert [(each.origin, [*each.keys.values()]) for each in wiring.upstreams] == [
        ("http://127.0.0.1:9", [OTHER])
    ]


def test_opencode_has_several_providers() -> None:
    options = {"baseURL": "https://own.example/v1", "apiKey": "{env:OWN_KEY}"}
    literal = {"baseURL": "https://own.example/v2", "apiKey": "literal-key-0123456789"}
    config = {"provider": {"own": {"options": options}, "two": {"options": literal}}}
    secrets = {
        "ANTHROPIC_API_KEY": KEY,
        "OPENAI_API_KEY": OTHER,
        "OWN_KEY": "own-key-0123456789-0123456789",
        "OPENCODE_CONFIG_CONTENT": json.dumps(config),
    }
    wiring, env = wired("opencode", secrets)
    found = json.loads(env["OPENCODE_CONFIG_CONTENT"])["provider"]
    by_origin = {each.origin: each for each in wiring.upstreams}
    assert set(by_origin) == {"https://own.example", "https://api.anthropic.com", "https://api.openai.com"}
    assert set(by_origin["https://own.example"].keys.values()) == {secrets["OWN_KEY"], literal["apiKey"]}
    assert by_origin["https://api.anthropic.com"].keys == {env["ANTHROPIC_API_KEY"]: KEY}
    assert found["own"]["options"] == {"baseURL": f"{API_URL}/p/0/v1", "apiKey": "{env:OWN_KEY}"}
    assert found["two"]["options"]["apiKey"] in by_origin["https://own.example"].keys
    number = wiring.upstreams.index(by_origin["https://api.anthropic.com"])
    assert found["anthropic"]["options"]["baseURL"] == f"{API_URL}/p/{number}/v1"
    assert not {KEY, OTHER, secrets["OWN_KEY"], literal["apiKey"]} & set(json.dumps(env).split('"'))
    assert wiring.kept == []


def test_a_list_of_providers() -> None:
    providers = [{"name": "local", "api_base": "http://10.0.0.9/v1", "api_key_env_var": "MISTRAL_API_KEY"}]
    secrets = {"MISTRAL_API_KEY": KEY, "VIBE_PROVIDERS": json.dumps(providers)}
    wiring, env = wired("mistral-vibe", secrets)
    assert json.loads(env["VIBE_PROVIDERS"])[0]["api_base"] == f"{API_URL}/p/0/v1"
    assert wiring.upstreams[0].keys == {env["MISTRAL_API_KEY"]: KEY}


@pytest.mark.parametrize(
    ("agent", "secrets", "kept"),
    [
        ("claude-code", {"CLAUDE_CODE_OAUTH_TOKEN": KEY}, ["CLAUDE_CODE_OAUTH_TOKEN"]),
        ("cline", {"OPENAI_API_KEY": OTHER}, ["OPENAI_API_KEY", "CLINE_API_KEY"]),
        ("mistral-vibe", {"MISTRAL_API_KEY": KEY}, ["MISTRAL_API_KEY"]),
        ("claude-code", {"ANTHROPIC_API_KEY": KEY, "GITHUB_TOKEN": OTHER}, ["GITHUB_TOKEN"]),
    ],
)
def test_what_cannot_be_moved_is_kept_and_listed(
    agent: str, secrets: dict[str, str], kept: list[str]
) -> None:
    wiring, env = wired(agent, secrets)
    assert wiring.kept == kept
    assert all(env[name] in secrets.values() for name in kept)
    # Its maker's hosts only where its own credential stays.
    assert bool(wiring.hosts) is (kept != ["GITHUB_TOKEN"])


def test_a_login_of_the_machine_is_listed_and_keeps_its_address() -> None:
    descriptor = load_catalog()["claude-code"]
    login = Credential(kind=Kind.LOGIN, file="/home/u/.claude/.credentials.json", origin=MACHINE)
    wiring = Wiring()
    env = wiring.environment(
        descriptor, {"ANTHROPIC_BASE_URL": "https://gate.example"}, Choice(credentials=(login,))
    )
    assert wiring.kept == ["/home/u/.claude/.credentials.json"]
    assert env["ANTHROPIC_BASE_URL"] == f"{API_URL}/p/0"
    # Its own token passes: there is no key to tell it from.
    assert used(wiring.upstreams[0], "oauth-token") == "oauth-token"
    assert "api.anthropic.com" in wiring.hosts


def test_the_proxies_are_the_doors() -> None:
    wiring, env = wired("claude-code", {"ANTHROPIC_API_KEY": KEY})
    assert wiring.way_out.of("pypi.org") == "http://proxy.corp:3128"  # the server's, for the door itself
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        assert env[name] == PROXY_URL
    assert env["NO_PROXY"] == env["no_proxy"] == "127.0.0.1,localhost,::1"
    assert env["NODE_USE_ENV_PROXY"] == "1"


@pytest.mark.parametrize(
    "key", [KEY, OTHER, "AIzaSyA-0123456789_abcdefghijklmnopqrst", "0123456789abcdef" * 2, "x", "---"]
)
def test_a_placeholder_has_the_form_of_the_key(key: str) -> None:
    made = placeholder(key)
    assert made not in (key, placeholder(key)) or len(key) < 4
    assert made != key
    if len(key) > 3:
        assert len(made) == len(key)
        for prefix in ("sk-ant-api03-", "sk-proj-", "AIza"):
            assert made.startswith(prefix) is key.startswith(prefix)
        alike = [a == b for a, b in zip(made, key, strict=True)]
        assert alike.count(False) > len(key) / 3


def test_short_keys_are_replaced_only_as_a_whole() -> None:
    wiring, env = wired("claude-code", {"ANTHROPIC_API_KEY": "none", "OTHER": "nonesuch"})
    assert env["OTHER"] == "nonesuch"
    assert env["ANTHROPIC_API_KEY"] != "none"
    assert used(wiring.upstreams[0], env["ANTHROPIC_API_KEY"]) == "none"


# -- requests --------------------------------------------------------------------------------------------


@pytest.fixture
def upstream() -> Upstream:
    return Upstream("https://api.example", {"PLACEHOLDER": "real/key+1"})


@pytest.mark.parametrize(
    ("name", "value", "sent"),
    [
        ("x-api-key", "PLACEHOLDER", "real/key+1"),
        ("x-goog-api-key", "PLACEHOLDER", "real/key+1"),
        ("api-key", "PLACEHOLDER", "real/key+1"),
        ("Authorization", "Bearer PLACEHOLDER", "Bearer real/key+1"),
        ("authorization", "bearer PLACEHOLDER", "bearer real/key+1"),
        ("x-other", "PLACEHOLDER", "PLACEHOLDER"),
        ("user-agent", "Bearer PLACEHOLDER", "Bearer PLACEHOLDER"),
        ("x-api-key", "", ""),
    ],
)
def test_exact_placeholders_are_replaced(upstream: Upstream, name: str, value: str, sent: str) -> None:
    assert upstream.headers([(name.encode(), value.encode())]) == [(name.encode(), sent.encode())]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-api-key", "sk-of-somebody-else"),
        ("x-api-key", "PLACEHOLDER2"),
        ("x-api-key", "placeholder"),
        ("authorization", "Bearer other"),
        ("authorization", "Basic b3RoZXI="),
    ],
)
def test_another_key_is_not_sent(upstream: Upstream, name: str, value: str) -> None:
    with pytest.raises(OtherKey, match="did not give"):
        upstream.headers([(name.encode(), value.encode())])
    assert Upstream("https://api.example").headers([(b"x-api-key", b"any")]) == [(b"x-api-key", b"any")]


def test_a_key_in_the_query(upstream: Upstream) -> None:
    assert upstream.target(b"/v1?alt=sse&key=PLACEHOLDER&x=%20") == b"/v1?alt=sse&key=real%2Fkey%2B1&x=%20"
    assert upstream.target(b"/key=PLACEHOLDER") == b"/key=PLACEHOLDER"
    assert upstream.target(b"/v1?monkey=PLACEHOLDER&a") == b"/v1?monkey=PLACEHOLDER&a"
    with pytest.raises(OtherKey):
        upstream.target(b"/v1?key=other")


def test_an_address_with_a_password() -> None:
    wiring = Wiring()
    assert wiring.address("https://user:pass%21@gate.example/v1") == f"{API_URL}/p/0/v1"
    assert wiring.address("https://gate.example/v1") == f"{API_URL}/p/1/v1"
    assert wiring.upstreams[0].headers([]) == [(b"Authorization", b"Basic dXNlcjpwYXNzIQ==")]


# -- the built-in agent ----------------------------------------------------------------------------------


def test_the_models_of_the_built_in_agent() -> None:
    wiring = Wiring()
    given = {
        "agent_settings": {
            "llm": {"model": "anthropic/claude-sonnet-4-5", "api_key": KEY, "base_url": None},
            "condenser": {
                "llm": {"model": "openai/x", "api_key": OTHER, "base_url": "http://10.0.0.1:4000/v1"}
            },
        },
        "llm_profiles": {
            "local": {"model": "ollama/x", "api_key": None, "base_url": "http://localhost:11434"},
            "odd": {"model": "bedrock/x", "api_key": "aws-key-0123456789"},
            "login": {"model": "gpt-5.6", "api_key": None, "auth_type": "subscription"},
        },
        "secrets": {"LLM_API_KEY": KEY, "OTHER": "other"},
        "conversation_id": "c",
    }
    made = wiring.session(given)
    llm, condenser = made["agent_settings"]["llm"], made["agent_settings"]["condenser"]["llm"]
    assert [each.origin for each in wiring.upstreams] == [
        "https://api.anthropic.com",
        "http://10.0.0.1:4000",
        "http://localhost:11434",
    ]
    assert llm["base_url"] == f"{API_URL}/p/0"
    assert condenser["base_url"] == f"{API_URL}/p/1/v1"
    assert wiring.upstreams[0].keys == {llm["api_key"]: KEY}
    assert wiring.upstreams[1].keys == {condenser["api_key"]: OTHER}
    assert made["llm_profiles"]["local"] == {
        "model": "ollama/x",
        "api_key": None,
        "base_url": f"{API_URL}/p/2",
    }
    assert made["llm_profiles"]["odd"] == given["llm_profiles"]["odd"]
    assert made["secrets"] == {"LLM_API_KEY": llm["api_key"], "OTHER": "other"}
    assert made["conversation_id"] == "c"
    assert wiring.kept == ["bedrock/x", "gpt-5.6"]
    assert KEY not in json.dumps(made)
    # A later change has the same placeholder, and new models come to the same door.
    assert wiring.session({"llm": given["agent_settings"]["llm"]}) == {"llm": llm}
    more = wiring.session({"llm": {"model": "groq/x", "api_key": "gsk_0123456789abcdef0123"}})
    assert more["llm"]["base_url"] == f"{API_URL}/p/3/openai/v1"


# -- MCP servers --------------------------------------------------------------------------------------------


def test_mcp_servers_are_reached_through_the_door() -> None:
    wiring = Wiring()
    given = [
        {"name": "command", "command": "/bin/x", "args": [], "env": [{"name": "A", "value": "b"}]},
        {
            "type": "http",
            "name": "login",
            "url": "http://127.0.0.1:4567/unguessable/mcp",
            "headers": [],
        },
        {
            "type": "http",
            "name": "remote",
            "url": "https://mcp.example/a?b=c",
            "headers": [
                {"name": "Authorization", "value": "Bearer short"},
                {"name": "X-API-Key", "value": KEY},
                {"name": "X-Other", "value": "plain"},
            ],
        },
        {"type": "sse", "name": "old", "url": "https://old.example/sse", "headers": []},
        {"type": "sse", "name": "near", "url": "http://localhost:4568/sse", "headers": []},
    ]
    found, dropped = wiring.servers(given)
    assert [each["name"] for each in found] == ["command", "login", "remote", "old"]
    assert found[0] == given[0]
    assert found[1]["url"] == f"{API_URL}/p/0/unguessable/mcp"
    assert found[2]["url"] == f"{API_URL}/p/1/a?b=c"
    assert [each.origin for each in wiring.upstreams] == ["http://127.0.0.1:4567", "https://mcp.example"]
    sent = wiring.upstreams[1].headers(
        [(each["name"].encode(), each["value"].encode()) for each in found[2]["headers"]]
    )
    assert sent == [(b"Authorization", b"Bearer short"), (b"X-API-Key", KEY.encode()), (b"X-Other", b"plain")]
    assert KEY not in json.dumps(found)
    assert "Bearer short" not in json.dumps(found)
    assert found[3] == given[3]
    assert wiring.hosts == ("old.example:443",)
    [(name, reason)] = dropped
    assert name == "near"
    assert "use the http transport" in reason


# -- the catalogue ---------------------------------------------------------------------------------------


def test_every_host_of_the_catalogue_is_a_pattern() -> None:
    for descriptor in load_catalog().values():
        allow_list("").joined(descriptor.hosts)


def test_every_api_of_the_catalogue_is_over_tls_or_on_this_machine() -> None:
    apis = [
        source.api.url
        for descriptor in load_catalog().values()
        for source in descriptor.credentials
        if source.api is not None and source.api.url is not None
    ]
    assert len(apis) > 20
    for url in [*apis, *MODEL_APIS.values()]:
        assert url.startswith(("https://", "http://localhost:")), url
