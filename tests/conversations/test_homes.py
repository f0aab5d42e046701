"""Homes of conversations: agents that share a helper by their HOME do not end with each other."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Awaitable, Callable
from pathlib import Path

import attrs
import pytest

from supervisor.agents.homes.short_path import LONGEST
from supervisor.conversations.conversation import Conversation
from supervisor.conversations.forking import ForkRequest
from supervisor.conversations.state.start import StartRequest
from tests.conversations.harness import (
    Harness,
    answer,
    events,
    one,
    open_harness,
    ready_pid,
    say,
    settled,
    speaking,
    states,
    turn,
    until,
)
from tests.conversations.test_credentials import environment, start
from tests.support.processes import alive
from tests.support.thorough import everyday

LOGIN = {"tokens": {"access_token": "old-access", "refresh_token": "old-refresh"}}


def real_home(root: Path) -> Path:
    """What people have in theirs."""
    home = root / "home"
    files = {
        ".gitconfig": "[user]\nname = Somebody\n",
        ".tool/login.json": json.dumps(LOGIN),
        ".config/tool/config.toml": "model = 'large'\n",
        ".local/share/tool/daemon.pid": "1",
        ".tool/hub/discovery.json": '{"pid": 1, "port": 2}',
        "work/notes.txt": "mine",
    }
    for name, text in files.items():
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(text)
    return home


async def delete(harness: Harness, conversation: Conversation) -> None:
    await harness.supervisor.delete(conversation.id)


async def stop(harness: Harness, conversation: Conversation) -> None:
    await conversation.stop_agent()


async def hibernate(harness: Harness, conversation: Conversation) -> None:
    await conversation.agent.hibernate("a test")


async def crash(harness: Harness, conversation: Conversation) -> None:
    pid = ready_pid(conversation)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


ENDS = {each.__name__: each for each in (delete, stop, hibernate, crash)}
PLACES = ("HOME", "TMPDIR", "TMUX_TMPDIR")


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
@pytest.mark.parametrize(
    ("place", "end"),
    [
        pytest.param(place, end, id=f"{place}-{name}")
        for name, end in ENDS.items()
        # How it ends does not depend on where its helper is found.
        for place in everyday(PLACES if name == "crash" else PLACES[:1], PLACES)
    ],
)
async def test_the_end_of_one_conversation_does_not_reach_the_helper_of_another(
    tmp_path: Path, end: Callable[[Harness, Conversation], Awaitable[None]], place: str
) -> None:
    modes = [f"hub={place}"]
    async with open_harness(tmp_path, home=real_home(tmp_path)) as harness:
        first = await harness.start(*modes)
        await turn(first, "hello")
        second = await harness.start(*modes)
        await second.send(say("!slow 60 20"), run=True)
        await speaking(second)
        await end(harness, first)
        helper = harness.log.records("hub")[0]["child"]
        await until(lambda: not alive(helper), "the end of the first one's helper")
        assert await settled(second) == "finished"
        assert not [e for e in await events(second) if e["kind"] == "ConversationErrorEvent"]
        assert "echo: still here" in answer(await turn(second, "still here"))


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
async def test_homes_are_private_and_go_with_their_conversation(tmp_path: Path) -> None:
    home = real_home(tmp_path)
    before = {path: path.read_bytes() for path in home.rglob("*") if path.is_file()}
    async with open_harness(tmp_path, home=home) as harness:
        conversation = await harness.start()
        await turn(conversation, "hello")
        env = environment(conversation)
        own = Path(env["HOME"])
        assert own.resolve() == tmp_path / "data" / conversation.id / "custom"
        assert stat.S_IMODE(own.stat().st_mode) == 0o700
        assert own != home
        temporary = Path(env["TMUX_TMPDIR"])
        # Where the way is long it is another one, and no link: tmux follows links before it makes its socket.
        assert temporary == temporary.resolve() == Path(env["TMPDIR"])
        assert len(str(temporary)) <= LONGEST
        assert stat.S_IMODE(temporary.stat().st_mode) == 0o700
        # Login and configuration are the real ones; what tells of somebody else's processes is not there.
        assert (own / ".tool" / "login.json").resolve() == home / ".tool" / "login.json"
        assert (own / ".config" / "tool" / "config.toml").resolve() == home / ".config/tool/config.toml"
        assert (own / "work" / "notes.txt").read_text() == "mine"
        assert (own / ".gitconfig").read_text() == "[user]\nname = Somebody\n"
        assert not (own / ".local" / "share" / "tool" / "daemon.pid").exists()
        assert not (own / ".tool" / "hub" / "discovery.json").exists()
        for name in (".tool", ".tool/hub", ".config", ".config/tool", ".local/share/tool"):
            assert not (own / name).is_symlink(), name
        (own / ".tool" / "new.txt").write_text("x")
        assert not (home / ".tool" / "new.txt").exists()
        (temporary / "file").write_text("x")
        await conversation.stop_agent()
        assert not temporary.exists()
        await turn(conversation, "hello")
        again = environment(conversation)
        assert [again[name] for name in ("HOME", "TMPDIR")] == [env[name] for name in ("HOME", "TMPDIR")]
        other = await harness.start()
        await turn(other, "hello")
        assert environment(other)["HOME"] != env["HOME"]
        await harness.supervisor.delete(conversation.id)
        await until(lambda: not own.exists() and not own.is_symlink(), "the end of its home")
        assert not (tmp_path / "data" / conversation.id).exists()
        assert not temporary.exists()
        await harness.supervisor.delete(other.id)
    assert {path: path.read_bytes() for path in home.rglob("*") if path.is_file()} == before


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
async def test_a_home_is_found_again_after_hibernation_and_a_restart_of_the_server(tmp_path: Path) -> None:
    home = real_home(tmp_path)
    async with open_harness(tmp_path, home=home) as harness:
        conversation = await harness.start("keep=HOME", "hub")
        await turn(conversation, "first")
        assert list((Path(environment(conversation)["HOME"]) / ".scripted" / "sessions").glob("*.json"))
        await conversation.agent.hibernate("a test")
        assert "first" in answer(await turn(conversation, "!remember"))
    async with open_harness(tmp_path, home=home) as harness:
        conversation = await harness.supervisor.get(conversation.id)
        found = await turn(conversation, "!remember")
        assert "first" in answer(found)
        assert [state["memory"] for state in states(found, "agent_state")][-1] in ("resumed", "loaded")
        assert not list(home.rglob("*.scripted*"))


async def test_a_fork_remembers_by_a_copy_of_the_home(tmp_path: Path) -> None:
    async with open_harness(tmp_path, home=real_home(tmp_path)) as harness:
        conversation = await harness.start("keep=HOME", "hub")
        await turn(conversation, "first")
        fork = await harness.supervisor.fork(conversation.id, ForkRequest())
        found = await turn(fork, "!remember")
        assert "first" in answer(found)
        assert states(found, "agent_state")[-1]["memory"] in {"resumed", "loaded"}
        await harness.supervisor.delete(conversation.id)
        assert "first" in answer(await turn(fork, "!remember"))


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
async def test_a_fork_remembers_although_its_source_is_deleted_before_it_starts(tmp_path: Path) -> None:
    async with open_harness(tmp_path, home=real_home(tmp_path)) as harness:
        conversation = await harness.start("keep=HOME")
        await turn(conversation, "first")
        fork = await harness.supervisor.fork(conversation.id, ForkRequest())
        await harness.supervisor.delete(conversation.id)
        found = await turn(fork, "!remember")
        assert "first" in answer(found)
        assert states(found, "agent_state")[-1]["memory"] in {"resumed", "loaded"}


KEPT = "sessions/.scripted/sessions"


async def forked_codex(harness: Harness, before: Callable[[Path], None]) -> tuple[Conversation, Conversation]:
    """A conversation with an agent that keeps its sessions where Codex does, and a fork of it. `before`: gets
    its data directory before that is forked."""
    conversation = await start(harness, "codex", "keep=CODEX_HOME/sessions")
    await turn(conversation, "first")
    before(Path(environment(conversation)["CODEX_HOME"]))
    return conversation, await harness.supervisor.fork(conversation.id, ForkRequest())


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
async def test_a_fork_gets_the_sessions_of_a_data_directory_and_no_login(tmp_path: Path) -> None:
    def log_in(data: Path) -> None:
        (data / "auth.json").write_text('{"OPENAI_API_KEY": "k"}')
        (data / "state.sqlite").write_text("names files by their whole paths")

    async with open_harness(tmp_path, secrets={"OPENAI_API_KEY": "k" * 20}) as harness:
        conversation, fork = await forked_codex(harness, log_in)
        assert fork.info()["agent_state"]["memory"] == "forked"
        copied = tmp_path / "data" / fork.id / "codex"
        session = fork.record.now.session_id
        assert {path.name for path in copied.rglob("*") if path.is_file()} >= {f"{session}.json"}
        assert [path.name for path in copied.iterdir()] == ["sessions"]
        # The source keeps none of its forks, which else would be in the next one, too.
        kept = tmp_path / "data" / conversation.id / "codex" / KEPT
        assert [path.stem for path in kept.glob("*.json")] == [conversation.record.now.session_id]
        await harness.supervisor.delete(conversation.id)
        found = await turn(fork, "!remember")
        assert "first" in answer(found)
        assert states(found, "agent_state")[-1]["memory"] in {"resumed", "loaded"}


IN_A_DATABASE = "keep=XDG_DATA_HOME/opencode/opencode.db"


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
async def test_a_fork_gets_a_database_that_no_process_has_open(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await start(harness, "opencode", IN_A_DATABASE, acp_isolate_data_dir=True)
        await turn(conversation, "first")
        (Path(environment(conversation)["XDG_DATA_HOME"]) / "opencode" / "auth.json").write_text("{}")
        fork = await harness.supervisor.fork(conversation.id, ForkRequest())
        assert conversation.agent.phase == "hibernated"
        assert fork.info()["agent_state"]["memory"] == "forked"
        copied = tmp_path / "data" / fork.id / "opencode" / "share" / "opencode"
        assert [path.name for path in copied.iterdir()] == ["opencode.db"]
        assert "first" in answer(await turn(conversation, "!remember"))
        await harness.supervisor.delete(conversation.id)
        found = await turn(fork, "!remember")
        assert "first" in answer(found)
        assert states(found, "agent_state")[-1]["memory"] in {"resumed", "loaded"}


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
async def test_a_database_in_use_is_not_copied(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await start(harness, "opencode", IN_A_DATABASE, acp_isolate_data_dir=True)
        await turn(conversation, "first")
        before = ready_pid(conversation)
        async with conversation.agent.borrowed():
            fork = await harness.supervisor.fork(conversation.id, ForkRequest())
        assert ready_pid(conversation) == before
        assert fork.info()["agent_state"]["memory"] == "lost"
        assert not (tmp_path / "data" / fork.id / "opencode").exists()
        await turn(fork, "what was it")
        assert "first" in harness.log.prompts()[-1]


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
async def test_sessions_that_are_too_large_to_be_copied_give_a_fork_a_transcript(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def pour(data: Path) -> None:
        (data / KEPT / "large").write_bytes(bytes(50_001))

    monkeypatch.setattr("supervisor.agents.homes.home.COPY_BYTES", 50_000)
    async with open_harness(tmp_path, secrets={"OPENAI_API_KEY": "k" * 20}) as harness:
        _, fork = await forked_codex(harness, pour)
        assert fork.info()["agent_state"]["memory"] == "lost"
        await turn(fork, "what was it")
        assert "first" in harness.log.prompts()[-1]


async def test_a_login_that_the_agent_renews_is_that_of_all(tmp_path: Path) -> None:
    """It replaces the file, as programs do that write safely: that ends a link."""
    home = real_home(tmp_path)
    async with open_harness(tmp_path, home=home) as harness:
        conversation, other = await harness.start(), await harness.start()
        for each in (conversation, other):
            await turn(each, "hello")
        own = Path(environment(conversation)["HOME"]) / ".tool" / "login.json"
        renewed = json.dumps({"tokens": {"access_token": "new-access", "refresh_token": "new-refresh"}})
        own.with_suffix(".part").write_text(renewed)
        own.with_suffix(".part").replace(own)
        settings = Path(environment(conversation)["HOME"]) / ".config" / "tool" / "config.toml"
        settings.unlink()
        settings.write_text("model = 'small'\n")
        await conversation.stop_agent()
        assert (home / ".tool" / "login.json").read_text() == renewed
        assert (Path(environment(other)["HOME"]) / ".tool" / "login.json").read_text() == renewed
        # What is no login stays with the conversation that changed it.
        assert (home / ".config" / "tool" / "config.toml").read_text() == "model = 'large'\n"
        await turn(conversation, "again")
        assert own.is_symlink()
        assert settings.read_text() == "model = 'small'\n"


async def test_an_isolated_custom_agent_sees_nothing_but_what_the_settings_name(tmp_path: Path) -> None:
    home = real_home(tmp_path)
    wanted = {"acp_home_links": (".tool/login.json",), "acp_home_copies": (".config/tool",)}
    async with open_harness(tmp_path, home=home) as harness:
        bare = await harness.start(settings={"acp_isolate_data_dir": True})
        some = await harness.start(settings={"acp_isolate_data_dir": True, **wanted})
        for each in (bare, some):
            await turn(each, "hello")
        own = Path(environment(bare)["HOME"])
        assert sorted(path.name for path in own.iterdir()) == [".gitconfig"]
        own = Path(environment(some)["HOME"])
        assert (own / ".tool" / "login.json").is_symlink()
        copied = own / ".config" / "tool" / "config.toml"
        assert (copied.is_symlink(), copied.read_text()) == (False, "model = 'large'\n")


async def test_the_settings_can_give_an_agent_the_users_home_and_the_other_way_round(tmp_path: Path) -> None:
    home = real_home(tmp_path)
    async with open_harness(tmp_path, home=home, secrets={"ANTHROPIC_API_KEY": "k" * 20}) as harness:
        shared = await harness.start(settings={"acp_home": "shared"})
        known = await start(harness, "claude-code")
        moved = await start(harness, "claude-code", acp_home="own")
        for each in (shared, known, moved):
            await turn(each, "hello")
        assert environment(shared)["HOME"] == environment(known)["HOME"] == str(home)
        assert "TMUX_TMPDIR" not in environment(known)
        assert Path(environment(moved)["HOME"]).resolve().parts[-2:] == (moved.id, "claude-code")


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
@pytest.mark.parametrize("mode", ["", "without=load", "without=resume"])
async def test_a_session_that_is_not_found_is_loaded_once_and_asked_again(tmp_path: Path, mode: str) -> None:
    async with open_harness(tmp_path, home=real_home(tmp_path)) as harness:
        conversation = await harness.start("hub", *filter(None, [mode]))
        await turn(conversation, "first")
        os.kill(harness.log.records("hub")[0]["child"], signal.SIGKILL)
        found = await turn(conversation, "second")
        assert conversation.record.now.execution_status == "finished"
        assert "echo: second" in answer(found)
        assert "session not found" in str(states(found, "agent_retry"))
        way = "session/resume" if mode == "without=load" else "session/load"
        assert [len(harness.log.received(each)) for each in ("session/load", "session/resume")] == (
            [0, 1] if way == "session/resume" else [1, 0]
        )
        assert harness.log.prompts().count("second") == 2
        assert "first" in answer(await turn(conversation, "!remember"))


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
async def test_a_session_that_is_never_found_ends_in_a_new_one_with_a_transcript(tmp_path: Path) -> None:
    async with open_harness(tmp_path, home=real_home(tmp_path)) as harness:
        conversation = await harness.start("error=prompt:-32603:session not found", "until-start=2")
        pids = []
        for text in ("first", "second"):
            found = await turn(conversation, text)
            assert conversation.record.now.execution_status == "error"
            assert "session not found" in one(found, "ConversationErrorEvent")["detail"]
            pids.append(len(harness.log.pids()))
        found = await turn(conversation, "third")
        assert (conversation.record.now.execution_status, pids) == ("finished", [1, 2])
        assert len(harness.log.received("session/load")) == 2


@pytest.mark.parametrize(
    "said", ["404:The model gpt-9 does not exist", "-32002:Resource not found: model gpt-9", "404:Not found"]
)
async def test_a_model_that_is_not_found_costs_no_memory(tmp_path: Path, said: str) -> None:
    """Some agents pass the status of their model's API on: it says nothing of their session."""
    async with open_harness(tmp_path, home=real_home(tmp_path)) as harness:
        conversation = await harness.start()
        await turn(conversation, "first")
        found = await turn(conversation, "!error " + said.replace(":", " ", 1))
        assert one(found, "ConversationErrorEvent")["code"] == "ACPPromptError"
        assert not harness.log.received("session/load")
        assert len(harness.log.prompts()) == 2
        assert conversation.record.now.memory_lost is None
        assert "first" in answer(await turn(conversation, "!remember"))
        assert len(harness.log.pids()) == 1


