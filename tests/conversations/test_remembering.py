"""Agents that end, and what they remember when they come back."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conversations.harness import answer, kinds, one, open_harness, states, turn, until


@pytest.mark.guarantee(name="nothing-hangs")
async def test_a_crash_in_a_turn_is_told_with_its_last_words_and_the_next_message_goes_on(
    tmp_path: Path,
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "my name is Bo")
        found = await turn(conversation, "!text half\n!crash 3")
        error = one(found, "ConversationErrorEvent")
        assert error["code"] == "ACPAgentExited"
        assert "exited with code 3" in error["detail"]
        assert error["classification"]["retryable"] is True
        assert conversation.record.now.execution_status == "error"
        partial = [e for e in found if e["kind"] == "MessageEvent" and e["source"] == "agent"]
        assert [e["llm_message"]["content"][0]["text"] for e in partial] == ["half"]
        after = await turn(conversation, "!remember")
        assert "my name is Bo" in answer(after)
        assert states(after, "agent_state")[-1]["memory"] in {"resumed", "loaded"}
        assert len(harness.log.pids()) == 2


@pytest.mark.guarantee(name="old-history-is-ours")
async def test_what_an_agent_replays_is_not_recorded_again(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("without=resume")
        await turn(conversation, "first")
        await turn(conversation, "!crash SIGKILL")
        found = await turn(conversation, "third")
        assert states(found, "agent_state")[-1]["memory"] == "loaded"
        assert kinds(found) == ["MessageEvent", "ActionEvent", "ObservationEvent"]


@pytest.mark.guarantee(name="old-history-is-ours")
async def test_lost_memory_is_said_and_made_up_for(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("without=resume,load")
        await turn(conversation, "the word is tulip")
        await turn(conversation, "!crash 1")
        found = await turn(conversation, "what was it")
        notice = next(e for e in found if e["kind"] == "MessageEvent" and e["source"] == "environment")
        assert "could not be restored" in notice["llm_message"]["content"][0]["text"]
        assert states(found, "agent_state")[-1]["memory"] == "lost"
        prompt = harness.log.prompts()[-1]
        assert "the word is tulip" in prompt
        assert prompt.count("what was it") == 1


@pytest.mark.guarantee(name="old-history-is-ours")
async def test_an_agent_that_dies_over_its_memory_gets_a_new_session(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("without=resume", "crash=load:1")
        await turn(conversation, "the word is tulip")
        await turn(conversation, "!crash 1")
        await until(lambda: conversation.record.reported.agent_state.get("memory") == "lost")
        assert len(harness.log.received("session/load")) == 2
        await turn(conversation, "and now?")
        assert "the word is tulip" in harness.log.prompts()[-1]
