"""One credential for each start, as the agent's process has it; logins on demand; files that rotate."""

from __future__ import annotations

import json
import os
import signal
import stat
from pathlib import Path
from typing import Any

import attrs
import pytest

from supervisor.conversations.conversation import Conversation
from supervisor.conversations.state.start import StartRequest
from supervisor.settings.agent import FileSecret
from tests.conversations.harness import (
    Harness,
    events,
    one,
    open_harness,
    ready_pid,
    settled,
    states,
    turn,
    until,
)

KEYS = {
    "ANTHROPIC_API_KEY": "ant-key",
    "ANTHROPIC_AUTH_TOKEN": "",
    "OPENAI_API_KEY": "oai-key",
    "GEMINI_API_KEY": "gem-key",
}
URLS = {
    "ANTHROPIC_BASE_URL": "http://ant.example",
    "OPENAI_BASE_URL": "http://oai.example",
    "GEMINI_BASE_URL": "http://gem.example",
}
AGENTS = {
    "claude-code": ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
    "codex": ("OPENAI_API_KEY", "OPENAI_BASE_URL"),
    "gemini-cli": ("GEMINI_API_KEY", "GEMINI_BASE_URL"),
}
CODEX_LOGIN = {"tokens": {"access_token": "at", "refresh_token": "rt"}}
LOGINS = {
    ".claude/.credentials.json": {"claudeAiOauth": {"accessToken": "at", "refreshToken": "rt"}},
    ".codex/auth.json": CODEX_LOGIN,
    ".gemini/oauth_creds.json": {"access_token": "at", "refresh_token": "rt"},
}


def sign_in(home: Path) -> None:
    for name, login in LOGINS.items():
        (home / name).parent.mkdir()
        (home / name).write_text(json.dumps(login))


async def start(harness: Harness, key: str, *modes: str, **settings: Any) -> Conversation:
    """The scripted agent in the place of one of the catalogue's."""
    secrets = settings.pop("secrets", {})
    agent = attrs.evolve(harness.agent(*modes), acp_server=key, **settings)
    workspace = str(harness.root / "workspace")
    request = StartRequest(working_dir=workspace, agent=agent, spelled_out=True, secrets=secrets)
    conversation, created = await harness.supervisor.create(request)
    assert created
    return conversation


def environment(conversation: Conversation) -> dict[str, str]:
    """As the kernel has it."""
    text = Path(f"/proc/{ready_pid(conversation)}/environ").read_bytes().decode()
    return dict(item.split("=", 1) for item in text.split("\0") if item)


@pytest.mark.guarantee(name="secrets-stay-in")
@pytest.mark.parametrize("key", AGENTS)
async def test_a_login_wins_over_a_key_and_a_base_url_stays(tmp_path: Path, key: str) -> None:
    sign_in(tmp_path)
    async with open_harness(tmp_path, secrets={**KEYS, **URLS}) as harness:
        conversation = await start(harness, key)
        await turn(conversation, "hello")
        env = environment(conversation)
        assert not KEYS.keys() & env.keys()
        url = AGENTS[key][1]
        assert {name: value for name, value in env.items() if name in URLS} == {url: URLS[url]}
        assert env["HOME"] == str(tmp_path)
        if key == "codex":
            assert json.loads(env["CODEX_CONFIG"])["openai_base_url"] == URLS[url]
        if key == "gemini-cli":
            assert env["GOOGLE_GEMINI_BASE_URL"] == URLS[url]


@pytest.mark.guarantee(name="secrets-stay-in")
@pytest.mark.parametrize("key", AGENTS)
async def test_without_a_login_there_is_exactly_the_agents_own_key(tmp_path: Path, key: str) -> None:
    async with open_harness(tmp_path, secrets=dict(KEYS)) as harness:
        conversation = await start(harness, key)
        await turn(conversation, "hello")
        env = environment(conversation)
        own = AGENTS[key][0]
        assert {name: value for name, value in env.items() if name in KEYS} == {own: KEYS[own]}


async def test_a_token_of_a_login_wins_over_a_key(tmp_path: Path) -> None:
    async with open_harness(tmp_path, secrets={**KEYS, **URLS}) as harness:
        conversation = await start(harness, "claude-code", secrets={"CLAUDE_CODE_OAUTH_TOKEN": "oat"})
        await turn(conversation, "hello")
        env = environment(conversation)
        assert env["CLAUDE_CODE_OAUTH_TOKEN"] == "oat"
        assert env["ANTHROPIC_BASE_URL"] == URLS["ANTHROPIC_BASE_URL"]
        assert "ANTHROPIC_API_KEY" not in env


