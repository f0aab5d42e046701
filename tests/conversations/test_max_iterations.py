"""`max_iterations`: how many of the messages that wait one run takes up."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conversations.harness import events, one, open_harness, say, settled, turn


@pytest.mark.guarantee(name="control-always-returns")
async def test_a_run_takes_up_no_more_than_its_iterations_and_the_next_run_goes_on(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(max_iterations=2)
        for text in ("first", "second", "third"):
            await conversation.send(say(text), run=False)
        await conversation.run()
        assert await settled(conversation) == "error"
        assert harness.log.prompts() == ["first", "second"]
        failure = one(await events(conversation), "ConversationErrorEvent")
        assert failure["code"] == "MaxIterationsReached"
        assert failure["source"] == "environment"
        assert conversation.queued == [say("third")]
        await conversation.run()
        assert await settled(conversation) == "finished"
        assert harness.log.prompts() == ["first", "second", "third"]


async def test_each_message_that_is_sent_to_run_is_a_run_of_its_own(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(max_iterations=1)
        for text in ("first", "second", "third"):
            await turn(conversation, text)
            assert conversation.record.now.execution_status == "finished"


async def test_what_ostler_answers_itself_is_no_iteration(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(max_iterations=1)
        for text in ("/mcp", "first", "/mcp"):
            await conversation.send(say(text), run=False)
        await conversation.run()
        assert await settled(conversation) == "finished"
        assert harness.log.prompts() == ["first"]
