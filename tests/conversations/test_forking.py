"""Forks: what a new conversation has of another one, what its agent remembers, and that it is whole."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from supervisor.conversations.agent.admission import Limits
from supervisor.conversations.conversation import Conversation
from supervisor.conversations.forking import ForkRequest
from supervisor.conversations.state.errors import ConversationExists, UnknownConversation, UnknownEvent
from supervisor.events import Vocabulary
from tests.conversations.harness import (
    Harness,
    answer,
    calling,
    events,
    kinds,
    open_harness,
    ready_pid,
    say,
    settled,
    states,
    turn,
    until,
)


async def fork(harness: Harness, source: Conversation, **fields: Any) -> Conversation:
    return await harness.supervisor.fork(source.id, ForkRequest(**fields))


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
async def test_the_agents_session_is_forked_and_the_two_go_on_by_themselves(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        source = await harness.start(tags={"team": "red"}, title="First")
        await turn(source, "the word is tulip")
        before = await events(source)
        made = await fork(harness, source)
        info = await made.durable_info()
        assert info["execution_status"] == "idle"
        assert info["forked_from_conversation_id"] == source.id
        assert (info["forked_from_event_id"], info["title"], info["tags"]) == (None, None, {})
        assert info["agent_state"]["memory"] == "forked"
        (used,) = info["stats"]["usage_to_metrics"].values()
        assert (used["accumulated_cost"], used["accumulated_token_usage"]["prompt_tokens"]) == (0.0, 0)
        assert await events(made) == before
        assert await events(source) == before
        (asked,) = harness.log.received("session/fork")
        (closed,) = harness.log.received("session/close")
        assert closed["params"]["sessionId"] != asked["params"]["sessionId"]
        assert source.record.now.session_id == asked["params"]["sessionId"]
        assert made.record.now.session_id == closed["params"]["sessionId"]
        found = await turn(made, "!remember")
        assert "tulip" in answer(found)
        assert states(found, "agent_state")[-1]["memory"] in {"resumed", "loaded"}
        assert "RESUMED" not in harness.log.prompts()[-1]
        await turn(source, "the colour is blue")
        assert "blue" not in answer(await turn(made, "!remember"))
        assert ready_pid(made) != ready_pid(source)


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
@pytest.mark.parametrize(
    "modes", [["without=fork"], ["without=close"], ["without=load,resume"], ["error=fork:-32603:no"]]
)
async def test_else_the_new_agent_gets_a_transcript_and_it_is_said(tmp_path: Path, modes: list[str]) -> None:
    async with open_harness(tmp_path) as harness:
        source = await harness.start(*modes)
        await turn(source, "the word is tulip")
        made = await fork(harness, source)
        assert made.info()["agent_state"]["memory"] == "lost"
        found = await turn(made, "what was it")
        assert states(found, "agent_state")[-1]["memory"] == "lost"
        notices = [e for e in found if e["kind"] == "MessageEvent" and e["source"] == "environment"]
        assert ["is a fork" in each["llm_message"]["content"][0]["text"] for each in notices] == [True]
        told = harness.log.prompts()[-1]
        assert "the word is tulip" in told
        assert told.count("what was it") == 1
        assert len(harness.log.received("session/new")) == 2
        # Once is enough.
        await turn(made, "and now")
        assert "tulip" not in harness.log.prompts()[-1]


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
async def test_an_agent_that_does_not_run_is_started_for_a_fork(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        source = await harness.start()
        await turn(source, "the word is tulip")
        await source.stop_agent()
        made = await fork(harness, source)
        (asked,) = harness.log.received("session/fork")
        assert source.record.now.session_id == asked["params"]["sessionId"]
        assert made.info()["agent_state"]["memory"] == "forked"
        found = await turn(made, "!remember")
        assert "tulip" in answer(found)
        assert states(found, "agent_state")[-1]["memory"] in {"resumed", "loaded"}
        await turn(source, "the colour is blue")
        assert "blue" not in answer(await turn(made, "!remember"))


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
async def test_a_fork_after_a_restart_of_the_server_has_the_agents_session(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        source = await harness.start()
        await turn(source, "the word is tulip")
    async with open_harness(tmp_path) as harness:
        again = await harness.supervisor.get(source.id)
        made = await fork(harness, again)
        assert made.info()["agent_state"]["memory"] == "forked"
        assert "tulip" in answer(await turn(made, "!remember"))


@pytest.mark.parametrize("modes", [["without=fork"], ["without=close"], ["without=load,resume"]])
@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
async def test_an_agent_whose_session_cannot_be_handed_over_is_not_started_for_a_fork(
    tmp_path: Path, modes: list[str]
) -> None:
    async with open_harness(tmp_path) as harness:
        source = await harness.start(*modes)
        await turn(source, "the word is tulip")
        await source.stop_agent()
        made = await fork(harness, source)
        assert len(harness.log.pids()) == 1
        assert made.info()["agent_state"]["memory"] == "lost"
        await turn(made, "what was it")
        assert "tulip" in harness.log.prompts()[-1]


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
async def test_a_session_that_the_agent_does_not_restore_is_not_forked(tmp_path: Path) -> None:
    """It has a new one then, with nothing in it: the fork would remember nothing, and nobody would know."""
    async with open_harness(tmp_path) as harness:
        source = await harness.start()
        await turn(source, "the word is tulip")
        await source.stop_agent()
        for kept in (tmp_path / "scripted-home").rglob("*.json"):
            kept.unlink()
        made = await fork(harness, source)
        assert harness.log.received("session/fork") == []
        assert made.info()["agent_state"]["memory"] == "lost"
        await turn(made, "what was it")
        assert "tulip" in harness.log.prompts()[-1]


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
async def test_a_fork_does_not_wait_for_room_longer_than_for_a_start(tmp_path: Path) -> None:
    async with open_harness(tmp_path, limits=Limits(agents=1)) as harness:
        source = await harness.start()
        await turn(source, "the word is tulip")
        await source.stop_agent()
        source.record.agent = attrs.evolve(source.record.agent, acp_startup_timeout=0.1)
        other = await harness.start()
        await other.send(say("!hang"), run=True)
        await until(lambda: other.agent.ready)
        made = await fork(harness, source)
        assert made.info()["agent_state"]["memory"] == "lost"
        assert ready_pid(source) is None


async def test_an_agent_that_does_not_start_gives_a_fork_a_transcript(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        source = await harness.start()
        await turn(source, "the word is tulip")
        await source.stop_agent()
        workspace = tmp_path / "workspace"
        workspace.rename(tmp_path / "elsewhere")
        workspace.write_text("no directory")
        made = await fork(harness, source)
        assert made.info()["agent_state"]["memory"] == "lost"
        assert await events(made) == await events(source)


@pytest.mark.parametrize("vocabulary", list(Vocabulary))
async def test_a_fork_ends_with_the_event_that_it_is_to_end_with(
    tmp_path: Path, vocabulary: Vocabulary
) -> None:
    async with open_harness(tmp_path) as harness:
        source = await harness.start(vocabulary=vocabulary)
        await turn(source, "the word is tulip")
        end = source.record.leaf_event_id
        await turn(source, "the colour is blue")
        made = await fork(harness, source, from_event_id=end, title="T", tags={"a": "b"}, reset_metrics=False)
        *copied, ended, idle = await events(made)
        assert copied == (await events(source))[: len(copied)]
        assert copied[-1]["id"] == end
        # There, the turn and the run that it comes from had not ended yet.
        assert (ended["value"]["status"], ended["value"]["stop_reason"]) == ("ended", "interrupted")
        assert ended["value"]["message_id"] == copied[0]["id"]
        assert (idle["key"], idle["value"]) == ("execution_status", "idle")
        info = made.info()
        assert (info["title"], info["tags"], info["forked_from_event_id"]) == ("T", {"a": "b"}, end)
        assert info["leaf_event_id"] == end
        assert harness.log.received("session/fork") == []
        await turn(made, "what was it")
        told = harness.log.prompts()[-1]
        assert "tulip" in told
        assert "blue" not in told
        if vocabulary is Vocabulary.EXTENDED:
            after = next(e for e in (await events(made))[len(copied) :] if e["kind"] == "MessageEvent")
            assert after["parent_id"] == end


async def test_a_fork_that_ends_with_a_users_message_takes_it_up(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        source = await harness.start()
        await turn(source, "the word is tulip")
        found = await turn(source, "!text second answer")
        asked = next(e for e in found if e["kind"] == "MessageEvent")
        made = await fork(harness, source, from_event_id=asked["id"])
        assert len(made.queued) == 1
        await made.run()
        await settled(made)
        assert (await made.final_response()).endswith("second answer")
        assert len(made.queued) == 0


async def test_who_is_unknown_and_what_is_taken(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        source = await harness.start()
        other = await harness.start()
        await turn(source, "hello")
        with pytest.raises(UnknownConversation):
            await harness.supervisor.fork(str(uuid.uuid4()), ForkRequest())
        with pytest.raises(UnknownEvent):
            await fork(harness, source, from_event_id="nope")
        for taken in (other.id, source.id):
            with pytest.raises(ConversationExists):
                await fork(harness, source, conversation_id=taken)
        wanted = str(uuid.uuid4())
        outcomes: list[str] = []

        async def one() -> None:
            try:
                outcomes.append((await fork(harness, source, conversation_id=wanted)).id)
            except ConversationExists:
                outcomes.append("taken")

        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(one)
        assert sorted(outcomes) == sorted([wanted, "taken", "taken"])


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
async def test_a_running_conversation_is_forked_as_far_as_it_is_recorded(tmp_path: Path) -> None:
    """The calls that are open there are closed in the fork, and it does not look as if it ran."""
    async with open_harness(tmp_path) as harness:
        source = await harness.start()
        await turn(source, "the word is tulip")
        await source.send(say("!slowtool 60"), run=True)
        await calling(source)
        made = await fork(harness, source)
        assert source.busy
        copied = await events(made)
        assert states(copied, "execution_status")[-1] == "idle"
        last = [e for e in copied if e["kind"] == "ACPToolCallEvent"]
        assert [e["status"] for e in last][-1] == "failed"
        assert last[-1]["is_error"] is True
        assert made.record.now.execution_status == "idle"
        assert harness.log.received("session/fork") == []
        await source.interrupt()
        await turn(made, "go on")
        assert "tulip" in harness.log.prompts()[-1]


async def test_an_empty_conversation_has_an_empty_fork(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        made = await fork(harness, await harness.start())
        assert await events(made) == []
        assert "memory" not in made.info()["agent_state"]
        found = await turn(made, "hello")
        assert states(found, "agent_state")[-1]["memory"] == "new"
        assert kinds(found)[-2:] == ["ActionEvent", "ObservationEvent"]


async def test_forks_of_forks_and_a_source_that_is_deleted(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        source = await harness.start()
        await turn(source, "the word is tulip")
        first = await fork(harness, source)
        await harness.supervisor.delete(source.id)
        second = await fork(harness, first)
        assert second.record.start.forked_from_conversation_id == first.id
        assert second.record.now.session_id != first.record.now.session_id
        await harness.supervisor.delete(first.id)
        assert "tulip" in answer(await turn(second, "!remember"))


async def test_a_fork_is_there_after_a_restart_with_what_it_remembers(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        source = await harness.start("without=fork")
        await turn(source, "the word is tulip")
        made = (await fork(harness, source)).id
    async with open_harness(tmp_path) as harness:
        again = await harness.supervisor.get(made)
        await turn(again, "what was it")
        assert "tulip" in harness.log.prompts()[-1]
        await until(lambda: again.record.now.memory_lost is None)


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
async def test_a_lost_memory_is_told_although_the_server_ends_before_the_first_prompt(tmp_path: Path) -> None:
    """The agent had its new session, and the transcript did not reach it."""
    async with open_harness(tmp_path) as harness:
        source = await harness.start("without=fork")
        await turn(source, "the word is tulip")
        made = await fork(harness, source)
        await made.restart_agent()
    async with open_harness(tmp_path) as harness:
        again = await harness.supervisor.get(made.id)
        found = await turn(again, "what was it")
        assert "tulip" in harness.log.prompts()[-1]
        notices = [e for e in found if e["kind"] == "MessageEvent" and e["source"] == "environment"]
        assert notices == []  # it was told once, at the first start


async def test_a_kill_leaves_no_data_of_a_conversation_that_there_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[str, list[bool]] = {}

    def mark(conversation_id: str) -> Path:
        return tmp_path / f"data/unsettled-{conversation_id}"

    def watch(name: str, its_id: Callable[..., str]) -> None:
        journal = harness.supervisor._context.journal
        work = getattr(journal, name)

        async def watched(*args: Any, **named: Any) -> Any:
            conversation_id = its_id(*args)
            seen[name] = [mark(conversation_id).exists()]
            result = await work(*args, **named)
            seen[name].append(mark(conversation_id).exists())
            return result

        monkeypatch.setattr(journal, name, watched)

    async with open_harness(tmp_path) as harness:
        data = harness.supervisor._context.launcher.data
        assert data == tmp_path / "data"
        source = await harness.start()
        await turn(source, "hello")
        watch("fork", lambda _, made, __: made)
        watch("delete", lambda deleted: deleted)
        made = await fork(harness, source)
        assert not mark(made.id).exists()
        other = await fork(harness, source)
        await harness.supervisor.delete(other.id)
        assert not mark(other.id).exists()
        assert seen == {"fork": [True, True], "delete": [True, True]}
    left, unknown = str(uuid.uuid4()), str(uuid.uuid4())
    for each in (left, unknown, made.id):
        (data / each / "custom").mkdir(parents=True, exist_ok=True)
    for name in (left, made.id, "..", "x"):
        mark(name).touch()
    async with open_harness(tmp_path) as harness:
        await until(lambda: not (mark(left).exists() or mark(made.id).exists()))
        assert not (data / left).exists()
        assert (data / made.id / "custom").is_dir()
        assert (data / unknown).is_dir()  # nothing says that it is ours to remove
        assert (await harness.supervisor.get(made.id)).id == made.id