async def test_an_isolated_agent_does_not_see_the_login_and_gets_the_key(tmp_path: Path) -> None:
    sign_in(tmp_path)
    async with open_harness(tmp_path, secrets=dict(KEYS)) as harness:
        conversation = await start(harness, "claude-code", acp_isolate_data_dir=True)
        await turn(conversation, "hello")
        assert environment(conversation)["ANTHROPIC_API_KEY"] == "ant-key"


async def test_a_custom_agent_gets_what_was_added_for_it_and_nothing_of_the_server_or_of_files(
    tmp_path: Path,
) -> None:
    secrets = {"MY_AGENT_KEY": "mine", "OSTLER_MASTER_KEY": "x", "CODEX_AUTH_JSON": json.dumps(CODEX_LOGIN)}
    async with open_harness(tmp_path, secrets={**secrets, "OPENAI_API_KEY": "k"}) as harness:
        conversation = await harness.start()
        await turn(conversation, "hello")
        env = environment(conversation)
        assert (env["MY_AGENT_KEY"], env["OPENAI_API_KEY"]) == ("mine", "k")
        assert not {"OSTLER_MASTER_KEY", "SECRET_OF_THE_SERVER", "CODEX_AUTH_JSON", "CODEX_HOME"} & env.keys()
        assert not list((tmp_path / "data").rglob("auth.json"))


@pytest.mark.parametrize(("mode", "method"), [("key", "session/new"), ("prompt-key", "session/prompt")])
async def test_an_agent_that_wants_a_login_is_logged_in_once_and_asked_again(
    tmp_path: Path, mode: str, method: str
) -> None:
    sign_in(tmp_path)
    async with open_harness(tmp_path, secrets={**KEYS, **URLS}) as harness:
        conversation = await start(
            harness, "gemini-cli", f"{mode}=NEVER_SET", "auth=gemini-api-key,oauth-personal"
        )
        await turn(conversation, "hello")
        assert conversation.record.now.execution_status == "finished"
        (call,) = harness.log.received("authenticate")
        assert call["params"] == {
            "methodId": "oauth-personal",
            "_meta": {"gateway": {"baseUrl": URLS["GEMINI_BASE_URL"]}},
        }
        assert len(harness.log.received(method)) == 2
        assert "needs_credentials" not in conversation.record.reported.agent_state


@pytest.mark.parametrize("mode", ["key", "prompt-key"])
@pytest.mark.parametrize("refused", [False, True])
async def test_missing_credentials_are_told_with_the_choices_and_are_no_crash(
    tmp_path: Path, mode: str, refused: bool
) -> None:
    modes = [f"{mode}=OPENAI_API_KEY", "auth=api-key,chat-gpt"]
    if refused:
        sign_in(tmp_path)
        modes.append("error=auth:-32000:expired")
    async with open_harness(tmp_path) as harness:
        conversation = await start(harness, "codex", *modes)
        found = await turn(conversation, "hello")
        error = one(found, "ConversationErrorEvent")
        assert error["code"] == "ACPAuthRequired"
        assert error["classification"] == {"kind": "auth", "retryable": False, "user_action": "settings"}
        assert "OPENAI_API_KEY" in error["detail"]
        needed = states(found, "agent_state")[-1]["needs_credentials"]
        assert needed == {
            "agent": "codex",
            "methods": [
                {"id": "api-key", "name": "api-key", "type": "agent"},
                {"id": "chat-gpt", "name": "chat-gpt", "type": "agent"},
            ],
            "secrets": ["CODEX_AUTH_JSON", "CODEX_ACCESS_TOKEN", "CODEX_API_KEY", "OPENAI_API_KEY"],
            "used": str(tmp_path / ".codex/auth.json") if refused else None,
        }
        view = await harness.supervisor.agent(conversation.id)
        assert view.restarts == 0
        assert not [event for event in found if event.get("key") == "agent_exit"]
        assert harness.supervisor.figures().crashes_total == 0
        if not refused:
            harness.secrets["OPENAI_API_KEY"] = "k"
            await conversation.run()
            assert await settled(conversation) == "finished"
            assert "needs_credentials" not in states(await events(conversation), "agent_state")[-1]


