"""MCP servers in a conversation: what an agent is given, what is told of it, and `/mcp`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from supervisor.conversations.agent.admission import Limits
from supervisor.conversations.state.stage import Stage
from supervisor.events import Vocabulary
from tests.conversations.harness import (
    Harness,
    answer,
    events,
    kinds,
    one,
    open_harness,
    ready_pid,
    say,
    settled,
    states,
    turn,
    until,
)

CAT = {"command": "/bin/cat"}
TOKEN = "t0ken-of-the-tracker"


def configure(root: Path, servers: dict[str, Any]) -> None:
    (root / "mcp.json").write_text(json.dumps({"mcpServers": servers}))


def given(harness: Harness, method: str = "session/new") -> list[dict[str, Any]]:
    """The servers that the agent was told of last."""
    return harness.log.received(method)[-1]["params"]["mcpServers"]


@pytest.mark.guarantee(name="mcp-servers-are-mounted-or-it-is-said-why-not")
async def test_servers_of_the_file_reach_the_agent(tmp_path: Path) -> None:
    configure(
        tmp_path,
        {
            "files": {"command": "cat", "args": ["-u"], "env": {"KEY": "v"}, "note": "kept"},
            "off": {"command": "cat", "disabled": True},
            "web": {"type": "streamable-http", "url": "https://mcp.example/x", "headers": {"A": "b"}},
            "old": {"transport": "sse", "url": "https://mcp.example/sse"},
            "none": {"command": "no-such-command-anywhere"},
            "bad": {"transport": "pigeon", "url": "https://x"},
        },
    )
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        found = await turn(conversation, "hello")
        cat, web = given(harness)
        assert Path(cat.pop("command")).is_absolute()
        assert cat == {"name": "files", "args": ["-u"], "env": [{"name": "KEY", "value": "v"}]}
        assert web == {
            "type": "http",
            "name": "web",
            "url": "https://mcp.example/x",
            "headers": [{"name": "A", "value": "b"}],
        }
        (told,) = states(found, "mcp_servers")
        assert told["active"] == [
            {"name": "files", "transport": "stdio", "source": "file"},
            {"name": "web", "transport": "http", "source": "file"},
        ]
        reasons = {each["name"]: each["reason"] for each in told["dropped"]}
        assert set(reasons) == {"old", "none", "bad"}
        assert "does not offer MCP over sse" in reasons["old"]
        assert "not on PATH" in reasons["none"]
        assert "mcp.json" in reasons["bad"]


async def test_without_servers_nothing_is_told(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        assert states(await turn(conversation, "hello"), "mcp_servers") == []
        assert given(harness) == []


@pytest.mark.guarantee(name="mcp-servers-are-mounted-or-it-is-said-why-not")
async def test_what_the_conversation_brings_goes_before_the_file(tmp_path: Path) -> None:
    configure(tmp_path, {"both": {"command": "/bin/echo"}, "hidden": CAT, "mine": CAT})
    own = {"both": CAT, "hidden": {**CAT, "enabled": False}, "theirs": CAT}
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(settings={"mcp_config": own})
        found = await turn(conversation, "hello")
        assert {each["name"]: each["command"] for each in given(harness)} == {
            "both": "/bin/cat", "theirs": "/bin/cat", "mine": "/bin/cat",
        }  # fmt: skip
        sources = {each["name"]: each["source"] for each in states(found, "mcp_servers")[0]["active"]}
        assert sources == {"both": "conversation", "theirs": "conversation", "mine": "file"}


async def test_a_profile_that_names_its_servers_gets_no_others(tmp_path: Path) -> None:
    configure(tmp_path, {"mine": CAT, "other": CAT})
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(mcp_only=("mine",))
        await turn(conversation, "hello")
        assert [each["name"] for each in given(harness)] == ["mine"]


@pytest.mark.guarantee(name="mcp-servers-are-mounted-or-it-is-said-why-not")
@pytest.mark.parametrize("method", ["session/resume", "session/load"])
async def test_a_restart_reads_the_file_again(tmp_path: Path, method: str) -> None:
    configure(tmp_path, {"one": CAT})
    modes = () if method == "session/resume" else ("without=resume",)
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(*modes)
        await turn(conversation, "hello")
        configure(tmp_path, {"two": CAT})
        await turn(conversation, "still the old ones")
        await harness.supervisor.restart_agent(conversation.id)
        assert [each["name"] for each in given(harness)] == ["one"]
        assert [each["name"] for each in given(harness, method)] == ["two"]
        told = states(await events(conversation), "mcp_servers")
        assert [[each["name"] for each in state["active"]] for state in told] == [["one"], ["two"]]


@pytest.mark.guarantee(name="mcp-servers-are-mounted-or-it-is-said-why-not")
async def test_a_broken_file_is_told_and_keeps_no_agent_from_starting(tmp_path: Path) -> None:
    (tmp_path / "mcp.json").write_text('{"mcpServers": {\n  oops\n}}')
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(settings={"mcp_config": {"own": CAT}})
        found = await turn(conversation, "hello")
        assert [each["name"] for each in given(harness)] == ["own"]
        (told,) = states(found, "mcp_servers")
        assert told["dropped"][0]["name"] == "mcp.json"
        assert "line 2, column 3" in told["dropped"][0]["reason"]


@pytest.mark.guarantee(name="mcp-servers-are-mounted-or-it-is-said-why-not")
async def test_what_is_no_utf8_is_told_and_keeps_no_agent_from_starting(tmp_path: Path) -> None:
    half = "\ud800"
    configure(
        tmp_path,
        {
            "environment": {"command": "/bin/cat", "env": {"A": half}},
            "name": {"command": "/bin/cat", "env": {half: []}},
            "web": {"url": "https://mcp.example/", "headers": {"X": half}},
            "address": {"httpUrl": f"https://mcp.example/{half}"},
            f"odd{half}": {"command": "/bin/cat"},
            "good": {"command": "/bin/cat", "more": half},
        },
    )
    async with open_harness(tmp_path) as harness:
        found = await turn(await harness.start(), "hello")
        assert [each["name"] for each in given(harness)] == ["good"]
        (told,) = states(found, "mcp_servers")
        reasons = {each["name"]: each["reason"] for each in told["dropped"]}
        assert set(reasons) == {"environment", "name", "web", "address", "odd"}
        assert all("UTF-8" in reasons[name] for name in ("environment", "name", "web", "address"))


@pytest.mark.guarantee(name="secrets-stay-in")
@pytest.mark.parametrize("vocabulary", [Vocabulary.CORE, Vocabulary.EXTENDED])
async def test_values_name_secrets(tmp_path: Path, vocabulary: Vocabulary) -> None:
    configure(
        tmp_path,
        {
            "files": {
                "command": "/bin/cat",
                "args": ["--key=${TRACKER}", "$${HOME}"],
                "env": {"K": "${TRACKER}"},
            },
            "web": {"url": "https://mcp.example/${OWN}", "headers": {"Authorization": "Bearer ${TRACKER}"}},
            "bad": {"command": "/bin/cat", "env": {"A": "${NOT_THERE}", "B": "${NOR_THIS} ${TRACKER}"}},
        },
    )
    async with open_harness(tmp_path, secrets={"TRACKER": TOKEN}) as harness:
        conversation = await harness.start(secrets={"OWN": "own-secret-of-it"}, vocabulary=vocabulary)
        found = await turn(conversation, f"!text {TOKEN} own-secret-of-it Bearer {TOKEN}")
        files, web = given(harness)
        assert files["args"] == [f"--key={TOKEN}", "${HOME}"]
        assert files["env"] == [{"name": "K", "value": TOKEN}]
        assert web["url"] == "https://mcp.example/own-secret-of-it"
        assert web["headers"] == [{"name": "Authorization", "value": f"Bearer {TOKEN}"}]
        (dropped,) = states(found, "mcp_servers")[0]["dropped"]
        assert dropped["name"] == "bad"
        assert "NOT_THERE, NOR_THIS" in dropped["reason"]
        said = [event for event in found if event["source"] != "user"]
        assert TOKEN not in json.dumps(said)
        assert "own-secret-of-it" not in json.dumps(said)


@pytest.mark.guarantee(name="secrets-stay-in")
async def test_values_of_the_file_are_masked_although_they_are_no_secrets_of_the_store(
    tmp_path: Path,
) -> None:
    configure(tmp_path, {"files": {"command": "/bin/cat", "env": {"K": "value-in-the-file"}}})
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        found = await turn(conversation, "!text it is value-in-the-file")
        assert "value-in-the-file" not in answer(found)


# -- /mcp -------------------------------------------------------------------------------------------------


@pytest.mark.guarantee(name="mcp-servers-are-mounted-or-it-is-said-why-not")
@pytest.mark.parametrize("vocabulary", [Vocabulary.CORE, Vocabulary.EXTENDED])
async def test_mcp_is_answered_without_an_agent(tmp_path: Path, vocabulary: Vocabulary) -> None:
    configure(tmp_path, {"files": CAT, "off": {**CAT, "enabled": False}, "bad": {}})
    before = (tmp_path / "mcp.json").read_bytes()
    async with open_harness(tmp_path, limits=Limits(agents=0, full="refuse")) as harness:
        conversation = await harness.start(vocabulary=vocabulary)
        found = await turn(conversation, " /mcp\n")
        assert kinds(found) == ["MessageEvent", "ActionEvent", "ObservationEvent"]
        said = answer(found)
        assert "No agent is running" in said
        assert "files (stdio, mcp.json)" in said
        assert "off" not in said
        assert "bad: the entry in mcp.json is not valid" in said
        assert one(found, "ObservationEvent")["observation"]["content"][0]["text"] == said
        assert states(found, "execution_status") == ["running", "finished"]
        assert harness.log.records() == []
        assert ready_pid(conversation) is None
        assert conversation.record.title is None
        assert conversation.runner._stage.now is Stage.STOPPED
    assert (tmp_path / "mcp.json").read_bytes() == before


async def test_mcp_shows_what_is_active_and_what_will_be(tmp_path: Path) -> None:
    configure(tmp_path, {"keep": CAT, "change": CAT, "drop": CAT, "sse": {"url": "http://x", "type": "sse"}})
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "hello")
        first = answer(await turn(conversation, "/mcp"))
        assert (
            first.index("Active") < first.index("keep (stdio") < first.index("Left out") < first.index("sse:")
        )
        assert "restarted" not in first
        configure(
            tmp_path,
            {
                "keep": CAT,
                "change": {**CAT, "args": ["x"]},
                "new": CAT,
                "needs": {**CAT, "env": {"A": "${NONE}"}},
            },
        )
        second = answer(await turn(conversation, "/mcp"))
        active, after = second.split("The configuration has changed")
        assert "drop (stdio" in active
        assert "new" not in active
        for line in (
            "new (stdio, mcp.json) will be added",
            "change (stdio, mcp.json) will get its new settings",
            "needs will be left out: there is no value for the secret NONE",
            "drop will be removed",
        ):
            assert line in after
        assert "keep" not in after
        assert harness.log.prompts() == ["hello"]
        (tmp_path / "mcp.json").write_text("{")
        assert "mcp.json, line 1, column 2" in answer(await turn(conversation, "/mcp"))
        assert len(harness.log.pids()) == 1


async def test_mcp_waits_for_its_turn_and_the_next_message_goes_on(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        for text in ("one", "/mcp", "two"):
            await conversation.send(say(text), run=False)
        await conversation.run()
        assert await settled(conversation) == "finished"
        assert harness.log.prompts() == ["one", "two"]
        found = await events(conversation)
        finished = [e for e in found if (e.get("action") or {}).get("kind") == "FinishAction"]
        assert ["MCP servers" in e["action"]["message"] for e in finished] == [False, True, False]


async def test_other_commands_are_the_agents(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        for text in ("/mcp list", "/compact", "/MCP", "what does /mcp do?"):
            await turn(conversation, text)
        assert harness.log.prompts() == ["/mcp list", "/compact", "/MCP", "what does /mcp do?"]


async def test_mcp_leaves_what_was_interrupted_for_the_next_run(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await conversation.send(say("!slow 200 50"), run=True)
        await until(harness.log.prompts, "a prompt")
        await conversation.interrupt()
        await settled(conversation)
        unfinished = conversation.record.now.unfinished
        await turn(conversation, "/mcp")
        assert conversation.record.now.unfinished == unfinished is True
        await conversation.run()
        await settled(conversation)
        assert harness.log.prompts()[-1] != "/mcp"
        assert len(harness.log.prompts()) == 2


async def test_mcp_is_no_part_of_a_transcript(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("without=load,resume")
        await turn(conversation, "remember this")
        await turn(conversation, "/mcp")
        await harness.supervisor.restart_agent(conversation.id)
        await turn(conversation, "what was it?")
        transcript = harness.log.prompts()[-1]
        assert "remember this" in transcript
        assert "MCP servers" not in transcript
        assert "/mcp" not in transcript


async def test_mcp_after_a_restart_of_the_server_is_answered_once(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "/mcp")
        known = conversation.id
    async with open_harness(tmp_path) as harness:
        conversation = await harness.supervisor.get(known)
        assert not conversation.queued
        assert conversation.record.now.execution_status == "finished"
