"""One credential for each provider: the choice as a table, and the looking into files."""

from __future__ import annotations

import json

import pytest

from supervisor.agents.catalog import Kind, load_catalog
from supervisor.agents.homes.credential import (
    Found,
    auth_params,
    choose_credential,
    helpful_names,
    in_file_secrets,
    tokens_in,
)
from supervisor.agents.homes.logins import MAX_FILE_BYTES, find_logins

CATALOG = load_catalog()

CLAUDE_FILE = "$HOME/.claude/.credentials.json"
CODEX_FILE = "$HOME/.codex/auth.json"
GEMINI_FILE = "$HOME/.gemini/oauth_creds.json"
OPENCODE_FILE = "$HOME/.local/share/opencode/auth.json"

CLAUDE = Found(place=CLAUDE_FILE, holds=frozenset({"", "claudeAiOauth.refreshToken"}))
CODEX = Found(place=CODEX_FILE, holds=frozenset({"", "tokens.refresh_token"}))
CODEX_KEY = Found(place=CODEX_FILE, holds=frozenset({"", "OPENAI_API_KEY"}))
GEMINI = Found(place=GEMINI_FILE, holds=frozenset({"", "refresh_token"}))
OPENCODE = Found(place=OPENCODE_FILE, holds=frozenset({"", "anthropic.refresh"}))

LOGIN, API_KEY, FILE = Kind.LOGIN, Kind.API_KEY, Kind.FILE

CODEX_LOGIN = json.dumps({"tokens": {"refresh_token": "r", "access_token": "a"}})


