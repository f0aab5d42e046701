"""What is left of a conversation when its server ends, and what the next server makes of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio.testing

from supervisor.conversations.agent.admission import Limits
from tests.conversations.harness import (
    PATIENCE_SECONDS,
    answer,
    calling,
    events,
    killed_now,
    kinds,
    one,
    open_harness,
    say,
    settled,
    speaking,
    states,
    turn,
    until,
)


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_a_turn_that_was_cut_off_is_told_and_what_was_queued_is_prompted_once(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(settings={"acp_after_cut_off": "restore"})
        await turn(conversation, "the word is tulip")
        await conversation.send(say("!opentool\n!hang"), run=True)
        await conversation.send(say("!remember"), run=False)
        await conversation.send(say("third"), run=True)
        await calling(conversation)
        await conversation.log.flushed()
        root = killed_now(tmp_path)
    before = len(harness.log.prompts())
    async with open_harness(root) as next_harness:
        conversation = await next_harness.supervisor.get(conversation.id)
        assert await settled(conversation) == "finished"
        found = await events(conversation)
        assert one(found, "ConversationErrorEvent")["code"] == "ServerRestarted"
        calls = [e for e in found if e["kind"] == "ACPToolCallEvent"]
        assert [call["status"] for call in calls] == ["in_progress", "failed"]
        assert states(found, "execution_status")[-4:] == ["running", "error", "running", "finished"]
        assert harness.log.prompts()[before:] == ["!remember", "third"]
        after = found[found.index(one(found, "ConversationErrorEvent")) :]
        finishes = [e for e in after if (e.get("action") or {}).get("kind") == "FinishAction"]
        assert "tulip" in answer(finishes[:1])


async def test_a_message_whose_agent_had_not_started_is_no_turn_that_was_cut_off(tmp_path: Path) -> None:
    async with open_harness(tmp_path, limits=Limits(agents=1)) as harness:
        first, second = await harness.start(), await harness.start()
        await first.send(say("!hang"), run=True)
        await until(lambda: harness.log.prompts())
        await second.send(say("hello"), run=True)
        await until(lambda: second.agent.phase == "queued")
        await second.log.flushed()
        root = killed_now(tmp_path)
    async with open_harness(root, limits=Limits(agents=1)) as next_harness:
        second = await next_harness.supervisor.get(second.id)
        assert await settled(second) == "finished"
        assert "ConversationErrorEvent" not in kinds(await events(second))
        first = await next_harness.supervisor.get(first.id)
        assert first.record.now.execution_status == "error"
    assert harness.log.prompts() == ["!hang", "hello"]


async def test_what_nobody_asked_to_run_waits_for_that(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await conversation.send(say("later"), run=False)
    async with open_harness(tmp_path) as harness:
        conversation = await harness.supervisor.get(conversation.id)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert conversation.record.now.execution_status == "idle"
        assert harness.log.prompts() == []
        await conversation.run()
        assert await settled(conversation) == "finished"
        assert harness.log.prompts() == ["later"]


async def test_a_turn_that_a_pause_let_go_on_is_told_too_and_the_queue_stays_paused(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await conversation.send(say("!opentool\n!hang"), run=True)
        await calling(conversation)
        await conversation.send(say("queued"), run=False)
        await conversation.pause()
        root = killed_now(tmp_path)
    async with open_harness(root) as next_harness:
        conversation = await next_harness.supervisor.get(conversation.id)
        await trio.testing.wait_all_tasks_blocked(0.05)
        found = await events(conversation)
        assert one(found, "ConversationErrorEvent")["code"] == "ServerRestarted"
        assert conversation.record.now.execution_status == "error"
        assert conversation.queued == [say("queued")]
    async with open_harness(root) as next_harness:
        again = await next_harness.supervisor.get(conversation.id)
        assert kinds(await events(again)) == kinds(found)  # told once


@pytest.mark.guarantee(name="nothing-survives")
async def test_an_orderly_end_pauses_what_runs(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await conversation.send(say("!slow 500 20"), run=True)
        await speaking(conversation)
        conversation_id = conversation.id
    async with open_harness(tmp_path) as harness:
        conversation = await harness.supervisor.get(conversation_id)
        assert conversation.record.now.execution_status == "paused"
        assert kinds(await events(conversation))[-1] == "InterruptEvent"
        found = await turn(conversation, "!remember")
        assert "!slow 500 20" in answer(found)


async def test_the_tree_goes_on_where_it_was_after_a_start_of_the_server(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        found = await turn(conversation, "!tool")
        conversation_id = conversation.id
    async with open_harness(tmp_path) as harness:
        conversation = await harness.supervisor.get(conversation_id)
        leaf = [e["id"] for e in found if e["kind"] != "ConversationStateUpdateEvent"][-1]
        assert conversation.record.leaf_event_id == leaf
        after = await turn(conversation, "hello")
        message = next(e for e in after if e["kind"] == "MessageEvent")
        assert message["parent_id"] == leaf


async def test_a_turn_may_end_while_the_server_drains(tmp_path: Path) -> None:
    async with open_harness(tmp_path, drain_seconds=PATIENCE_SECONDS) as harness:
        conversation = await harness.start()
        await conversation.send(say("!slow 10 20"), run=True)
        await until(lambda: harness.log.prompts())
        conversation_id = conversation.id
    async with open_harness(tmp_path) as harness:
        conversation = await harness.supervisor.get(conversation_id)
        assert conversation.record.now.execution_status == "finished"