async def test_a_turn_of_which_something_happened_is_not_asked_again(tmp_path: Path) -> None:
    async with open_harness(tmp_path, home=real_home(tmp_path)) as harness:
        conversation = await harness.start()
        found = await turn(conversation, "!text done\n!error -32603 session not found")
        assert conversation.record.now.execution_status == "error"
        assert not harness.log.received("session/load")
        assert len(harness.log.prompts()) == 1
        assert not states(found, "agent_retry")


@pytest.mark.parametrize("name", ["codex-acp", "kimi", "claude-agent-acp", "gemini"])
async def test_a_custom_agent_is_custom_whatever_its_program_is_called(tmp_path: Path, name: str) -> None:
    secrets = {
        "OPENAI_API_KEY": "oai-key",
        "ANTHROPIC_API_KEY": "ant-key",
        "CODEX_AUTH_JSON": json.dumps(LOGIN),
    }
    async with open_harness(tmp_path, home=real_home(tmp_path), secrets=secrets) as harness:
        agent = harness.agent()
        program = tmp_path / name
        program.symlink_to(agent.acp_command[0])
        agent = attrs.evolve(agent, acp_command=(str(program), *agent.acp_command[1:]))
        request = StartRequest(working_dir=str(tmp_path / "workspace"), agent=agent, spelled_out=True)
        conversation, _ = await harness.supervisor.create(request)
        await turn(conversation, "hello")
        env = environment(conversation)
        assert (env["OPENAI_API_KEY"], env["ANTHROPIC_API_KEY"]) == ("oai-key", "ant-key")
        assert not {"CODEX_HOME", "KIMI_CODE_HOME", "CLAUDE_CONFIG_DIR", "CODEX_AUTH_JSON"} & env.keys()
        assert harness.log.received("initialize")[0]["params"]["clientCapabilities"]["terminal"] is True
        assert (tmp_path / "data" / conversation.id / "custom").is_dir()
        assert conversation.info()["agent_state"]["acp_server"] == "custom"