@pytest.mark.parametrize(
    ("error", "says"),
    [
        ("prompt:-32000:boom upstream", "[-32000] boom upstream"),
        ("new:-32000:boom upstream", "[-32000] boom upstream"),
        ("prompt:-32603:401 boom upstream", "[-32603] 401 boom upstream"),
        ("prompt:-32603:boom upstream", "[-32603] boom upstream"),
    ],
)
@pytest.mark.parametrize("modes", [(), ("auth=api-key",)])
async def test_the_agents_own_words_come_first(
    tmp_path: Path, error: str, says: str, modes: tuple[str, ...]
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(f"error={error}", *modes)
        told = one(await turn(conversation, "hello"), "ConversationErrorEvent")
        assert told["detail"].startswith(says)
        if told["code"] == "ACPAuthRequired":
            assert "store its key as a secret, then run again" in told["detail"]
        assert (told["code"] == "ACPAuthRequired") is (says != "[-32603] boom upstream")


@pytest.mark.parametrize(
    "error",
    [
        "prompt:-32000:Log in again",
        "new:-32000:Log in again",
        "new:-32603:401 Unauthorized",
        "prompt:401:Login",
    ],
)
async def test_credentials_that_the_agent_does_not_take_are_told_with_the_choices_too(
    tmp_path: Path, error: str
) -> None:
    async with open_harness(tmp_path, secrets={"OPENAI_API_KEY": "k"}) as harness:
        conversation = await start(harness, "codex", f"error={error}", "auth=api-key")
        found = await turn(conversation, "hello")
        assert one(found, "ConversationErrorEvent")["code"] == "ACPAuthRequired"
        needed = states(found, "agent_state")[-1]["needs_credentials"]
        assert [method["id"] for method in needed["methods"]] == ["api-key"]
        assert needed["used"] == "OPENAI_API_KEY"
        assert len(harness.log.received("authenticate")) <= 1
        assert harness.supervisor.figures().crashes_total == 0


async def test_a_credential_file_is_there_before_the_start_and_what_was_rotated_is_stored(
    tmp_path: Path,
) -> None:
    value = json.dumps(CODEX_LOGIN)
    async with open_harness(tmp_path, secrets={"CODEX_AUTH_JSON": value, **KEYS}) as harness:
        first, second = await start(harness, "codex"), await start(harness, "codex")
        files = []
        for conversation in (first, second):
            await turn(conversation, "hello")
            env = environment(conversation)
            assert not {"CODEX_AUTH_JSON", "OPENAI_API_KEY"} & env.keys()
            file = Path(env["CODEX_HOME"]) / "auth.json"
            assert file.is_relative_to(tmp_path / "data" / conversation.id)
            assert stat.S_IMODE(os.lstat(file).st_mode) == 0o600
            assert file.read_text() == value
            files.append(file)
        rotated = value.replace("rt", "rt2")
        files[0].write_text(rotated)  # as the agent does
        await harness.supervisor.stop_agent(first.id)
        assert harness.secrets["CODEX_AUTH_JSON"] == rotated
        assert files[1].read_text() == rotated
        # The other one ends later, and badly; it has a newer token.
        newer = value.replace("rt", "rt3")
        beside = files[1].with_suffix(".tmp")
        beside.write_text(newer)
        beside.replace(files[1])
        os.kill(ready_pid(second), signal.SIGKILL)
        await until(lambda: harness.secrets["CODEX_AUTH_JSON"] == newer)
        await turn(first, "again")
        assert files[0].read_text() == newer


async def test_a_rotated_login_is_no_changed_secret_for_those_who_share_its_file(tmp_path: Path) -> None:
    value = json.dumps(CODEX_LOGIN)
    async with open_harness(tmp_path, secrets={"CODEX_AUTH_JSON": value}) as harness:
        first, second = await start(harness, "codex"), await start(harness, "codex")
        await turn(first, "hello")
        await turn(second, "hello")
        pid = ready_pid(second)
        (Path(environment(first)["CODEX_HOME"]) / "auth.json").write_text(value.replace("rt", "rt2"))
        await harness.supervisor.stop_agent(first.id)
        assert harness.secrets["CODEX_AUTH_JSON"] == value.replace("rt", "rt2")
        assert not (await harness.supervisor.agent(second.id)).changed_secrets
        await turn(second, "again")
        assert ready_pid(second) == pid
        harness.secrets["CODEX_AUTH_JSON"] = value.replace("rt", "of another person")
        assert list((await harness.supervisor.agent(second.id)).changed_secrets) == ["CODEX_AUTH_JSON"]


async def test_a_credential_of_the_conversation_rotates_without_touching_the_stored_one(
    tmp_path: Path,
) -> None:
    stored, own = json.dumps({"tokens": {"refresh_token": "st"}}), json.dumps(CODEX_LOGIN)
    async with open_harness(tmp_path, secrets={"CODEX_AUTH_JSON": stored}) as harness:
        conversation = await start(harness, "codex", secrets={"CODEX_AUTH_JSON": own})
        await turn(conversation, "hello")
        file = Path(environment(conversation)["CODEX_HOME"]) / "auth.json"
        file.write_text(own.replace("rt", "rt2"))
        await harness.supervisor.stop_agent(conversation.id)
        await turn(conversation, "again")
        assert file.read_text() == own.replace("rt", "rt2")
        assert harness.secrets["CODEX_AUTH_JSON"] == stored
        await harness.supervisor.delete(conversation.id)
        assert not list((tmp_path / "data" / "logins" / "CODEX_AUTH_JSON").iterdir())
        assert not (tmp_path / "data" / conversation.id).exists()


async def test_a_login_that_is_not_from_the_store_is_not_written_there(tmp_path: Path) -> None:
    value = json.dumps(CODEX_LOGIN)
    async with open_harness(tmp_path, secrets={"CODEX_AUTH_JSON": value}) as harness:

        async def mounted() -> dict[str, str]:
            return {"CODEX_AUTH_JSON": "directory"}

        harness.supervisor._context = attrs.evolve(
            harness.supervisor._context,
            launcher=attrs.evolve(harness.supervisor._context.launcher, origins=mounted),
        )
        conversation = await start(harness, "codex")
        await turn(conversation, "hello")
        file = Path(environment(conversation)["CODEX_HOME"]) / "auth.json"
        file.write_text(value.replace("rt", "rt2"))
        await harness.supervisor.stop_agent(conversation.id)
        assert harness.secrets["CODEX_AUTH_JSON"] == value
        await turn(conversation, "again")
        assert file.read_text() == value.replace("rt", "rt2")


async def test_a_credential_file_that_was_taken_back_is_no_login_any_more(tmp_path: Path) -> None:
    secrets = {"CODEX_AUTH_JSON": json.dumps(CODEX_LOGIN), "OPENAI_API_KEY": "k"}
    async with open_harness(tmp_path, secrets=secrets) as harness:
        conversation = await start(harness, "codex", acp_isolate_data_dir=True)
        await turn(conversation, "hello")
        file = Path(environment(conversation)["CODEX_HOME"]) / "auth.json"
        assert file.exists()
        await harness.supervisor.stop_agent(conversation.id)
        del harness.secrets["CODEX_AUTH_JSON"]
        await turn(conversation, "again")
        assert not file.exists()
        assert environment(conversation)["OPENAI_API_KEY"] == "k"


async def test_a_key_that_an_agent_keeps_stays_out_of_the_home_and_gives_way_to_a_new_one(
    tmp_path: Path,
) -> None:
    async with open_harness(tmp_path, secrets={"OPENAI_API_KEY": "k1"}) as harness:
        conversation = await start(harness, "codex")
        await turn(conversation, "hello")
        home = Path(environment(conversation)["CODEX_HOME"])
        assert home.is_relative_to(tmp_path / "data" / conversation.id)
        (home / "auth.json").write_text('{"auth_mode": "apikey", "OPENAI_API_KEY": "k1"}')  # as codex does
        await harness.supervisor.stop_agent(conversation.id)
        harness.secrets["OPENAI_API_KEY"] = "k2"
        await turn(conversation, "again")
        assert environment(conversation)["OPENAI_API_KEY"] == "k2"
        assert not (home / "auth.json").exists()


@pytest.mark.parametrize("points_to", ["file", "dir"])
async def test_files_that_the_settings_ask_for(tmp_path: Path, points_to: str) -> None:
    spec = FileSecret(
        secret_name="CERT",
        filename="cert.pem",
        env_var="CERT_PLACE",
        subdir="certs/mine",
        env_points_to=points_to,
        warn_if_unset=("CERT_PASSWORD",),
    )
    async with open_harness(tmp_path, secrets={"CERT": "-----BEGIN", "OTHER": "o"}) as harness:
        conversation = await harness.start(settings={"acp_file_secrets": (spec,)})
        await turn(conversation, "hello")
        env = environment(conversation)
        place = Path(env["CERT_PLACE"])
        file = place if points_to == "file" else place / "cert.pem"
        assert (file.name, file.read_text()) == ("cert.pem", "-----BEGIN")
        assert stat.S_IMODE(os.lstat(file).st_mode) == 0o600
        assert ("CERT" in env, env["OTHER"]) == (False, "o")
        assert Path(env["HOME"]).resolve() == tmp_path / "data" / conversation.id / "custom"


async def test_tokens_inside_a_login_do_not_show(tmp_path: Path) -> None:
    login = {"claudeAiOauth": {"accessToken": "sk-ant-oat01-secret", "refreshToken": "sk-ant-ort01-secret"}}
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / ".credentials.json").write_text(json.dumps(login))
    async with open_harness(tmp_path) as harness:
        conversation = await start(harness, "claude-code")
        found = await turn(conversation, "!text it is sk-ant-oat01-secret or sk-ant-ort01-secret")
        said = [event for event in found if event["source"] != "user"]
        assert "it is <secret-hidden> or <secret-hidden>" in json.dumps(said)