@pytest.mark.parametrize(
    ("key", "secrets", "found", "credentials", "base_url", "withheld"),
    [
        # nothing, a key, a login, both
        ("claude-code", {}, [], [], None, set()),
        ("claude-code", {"ANTHROPIC_API_KEY": "k"}, [], [(API_KEY, "ANTHROPIC_API_KEY")], None, set()),
        ("claude-code", {}, [CLAUDE], [(LOGIN, None)], None, set()),
        ("claude-code", {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_AUTH_TOKEN": "t"}, [CLAUDE],
         [(LOGIN, None)], None, {"ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"}),
        # a token is a login too, and stays with its base URL
        ("claude-code",
         {"CLAUDE_CODE_OAUTH_TOKEN": "t", "ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": "u"}, [CLAUDE],
         [(LOGIN, "CLAUDE_CODE_OAUTH_TOKEN")], "ANTHROPIC_BASE_URL", {"ANTHROPIC_API_KEY"}),
        ("claude-code", {"ANTHROPIC_BASE_URL": "u"}, [CLAUDE],
         [(LOGIN, None)], "ANTHROPIC_BASE_URL", set()),
        # another provider by its switch only
        ("claude-code", {"AWS_BEARER_TOKEN_BEDROCK": "b", "ANTHROPIC_API_KEY": "k"}, [],
         [(API_KEY, "ANTHROPIC_API_KEY")], None, {"AWS_BEARER_TOKEN_BEDROCK"}),
        ("claude-code", {"AWS_BEARER_TOKEN_BEDROCK": "b", "CLAUDE_CODE_USE_BEDROCK": "1"}, [CLAUDE],
         [(API_KEY, "AWS_BEARER_TOKEN_BEDROCK")], None, set()),
        ("claude-code", {"AWS_BEARER_TOKEN_BEDROCK": "b"}, [], [], None, {"AWS_BEARER_TOKEN_BEDROCK"}),
        # codex: a key in its file is no login
        ("codex", {"OPENAI_API_KEY": "k", "OPENAI_BASE_URL": "u"}, [CODEX],
         [(LOGIN, None)], "OPENAI_BASE_URL", {"OPENAI_API_KEY"}),
        ("codex", {"OPENAI_API_KEY": "k"}, [CODEX_KEY], [(API_KEY, "OPENAI_API_KEY")], None, set()),
        ("codex", {}, [CODEX_KEY], [(API_KEY, None)], None, set()),
        ("codex", {"CODEX_AUTH_JSON": CODEX_LOGIN, "OPENAI_API_KEY": "k"}, [CODEX],
         [(FILE, "CODEX_AUTH_JSON")], None, {"OPENAI_API_KEY"}),
        ("codex", {"CODEX_AUTH_JSON": '{"OPENAI_API_KEY": "j"}', "OPENAI_API_KEY": "k"}, [],
         [(API_KEY, "OPENAI_API_KEY")], None, {"CODEX_AUTH_JSON"}),
        ("codex", {"CODEX_AUTH_JSON": '{"OPENAI_API_KEY": "j"}'}, [],
         [(FILE, "CODEX_AUTH_JSON")], None, set()),
        ("codex", {"CODEX_AUTH_JSON": "{}"}, [], [], None, {"CODEX_AUTH_JSON"}),
        # gemini
        ("gemini-cli", {"GEMINI_API_KEY": "k", "GEMINI_BASE_URL": "u"}, [GEMINI],
         [(LOGIN, None)], "GEMINI_BASE_URL", {"GEMINI_API_KEY"}),
        ("gemini-cli", {"GOOGLE_APPLICATION_CREDENTIALS_JSON": '{"a": 1}', "GEMINI_API_KEY": "k"}, [GEMINI],
         [(FILE, "GOOGLE_APPLICATION_CREDENTIALS_JSON")], None, {"GEMINI_API_KEY"}),
        # several providers: one credential for each
        ("opencode", {"ANTHROPIC_API_KEY": "k", "GROQ_API_KEY": "g"}, [OPENCODE],
         [(LOGIN, None), (API_KEY, "GROQ_API_KEY")], None, {"ANTHROPIC_API_KEY"}),
        ("pi", {"PI_AUTH_JSON": '{"anthropic": {"key": "k"}}', "ANTHROPIC_API_KEY": "k"}, [],
         [(FILE, "PI_AUTH_JSON")], None, {"ANTHROPIC_API_KEY"}),
        ("pi", {"PI_AUTH_JSON": '{"openai": {"key": "k"}}', "ANTHROPIC_API_KEY": "k"}, [],
         [(API_KEY, "ANTHROPIC_API_KEY"), (FILE, "PI_AUTH_JSON")], None, set()),
    ],
)  # fmt: skip
def test_the_choice(key, secrets, found, credentials, base_url, withheld):
    descriptor = CATALOG[key]
    origins = dict.fromkeys(secrets, "store")
    choice = choose_credential(descriptor, origins, [*found, *in_file_secrets(descriptor, secrets)])
    assert [(each.kind, each.name) for each in choice.credentials] == credentials
    assert (choice.base_url.name if choice.base_url else None) == base_url
    assert choice.withheld_names == withheld


def test_a_choice_says_whence_and_why_and_no_value():
    secrets = {"ANTHROPIC_API_KEY": "sk-value", "CLAUDE_CODE_OAUTH_TOKEN": "oat-value"}
    choice = choose_credential(
        CATALOG["claude-code"], {"ANTHROPIC_API_KEY": "store", "CLAUDE_CODE_OAUTH_TOKEN": "conversation"}
    )
    assert (choice.credential.kind, choice.credential.origin) == (Kind.LOGIN, "conversation")
    (withheld,) = choice.withheld
    assert withheld.reason == "a login takes priority over a key: CLAUDE_CODE_OAUTH_TOKEN"
    assert not any(value in repr(choice) for value in secrets.values())


def test_without_a_credential():
    assert choose_credential(CATALOG["codex"], {}).credential.kind is Kind.NONE
    assert (
        choose_credential(CATALOG["custom"], {"ANTHROPIC_API_KEY": "store"}).credential.kind is Kind.UNKNOWN
    )


def test_names_that_would_help():
    names = helpful_names(CATALOG["codex"])
    assert names == ("CODEX_AUTH_JSON", "CODEX_ACCESS_TOKEN", "CODEX_API_KEY", "OPENAI_API_KEY")
    assert helpful_names(CATALOG["custom"]) == ()


@pytest.mark.parametrize(
    ("key", "secrets", "found", "offered", "env", "params"),
    [
        ("codex", ["OPENAI_API_KEY"], [], ["api-key", "chat-gpt"], {}, {"methodId": "api-key"}),
        ("codex", ["OPENAI_API_KEY"], [CODEX], ["api-key", "chat-gpt"], {}, {"methodId": "chat-gpt"}),
        ("codex", ["OPENAI_API_KEY"], [CODEX], ["api-key"], {}, None),  # the key is withheld
        ("codex", [], [], ["api-key", "chat-gpt"], {}, None),
        ("gemini-cli", [], [GEMINI], ["oauth-personal"], {}, {"methodId": "oauth-personal"}),
        ("gemini-cli", [], [GEMINI], ["oauth-personal"], {"GOOGLE_GEMINI_BASE_URL": "u"},
         {"methodId": "oauth-personal", "_meta": {"gateway": {"baseUrl": "u"}}}),
        ("gemini-cli", ["GEMINI_API_KEY"], [], ["oauth-personal", "gemini-api-key"],
         {"GOOGLE_GEMINI_BASE_URL": "u"},
         {"methodId": "gemini-api-key", "_meta": {"gateway": {"baseUrl": "u"}}}),
        ("claude-code", ["ANTHROPIC_API_KEY"], [], ["gateway"], {}, None),
    ],
)  # fmt: skip
def test_parameters_of_authenticate(key, secrets, found, offered, env, params):
    choice = choose_credential(CATALOG[key], dict.fromkeys(secrets, "store"), found)
    assert auth_params(CATALOG[key], choice, offered, env) == params


CLAUDE_PATH = ".claude/.credentials.json"
GEMINI_PATH = ".gemini/oauth_creds.json"
GEMINI_LOGIN = '{"refresh_token": "r"}'
SELECTED = '{"security": {"auth": {"selectedType": "%s"}}}'
OPENCODE_PATH = ".local/share/opencode/auth.json"
OAUTH = '{"claudeAiOauth": {"accessToken": "at-1", "refreshToken": "rt-1", "scopes": ["user:inference"]}}'


@pytest.mark.parametrize(
    ("key", "files", "kind"),
    [
        ("claude-code", {CLAUDE_PATH: OAUTH}, LOGIN),
        ("claude-code", {CLAUDE_PATH: "{}"}, Kind.NONE),
        ("claude-code", {CLAUDE_PATH: ""}, Kind.NONE),
        ("claude-code", {CLAUDE_PATH: "not JSON"}, Kind.NONE),
        ("claude-code", {CLAUDE_PATH: '{"claudeAiOauth": null, "mcpOAuth": {"x": 1}}'}, Kind.NONE),
        ("claude-code", {CLAUDE_PATH: "[" * 100_000}, Kind.NONE),
        ("claude-code", {CLAUDE_PATH: "\0" * (MAX_FILE_BYTES + 1)}, Kind.NONE),
        ("codex", {".codex/auth.json": CODEX_LOGIN}, LOGIN),
        ("codex", {".codex/auth.json": '{"OPENAI_API_KEY": "k", "tokens": null}'}, API_KEY),
        ("codex", {".codex/auth.json": '{"OPENAI_API_KEY": null}'}, Kind.NONE),
        ("gemini-cli", {GEMINI_PATH: GEMINI_LOGIN}, LOGIN),
        # a person who chose a key in the agent's own settings is not signed in; to authenticate with what
        # is left of a login would delete it
        ("gemini-cli", {GEMINI_PATH: GEMINI_LOGIN,
                        ".gemini/settings.json": SELECTED % "gemini-api-key"},
         Kind.NONE),
        ("gemini-cli", {GEMINI_PATH: GEMINI_LOGIN,
                        ".gemini/settings.json": SELECTED % "oauth-personal"},
         LOGIN),
        ("opencode", {OPENCODE_PATH: '{"openai": {"type": "oauth", "refresh": "r"}}'}, LOGIN),
        ("opencode", {OPENCODE_PATH: '{"openai": {"type": "api", "key": "k"}}'}, Kind.NONE),
        ("kimi-code", {".kimi-code/credentials/kimi-code.json": '{"access_token": "a"}'}, LOGIN),
        ("pi", {".pi/agent/auth.json": '{"anthropic": {"type": "oauth", "refresh": "r"}}'}, LOGIN),
    ],
)  # fmt: skip
async def test_what_counts_as_a_login(tmp_path, key, files, kind):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    logins = await find_logins(CATALOG[key], {"HOME": str(tmp_path)})
    credential = choose_credential(CATALOG[key], {}, logins.found).credential
    assert credential.kind is kind
    assert kind is Kind.NONE or credential.file in {str(tmp_path / name) for name in files}


async def test_an_agent_whose_home_was_moved_does_not_find_the_login_elsewhere(tmp_path):
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / ".credentials.json").write_text(OAUTH)
    (tmp_path / "d").mkdir()
    env = {"HOME": str(tmp_path), "CLAUDE_CONFIG_DIR": str(tmp_path / "d")}
    assert (await find_logins(CATALOG["claude-code"], env)).found == ()
    (tmp_path / "d" / ".credentials.json").write_text(OAUTH)
    (found,) = (await find_logins(CATALOG["claude-code"], env)).found
    assert found.path == tmp_path / "d" / ".credentials.json"


async def test_what_a_login_holds_is_known_for_hiding_and_shows_nowhere(tmp_path):
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / ".credentials.json").write_text(OAUTH)
    logins = await find_logins(CATALOG["claude-code"], {"HOME": str(tmp_path)})
    assert logins.tokens == {"at-1", "rt-1"}
    assert "at-1" not in repr(logins)


async def test_what_is_no_plain_file_is_no_login(tmp_path):
    (tmp_path / ".claude" / ".credentials.json").mkdir(parents=True)
    assert (await find_logins(CATALOG["claude-code"], {"HOME": str(tmp_path)})).found == ()


def test_tokens_are_found_by_the_names_of_their_members():
    assert tokens_in('{"tokens": {"id": "a", "list": ["b"]}, "mode": "c", "n": {"apiKey": "d"}}') == {
        "a",
        "b",
        "d",
    }
    assert tokens_in('[providers.kimi]\napi_key = "k"\nbase_url = "u"\n') == {"k"}
    assert tokens_in("neither = = of them") == set()