async def test_plain_variables_reach_the_agent_and_are_shown(tmp_path: Path) -> None:
    variables = {"REGION": "Zx81Kq0Pm27LwVr9", "TMPDIR": "/tmp", "OPENAI_BASE_URL": "http://mine.example"}
    secrets = {
        "OPENAI_BASE_URL": "http://theirs.example",
        "DEPLOY_TO": "production",
        "OLD": "/home/alice/work",
    }
    async with open_harness(tmp_path, home=real_home(tmp_path), secrets=secrets) as harness:
        conversation = await harness.start(settings={"acp_env": variables})
        found = await turn(conversation, "!text Zx81Kq0Pm27LwVr9 to production in /home/alice/work")
        assert answer(found) == "Zx81Kq0Pm27LwVr9 to production in /home/alice/work"
        env = environment(conversation)
        assert {name: env[name] for name in variables} == variables
        assert conversation.info()["agent"]["acp_env"] == variables


async def test_variables_of_ostlers_own_go_before_those_of_the_settings(tmp_path: Path) -> None:
    settings = {"acp_env": {"CLAUDE_CONFIG_DIR": "/elsewhere"}, "acp_isolate_data_dir": True}
    async with open_harness(tmp_path, home=real_home(tmp_path)) as harness:
        conversation = await start(harness, "claude-code", **settings)
        await turn(conversation, "hello")
        assert environment(conversation)["CLAUDE_CONFIG_DIR"].startswith(str(tmp_path / "data"))