async def test_a_method_whose_variables_are_given_is_authenticated_with_and_asked_again(
    tmp_path: Path,
) -> None:
    modes = ("key=NEVER_SET", "env-auth=first:NO_SUCH_KEY,second:MY_KEY+MY_REGION")
    async with open_harness(tmp_path, secrets={"MY_KEY": "k" * 20, "MY_REGION": "north"}) as harness:
        conversation = await harness.start(*modes)
        await turn(conversation, "hello")
        assert conversation.record.now.execution_status == "finished"
        assert [call["params"] for call in harness.log.received("authenticate")] == [{"methodId": "second"}]
        assert len(harness.log.received("session/new")) == 2
        assert "needs_credentials" not in conversation.info()["agent_state"]


async def test_a_method_that_is_refused_makes_way_for_the_next(tmp_path: Path) -> None:
    modes = ("key=NEVER_SET", "env-auth=first:MY_KEY,second:MY_OTHER_KEY", "error=auth:-32602:not this one")
    secrets = {"MY_KEY": "k" * 20, "MY_OTHER_KEY": "o" * 20}
    async with open_harness(tmp_path, secrets=secrets) as harness:
        conversation = await harness.start(*modes)
        error = one(await turn(conversation, "hello"), "ConversationErrorEvent")
        asked = [call["params"]["methodId"] for call in harness.log.received("authenticate")]
        assert (error["code"], asked) == ("ACPAuthRequired", ["first", "second"])
        needed = conversation.info()["agent_state"]["needs_credentials"]
        # What was given is not what is missing.
        assert (needed["secrets"], needed["given"]) == ([], ["MY_KEY", "MY_OTHER_KEY"])
        assert "it was given, and does not accept: MY_KEY, MY_OTHER_KEY" in error["detail"]


