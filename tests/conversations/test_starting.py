"""How an agent of a conversation is started: what it gets, what it lacks, and starts that fail."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from supervisor.agents.catalog import load_catalog
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.conversations.state.start import StartRequest
from supervisor.credentials.secret import SecretsCorrupt
from supervisor.settings.agent import AgentSettings
from tests.conversations.harness import (
    SEALED,
    GivenSecrets,
    answer,
    events,
    one,
    open_harness,
    ready_pid,
    say,
    settled,
    states,
    turn,
    until,
)

DEMO = AgentSettings(acp_server="demo", acp_command=("python", "-m", "supervisor.agents.demo"))


@pytest.mark.guarantee(name="no-blind-retry")
@pytest.mark.parametrize(
    ("mode", "code", "words"),
    [
        ("crash=start:7", "ACPInitError", "exited with code 7"),
        ("crash=new:SIGKILL", "ACPInitError", "SIGKILL"),
        ("error=new:-32603:no luck", "ACPInitError", "no luck"),
        ("protocol=2", "ACPInitError", "version 2"),
    ],
)
async def test_starts_that_fail_are_reported_and_keep_the_message(
    tmp_path: Path, mode: str, code: str, words: str
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(mode)
        found = await turn(conversation, "hello")
        error = one(found, "ConversationErrorEvent")
        assert error["code"] == code
        assert words in error["detail"]
        assert conversation.record.now.execution_status == "error"
        assert len(conversation.queued) == 1


async def test_unreadable_secrets_are_told_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = True

    async def values(_store: object) -> dict[str, str]:
        if damaged:
            raise SecretsCorrupt(tmp_path / "secrets.json", "it is not the JSON that Ostler writes")
        return {}

    monkeypatch.setattr(GivenSecrets, "values", values)
    with capture_logs() as lines:
        async with open_harness(tmp_path) as harness:
            conversation = await harness.start()
            error = one(await turn(conversation, "hello"), "ConversationErrorEvent")
            assert error["code"] == "ACPSpawnError"
            assert "secrets.json is not usable" in error["detail"]
            assert "set the secrets again" in error["detail"]
            assert len(conversation.queued) == 1
            # Repaired, it runs with what waited.
            damaged = False
            await conversation.run()
            assert await settled(conversation) == "finished"
            assert not conversation.queued
    assert [line for line in lines if "exc_info" in line] == []


async def test_a_command_that_is_not_there(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        agent = harness.agent()
        request = StartRequest(
            working_dir=str(tmp_path / "w"),
            agent=type(agent)(acp_server="custom", acp_command=("/no/such/agent",)),
        )
        conversation, _ = await harness.supervisor.create(request)
        error = one(await turn(conversation, "hello"), "ConversationErrorEvent")
        assert error["code"] == "ACPSpawnError"
        assert "/no/such/agent" in error["detail"]


async def test_a_slow_start_ends_at_its_deadline(tmp_path: Path) -> None:
    async with open_harness(tmp_path, deadlines=Deadlines(initialize=0.2)) as harness:
        conversation = await harness.start("hang=init")
        error = one(await turn(conversation, "hello"), "ConversationErrorEvent")
        assert error["code"] == "ACPStartupTimeout"
        assert "initialize" in error["detail"]


async def test_what_a_slow_agent_asks_for_is_told(tmp_path: Path) -> None:
    async with open_harness(tmp_path, deadlines=Deadlines(initialize=0.2)) as harness:
        command = ("/bin/sh", "-c", "echo log in at https://example.test and paste the code >&2; cat >&2")
        agent = AgentSettings(acp_server="custom", acp_command=command)
        request = StartRequest(working_dir=str(tmp_path / "w"), agent=agent)
        conversation, _ = await harness.supervisor.create(request)
        error = one(await turn(conversation, "hello"), "ConversationErrorEvent")
        assert error["code"] == "ACPStartupTimeout"
        assert "Its last words:\nlog in at https://example.test and paste the code" in error["detail"]


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
@pytest.mark.parametrize("mode", ["key", "prompt-key"])
async def test_missing_credentials_are_named_and_the_message_goes_on_once_they_are_there(
    tmp_path: Path, mode: str
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(f"{mode}=DEMO_KEY", "auth=login-here")
        found = await turn(conversation, "hello")
        error = one(found, "ConversationErrorEvent")
        assert error["code"] == "ACPAuthRequired"
        assert "login-here" in error["detail"]
        assert error["classification"] == {"kind": "auth", "retryable": False, "user_action": "settings"}
        harness.secrets["DEMO_KEY"] = "k"
        before = len(harness.log.prompts())
        await conversation.run()
        assert await settled(conversation) == "finished"
        assert harness.log.prompts()[before:] == ["hello"]
        found = await events(conversation)
        assert answer(found) == "echo: hello "
        assert not [e for e in found if e["kind"] == "MessageEvent" and e["source"] == "environment"]


@pytest.mark.guarantee(name="secrets-stay-in")
async def test_an_agent_sees_nothing_of_the_server(tmp_path: Path) -> None:
    async with open_harness(tmp_path, secrets={"DEMO_TOKEN": "t0ken"}) as harness:
        conversation = await harness.start(secrets={"OWN_TOKEN": "0wn"})
        assert conversation.record.secrets == {"OWN_TOKEN": f"{SEALED}0wn"}
        await turn(conversation, "hello")
        pid = ready_pid(conversation)
        environ = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        names = {item.partition("=")[0] for item in environ}
        assert "SECRET_OF_THE_SERVER" not in names
        assert "DEMO_TOKEN=t0ken" in environ
        assert "OWN_TOKEN=0wn" in environ
        found = await turn(conversation, "!cwd")
        assert answer(found).count(str(tmp_path / "workspace")) >= 2


async def test_credentials_of_mcp_servers_are_sealed_and_forwarded(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        server = {"command": "/bin/cat", "args": ["-"], "env": {"TOKEN": "s3cret"}}
        conversation = await harness.start(settings={"mcp_config": {"files": server}})
        assert "s3cret" not in conversation.record.dump().decode().replace(f"{SEALED}s3cret", "")
        assert "s3cret" not in str(conversation.info())
        assert b"s3cret" not in conversation.full_state()
        await turn(conversation, "hello")
        (params,) = [message["params"] for message in harness.log.received("session/new")]
        assert params["mcpServers"] == [
            {
                "name": "files",
                "command": "/bin/cat",
                "args": ["-"],
                "env": [{"name": "TOKEN", "value": "s3cret"}],
            }
        ]


async def test_a_workspace_is_absolute_from_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with open_harness(tmp_path) as harness:
        request = StartRequest(working_dir="some/where", agent=harness.agent())
        conversation, _ = await harness.supervisor.create(request)
        assert conversation.record.start.working_dir == str(tmp_path / "some" / "where")
        await turn(conversation, "hello")
        assert (tmp_path / "some" / "where").is_dir()


async def test_what_an_agent_keeps_goes_with_its_conversation(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        request = StartRequest(working_dir=str(tmp_path / "w"), agent=DEMO)
        conversation, _ = await harness.supervisor.create(request)
        assert "Ostler's demo agent" in answer(await turn(conversation, "hello"))
        kept = tmp_path / "data" / conversation.id
        assert list((kept / "demo").iterdir())
        assert not (tmp_path / ".ostler-demo").exists()
        await harness.supervisor.delete(conversation.id)
        assert not kept.exists()


async def test_a_start_that_installs_nothing_is_no_installation(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        found = await turn(conversation, "hello")
        assert states(found, "agent_phase") == ["starting", "ready"]
        assert "environment" not in [each["source"] for each in found if each["kind"] == "MessageEvent"]


async def test_who_waits_for_an_installation_says_so(tmp_path: Path) -> None:
    for name, text in (("npm", "sleep 60"), ("node", "echo v24.0.0")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    async with open_harness(tmp_path, path=f"{tmp_path}:/usr/bin:/bin") as harness:
        agent = AgentSettings(acp_server="gemini-cli", acp_command=load_catalog()["gemini-cli"].command)
        first, second = [
            (await harness.supervisor.create(StartRequest(working_dir=str(tmp_path / name), agent=agent)))[0]
            for name in "ab"
        ]
        for conversation in (first, second):
            await conversation.send(say("hello"), run=True)
            await until(lambda each=conversation: each.agent.phase == "installing")
        assert states(await events(second), "agent_phase") == ["starting", "installing"]
        # Every client shows a message, and few the phase.
        for conversation, begin in ((first, "Installing Gemini CLI "), (second, "Waiting until Gemini CLI ")):
            _, notice = (each for each in await events(conversation) if each["kind"] == "MessageEvent")
            assert notice["source"] == "environment"
            assert notice["llm_message"]["content"][0]["text"].startswith(begin)
        overview = harness.supervisor.overview
        async with overview.following():
            rows = {line.shown["id"]: line.shown for line in overview.since(-1, None).lines}
            assert rows[first.id]["progress"].startswith("Installing Gemini CLI ")
            assert rows[second.id]["progress"].startswith("Waiting until Gemini CLI ")
            await first.interrupt()
            await second.interrupt()
            await until(lambda: overview.since(-1, None).lines[-1].shown["progress"] is None)


@pytest.mark.parametrize(("chosen", "current"), [(None, "default"), ("plan", "plan"), ("none", "default")])
async def test_the_older_modes_of_an_agent_are_shown(
    tmp_path: Path, chosen: str | None, current: str
) -> None:
    """As Auggie has them, and no config options."""
    async with open_harness(tmp_path) as harness:
        settings = {"acp_session_mode": chosen} if chosen else {}
        conversation = await harness.start("without=config", settings=settings)
        found = await turn(conversation, "hello")
        (modes,) = states(found, "modes")
        assert modes["currentModeId"] == current
        assert [(mode["id"], mode["name"]) for mode in modes["availableModes"]] == [
            ("default", "Default"),
            ("yolo", "Yolo"),
            ("plan", "Plan"),
        ]
        assert states(found, "current_mode") == [current]
        assert states(await turn(conversation, "!mode yolo"), "current_mode") == ["yolo"]


async def test_modes_beside_config_options_are_not(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        found = await turn(conversation, "hello")
        assert states(found, "modes") == []
        assert len(states(found, "config_options")) == 1


async def test_a_workspace_that_ostler_makes_is_a_repository(tmp_path: Path) -> None:
    """Clients show the changes of repositories alone. What was there before stays as it is."""
    kept, inside = tmp_path / "kept", tmp_path / "repository" / "below"
    kept.mkdir()
    (tmp_path / "repository" / ".git").mkdir(parents=True)
    (tmp_path / "repository" / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (tmp_path / ".git").mkdir()  # empty: git takes it for none
    async with open_harness(tmp_path) as harness:
        for place in (tmp_path / "deep" / "made", kept, inside):
            request = StartRequest(working_dir=str(place), agent=DEMO)
            conversation, _ = await harness.supervisor.create(request)
            await turn(conversation, "hello")
    assert not (kept / ".git").exists()
    assert not (inside / ".git").exists()
    made = tmp_path / "deep" / "made"
    (made / "new").write_text("x")
    status = await trio.run_process(["git", "status", "--short"], cwd=made, capture_stdout=True)
    assert status.stdout == b"?? new\n"
    committed = ["git", "-c", "user.name=n", "-c", "user.email=e", "commit", "-qm", "one"]
    for command in (["git", "add", "new"], committed, ["git", "fsck", "--strict"]):
        await trio.run_process(command, cwd=made, capture_stderr=True)
