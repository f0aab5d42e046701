"""The composed environment, as a table; and the data directory that goes with it."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from supervisor.agents.catalog import load_catalog
from supervisor.agents.environment import compose_environment, concerning, needs_data_dir
from supervisor.agents.homes.credential import choose_credential, in_file_secrets
from supervisor.agents.homes.data_dir import prepare_data_dir

CATALOG = load_catalog()

SERVER = {
    "PATH": "/usr/bin",
    "HOME": "/home/p",
    "LC_ALL": "C",
    "https_proxy": "http://proxy",
    "NODE_EXTRA_CA_CERTS": "/ca.pem",
    "XDG_DATA_HOME": "/home/p/data",
    "OSTLER_MASTER_KEY": "k",
    "OSTLER_SECRET_X": "s",
    "OH_SECRET_KEY": "k",
    "SESSION_API_KEY": "k",
    "AWS_SECRET_ACCESS_KEY": "k",
    "ANTHROPIC_API_KEY": "the server's",
    "CLAUDECODE": "1",
    "npm_config_prefix": "/x",
    "INIT_CWD": "/x",
    "PYTHONPATH": "/x",
    "LD_PRELOAD": "/x",
}

PASSED = {"PATH", "HOME", "LC_ALL", "https_proxy", "NODE_EXTRA_CA_CERTS"}


def compose(key, *, secrets=None, data_dir=None, extra=None, server=SERVER, **more):
    return compose_environment(
        server_env=server,
        descriptor=CATALOG[key],
        secrets=secrets or {},
        data_dir=data_dir,
        extra=extra or {},
        **more,
    )


@pytest.mark.guarantee(name="malicious-agents")
@pytest.mark.guarantee(name="secrets-stay-in")
@pytest.mark.parametrize("key", sorted(CATALOG))
def test_only_the_allow_list_and_the_descriptor_reach_an_agent(key):
    shared = compose(key)
    assert set(shared) == PASSED | {"XDG_DATA_HOME"} | set(CATALOG[key].env)
    isolated = compose(key, data_dir=Path("/d"))
    assert set(isolated) == PASSED | set(CATALOG[key].env) | set(CATALOG[key].data_dir_env)


@pytest.mark.guarantee(name="secrets-stay-in")
@pytest.mark.parametrize(
    ("key", "secrets", "present", "absent"),
    [
        ("claude-code", {"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "o", "MY_TOKEN": "m"},
         {"ANTHROPIC_API_KEY": "a", "MY_TOKEN": "m"}, {"OPENAI_API_KEY"}),
        ("codex", {"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "o", "MY_TOKEN": "m"},
         {"OPENAI_API_KEY": "o", "MY_TOKEN": "m"}, {"ANTHROPIC_API_KEY"}),
        ("demo", {"ANTHROPIC_API_KEY": "a", "MY_TOKEN": "m"}, {"MY_TOKEN": "m"}, {"ANTHROPIC_API_KEY"}),
        ("custom", {"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "o"},
         {"ANTHROPIC_API_KEY": "a", "OPENAI_API_KEY": "o"}, set()),
        ("opencode", {"ANTHROPIC_API_KEY": "a", "CODEX_CONFIG": "{}"},
         {"ANTHROPIC_API_KEY": "a"}, {"CODEX_CONFIG"}),
        # a login wins over a key, for Claude Code alone
        ("claude-code", {"CLAUDE_CODE_OAUTH_TOKEN": "t", "ANTHROPIC_API_KEY": "a", "ANTHROPIC_BASE_URL": "u"},
         {"CLAUDE_CODE_OAUTH_TOKEN": "t", "ANTHROPIC_BASE_URL": "u"}, {"ANTHROPIC_API_KEY"}),
        ("claude-code", {"CLAUDE_CODE_OAUTH_TOKEN": "", "ANTHROPIC_API_KEY": "a"},
         {"ANTHROPIC_API_KEY": "a"}, {"CLAUDE_CODE_OAUTH_TOKEN"}),
        ("pi", {"CLAUDE_CODE_OAUTH_TOKEN": "t", "ANTHROPIC_API_KEY": "a"},
         {"ANTHROPIC_API_KEY": "a"}, {"CLAUDE_CODE_OAUTH_TOKEN"}),
        # one key, not two
        ("claude-code", {"ANTHROPIC_AUTH_TOKEN": "t", "ANTHROPIC_API_KEY": "a"},
         {"ANTHROPIC_AUTH_TOKEN": "t"}, {"ANTHROPIC_API_KEY"}),
        ("codex", {"CODEX_API_KEY": "c", "OPENAI_API_KEY": "o"}, {"CODEX_API_KEY": "c"}, {"OPENAI_API_KEY"}),
        # one for each provider
        ("opencode", {"ANTHROPIC_API_KEY": "a", "GEMINI_API_KEY": "g", "GOOGLE_API_KEY": "h"},
         {"ANTHROPIC_API_KEY": "a", "GEMINI_API_KEY": "g"}, {"GOOGLE_API_KEY"}),
        # files, not variables
        ("codex", {"CODEX_AUTH_JSON": "{}"}, {}, {"CODEX_AUTH_JSON"}),
        ("custom", {"CODEX_AUTH_JSON": "{}"}, {}, {"CODEX_AUTH_JSON"}),
        # secrets win over fixed and ambient variables, but not over the rules
        ("codex", {"NO_BROWSER": "0", "PATH": "/mine"}, {"NO_BROWSER": "0", "PATH": "/mine"}, set()),
        ("custom", {"OSTLER_X": "1", "OH_SECRET_KEY": "1", "CLAUDECODE": "1", "SESSION_API_KEY": "1"}, {},
         {"OSTLER_X", "OH_SECRET_KEY", "CLAUDECODE", "SESSION_API_KEY"}),
    ],
)  # fmt: skip
def test_secrets(key, secrets, present, absent):
    env = compose(key, secrets=secrets)
    assert present.items() <= env.items()
    assert not absent & set(env)


def test_fixed_variables():
    assert compose("claude-code")["CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC"] == "1"
    assert compose("claude-code")["DISABLE_AUTOUPDATER"] == "1"
    assert compose("codex")["NO_BROWSER"] == "1"
    assert compose("gemini-cli")["GEMINI_CLI_NO_RELAUNCH"] == "true"


@pytest.mark.parametrize(("declared", "given"), [("1", True), ("0", False), ("", False), (None, False)])
def test_sandbox_is_told_only_when_declared(declared, given):
    server = SERVER if declared is None else {**SERVER, "OSTLER_SANDBOX": declared}
    env = compose("claude-code", server=server)
    assert ("IS_SANDBOX" in env) is given
    assert "IS_SANDBOX" not in compose("codex", server=server)
    assert "OSTLER_SANDBOX" not in env


QUIET = {"check_for_update_on_startup": False, "analytics": {"enabled": False}}


@pytest.mark.parametrize(
    ("secrets", "config"),
    [
        ({}, QUIET),
        ({"OPENAI_BASE_URL": "u"}, {**QUIET, "openai_base_url": "u"}),
        ({"OPENAI_BASE_URL": "u", "CODEX_CONFIG": '{"model": "m"}'}, {"model": "m", "openai_base_url": "u"}),
        ({"OPENAI_BASE_URL": "u", "CODEX_CONFIG": '{"openai_base_url": "v"}'}, {"openai_base_url": "v"}),
        ({"OPENAI_BASE_URL": "u", "CODEX_CONFIG": '{"model_provider": "p"}'}, {"model_provider": "p"}),
        ({"OPENAI_BASE_URL": "u", "MODEL_PROVIDER": "p"}, QUIET),
        ({"OPENAI_BASE_URL": "u", "CODEX_CONFIG": "[1]"}, [1]),
    ],
)
def test_codex_base_url_goes_into_its_configuration(secrets, config):
    assert json.loads(compose("codex", secrets=secrets)["CODEX_CONFIG"]) == config


def test_invalid_codex_configuration_is_left_alone():
    assert compose("codex", secrets={"OPENAI_BASE_URL": "u", "CODEX_CONFIG": "{"})["CODEX_CONFIG"] == "{"


def test_gemini_base_url_gets_the_name_that_gemini_reads():
    assert compose("gemini-cli", secrets={"GEMINI_BASE_URL": "u"})["GOOGLE_GEMINI_BASE_URL"] == "u"
    both = {"GEMINI_BASE_URL": "u", "GOOGLE_GEMINI_BASE_URL": "v"}
    assert compose("gemini-cli", secrets=both)["GOOGLE_GEMINI_BASE_URL"] == "v"


@pytest.mark.parametrize(
    ("key", "expected"),
    [
        ("claude-code", {"CLAUDE_CONFIG_DIR": "/d", "CLAUDE_CODE_TMPDIR": "/d/tmp", "HOME": "/home/p"}),
        ("codex", {"CODEX_HOME": "/d", "HOME": "/home/p"}),
        ("gemini-cli", {"HOME": "/d"}),
        ("opencode", {"HOME": "/home/p", "XDG_DATA_HOME": "/d/share", "XDG_CONFIG_HOME": "/d/config"}),
        ("demo", {"OSTLER_DEMO_HOME": "/d", "HOME": "/home/p"}),
    ],
)
def test_data_dir(key, expected):
    assert expected.items() <= compose(key, data_dir=Path("/d")).items()


def test_extra_wins_and_path_comes_first():
    env = compose("codex", secrets={"A": "1"}, extra={"A": "2", "OSTLER_AGENT": "m"}, path=["/n", "/b"])
    assert (env["A"], env["OSTLER_AGENT"], env["PATH"]) == ("2", "m", "/n:/b:/usr/bin")


def test_inputs_are_not_changed():
    secrets = {"OPENAI_BASE_URL": "u"}
    before = dict(SERVER)
    compose("codex", secrets=secrets)
    assert (before, secrets) == (SERVER, {"OPENAI_BASE_URL": "u"})


def mode(path):
    return stat.S_IMODE(os.lstat(path).st_mode)


@pytest.mark.parametrize("key", sorted(CATALOG))
async def test_data_directory_is_private(tmp_path, key):
    directory = tmp_path / "a" / "b"
    await prepare_data_dir(CATALOG[key], directory)
    assert mode(directory) == 0o700
    await prepare_data_dir(CATALOG[key], directory)


@pytest.mark.parametrize(("secrets", "selected"), [({"GEMINI_API_KEY": "k"}, "gemini-api-key"), ({}, None)])
async def test_gemini_settings_select_the_key_only_with_a_key(tmp_path, secrets, selected):
    await prepare_data_dir(CATALOG["gemini-cli"], tmp_path / "d", secrets=secrets)
    file = tmp_path / "d" / ".gemini" / "settings.json"
    settings = json.loads(file.read_text())
    assert settings.get("security", {}).get("auth", {}).get("selectedType") == selected
    assert settings["telemetry"] == {"enabled": False}
    assert settings["general"]["enableAutoUpdate"] is False
    assert (mode(file), mode(file.parent)) == (0o600, 0o700)


async def test_files_that_are_there_are_kept(tmp_path):
    file = tmp_path / "d" / ".gemini" / "settings.json"
    await prepare_data_dir(CATALOG["gemini-cli"], tmp_path / "d")
    file.write_text("mine")
    await prepare_data_dir(CATALOG["gemini-cli"], tmp_path / "d")
    assert file.read_text() == "mine"
    assert os.listdir(file.parent) == ["settings.json"]


def choice_of(key, secrets):
    descriptor = CATALOG[key]
    return choose_credential(
        descriptor, dict.fromkeys(secrets, "store"), in_file_secrets(descriptor, secrets)
    )


@pytest.mark.parametrize(
    ("key", "secrets", "needed"),
    [
        ("codex", {"CODEX_AUTH_JSON": '{"tokens": {"refresh_token": "r"}}'}, True),
        ("codex", {"CODEX_AUTH_JSON": "{}"}, False),
        # it would write the key into the home of whoever runs the server
        ("codex", {"OPENAI_API_KEY": "k"}, True),
        ("codex", {}, False),
        ("claude-code", {"ANTHROPIC_API_KEY": "k"}, False),
        ("gemini-cli", {"GOOGLE_APPLICATION_CREDENTIALS_JSON": '{"type": "service_account"}'}, True),
        ("gemini-cli", {"GEMINI_API_KEY": "k"}, False),
        ("kimi-code", {"KIMI_CODE_CONFIG_TOML": "default_model = 'x'"}, True),
        ("pi", {"PI_AUTH_JSON": '{"anthropic": {"key": "k"}}'}, True),
    ],
)
def test_which_credentials_want_a_data_directory(key, secrets, needed):
    assert needs_data_dir(CATALOG[key], choice_of(key, secrets)) is needed


def test_credential_file_is_pointed_to(tmp_path):
    secrets = {"GOOGLE_APPLICATION_CREDENTIALS_JSON": '{"private_key": "k"}', "GEMINI_API_KEY": "g"}
    env = compose("gemini-cli", secrets=secrets, data_dir=tmp_path)
    assert env["GOOGLE_APPLICATION_CREDENTIALS"] == str(tmp_path / "gcloud-credentials.json")
    assert not {"GOOGLE_APPLICATION_CREDENTIALS_JSON", "GEMINI_API_KEY"} & set(env)


def test_files_that_the_caller_hands_over_are_no_variables():
    env = compose("custom", secrets={"CERT": "c", "OTHER": "o"}, extra={"CERT_FILE": "/f"}, files={"CERT"})
    assert (env["CERT_FILE"], env["OTHER"]) == ("/f", "o")
    assert "CERT" not in env


def test_a_home_that_the_operator_moved_is_passed_on_unless_the_agent_gets_its_own():
    server = {**SERVER, "CODEX_HOME": "/elsewhere", "CLAUDE_CONFIG_DIR": "/other"}
    assert compose("codex", server=server)["CODEX_HOME"] == "/elsewhere"
    assert "CLAUDE_CONFIG_DIR" not in compose("codex", server=server)
    assert compose("codex", server=server, data_dir=Path("/d"))["CODEX_HOME"] == "/d"


async def test_relocated_home_keeps_the_git_identity(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[user]\n")
    await prepare_data_dir(CATALOG["gemini-cli"], tmp_path / "g", home=home)
    assert (tmp_path / "g" / ".gitconfig").read_text() == "[user]\n"
    assert not (tmp_path / "g" / ".config").exists()
    await prepare_data_dir(CATALOG["claude-code"], tmp_path / "c", home=home)
    assert os.listdir(tmp_path / "c") == ["tmp"]  # its own


def test_which_secrets_concern_an_agent():
    names = ["ANTHROPIC_API_KEY", "OPENAI_API_KEY", "CODEX_AUTH_JSON", "OSTLER_KEY", "MY_OWN"]
    assert concerning(CATALOG["codex"], names) == {"OPENAI_API_KEY", "CODEX_AUTH_JSON", "MY_OWN"}
    assert concerning(CATALOG["claude-code"], names) == {"ANTHROPIC_API_KEY", "MY_OWN"}


@pytest.mark.parametrize(
    ("key", "secrets", "added"),
    [
        ("kimi-code", {"KIMI_API_KEY": "k"}, {"KIMI_MODEL_API_KEY": "k", "KIMI_MODEL_NAME": "kimi-k2.6"}),
        (
            "kimi-code",
            {"KIMI_API_KEY": "k", "KIMI_BASE_URL": "http://u", "KIMI_MODEL_NAME": "mine"},
            {"KIMI_MODEL_API_KEY": "k", "KIMI_MODEL_NAME": "mine", "KIMI_MODEL_BASE_URL": "http://u"},
        ),
        ("qwen-code", {"OPENAI_API_KEY": "k"}, {"QWEN_DEFAULT_AUTH_TYPE": "openai"}),
        ("cline", {"OPENAI_API_KEY": "k"}, {"CLINE_API_KEY": "k", "CLINE_PROVIDER": "openai-native"}),
        ("cline", {"OPENAI_API_KEY": "k", "CLINE_API_KEY": "c"}, {"CLINE_API_KEY": "c"}),
    ],
)
def test_what_a_credential_adds(key, secrets, added):
    env = compose(key, secrets=secrets)
    assert {name: env.get(name) for name in added} == added


@pytest.mark.parametrize(
    ("key", "secrets"),
    [("kimi-code", {}), ("kimi-code", {"KIMI_CODE_CONFIG_TOML": "a = 1", "KIMI_API_KEY": "k"})],
)
def test_a_credential_that_is_not_used_adds_nothing(key, secrets):
    assert "KIMI_MODEL_NAME" not in compose(key, secrets=secrets)