async def test_what_is_missing_is_named_and_what_was_given_is_not(tmp_path: Path) -> None:
    modes = ("key=NEVER_SET", "env-auth=one:MY_KEY+MY_REGION,two:THEIR_KEY")
    async with open_harness(tmp_path, secrets={"MY_KEY": "k" * 20}) as harness:
        conversation = await harness.start(*modes)
        error = one(await turn(conversation, "hello"), "ConversationErrorEvent")
        needed = conversation.info()["agent_state"]["needs_credentials"]
        assert (needed["secrets"], needed["given"]) == (["MY_REGION", "THEIR_KEY"], ["MY_KEY"])
        assert [each["missing"] for each in needed["methods"]] == [["MY_REGION"], ["THEIR_KEY"]]
        assert "secrets that would help: MY_REGION, THEIR_KEY" in error["detail"]
        assert not harness.log.received("authenticate")


@pytest.mark.parametrize(
    "modes",
    [
        ("error=init:-32000:Authentication required",),
        ("error=new:-32000:Authentication required", "auth=login"),
        ("error=new:-32603:Authentication required", "auth=login"),
        ("error=prompt:-32000:Authentication required", "auth=login"),
        ("error=prompt:-32000:Authentication required", "env-auth=way:OPENAI_API_KEY"),
        ("error=prompt:-31002:Authentication required", "auth=login"),
    ],
)
async def test_authentication_required_is_followed_by_what_would_help(
    tmp_path: Path, modes: tuple[str, ...]
) -> None:
    async with open_harness(tmp_path, secrets={"OPENAI_API_KEY": "o" * 20}) as harness:
        conversation = await start(harness, "codex", *modes)
        error = one(await turn(conversation, "hello"), "ConversationErrorEvent")
        assert error["code"] == "ACPAuthRequired"
        assert "Authentication required" in error["detail"]
        assert "store its key as a secret" in error["detail"]
        assert (
            "secrets that would help: CODEX_AUTH_JSON, CODEX_ACCESS_TOKEN, CODEX_API_KEY" in error["detail"]
        )
        assert "does not accept: OPENAI_API_KEY" in error["detail"]
        if "auth=login" in modes:
            assert "the agent offers: login" in error["detail"]
        needed = conversation.info()["agent_state"]["needs_credentials"]
        assert "OPENAI_API_KEY" not in needed["secrets"]
        assert needed["given"] == ["OPENAI_API_KEY"]
