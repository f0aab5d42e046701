"""Branches within one conversation: moving to an earlier event, and going on from there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from supervisor.conversations.conversation import Conversation
from supervisor.conversations.state.branch import Branch, active, leading_to, moved
from supervisor.conversations.state.errors import AlreadyRunning, NotPossible, UnknownEvent
from tests.conversations.harness import answer, events, open_harness, ready_pid, say, settled, speaking, turn


def test_a_branch_is_made_of_parts_of_the_log() -> None:
    assert active([], 4) == Branch(((0, 4),))
    assert active([], -1) == Branch(())
    moves = moved([], 9, 3)
    assert moves == [[10, 3]]
    assert active(moves, 9) == Branch(((0, 3),))
    assert active(moves, 12) == Branch(((0, 3), (10, 12)))
    back = moved(moves, 12, 8)
    assert active(back, 15) == Branch(((0, 8), (13, 15)))
    assert leading_to(back, 11) == Branch(((0, 3), (10, 11)))
    assert active(moved(back, 15, -1), 17) == Branch(((16, 17),))
    # A move after which nothing was said is replaced.
    assert moved(back, 12, 2) == [[10, 3], [13, 2]]
    branch = active(back, 15)
    assert (len(branch), branch.last, branch.until(8), branch.until(13), branch.until(-1)) == (
        12,
        15,
        9,
        10,
        0,
    )
    assert [seq in branch for seq in (8, 9, 12, 13)] == [True, False, False, True]


async def said(conversation: Conversation) -> list[Any]:
    """The events but for states: the agent's phase is one."""
    return [e for e in await events(conversation) if e["kind"] != "ConversationStateUpdateEvent"]


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
async def test_the_next_message_goes_on_from_there(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "the word is tulip")
        there = conversation.record.leaf_event_id
        await turn(conversation, "the colour is blue")
        before = await said(conversation)
        await conversation.navigate(there)
        assert await said(conversation) == before
        info = await conversation.durable_info()
        assert info["leaf_event_id"] == there
        assert info["agent_state"]["memory"] == "lost"
        assert await conversation.final_response() == "echo: the word is tulip "
        found = await turn(conversation, "what was it")
        told = harness.log.prompts()[-1]
        assert "tulip" in told
        assert "blue" not in told
        asked = next(e for e in found if e["kind"] == "MessageEvent" and e["source"] == "user")
        assert asked["parent_id"] == there
        assert answer(found).endswith("echo: what was it ")


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
async def test_branches_survive_a_restart_and_can_be_gone_back_to(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "the word is tulip")
        first = conversation.record.leaf_event_id
        await turn(conversation, "the colour is blue")
        second = conversation.record.leaf_event_id
        await conversation.navigate(first)
    async with open_harness(tmp_path) as harness:
        conversation = await harness.supervisor.get(conversation.id)
        assert conversation.record.leaf_event_id == first
        await turn(conversation, "the fruit is plum")
        await conversation.navigate(second)
        await turn(conversation, "say all")
        told = harness.log.prompts()[-1]
        assert "blue" in told
        assert "plum" not in told


async def test_the_beginning_is_an_empty_branch(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "the word is tulip")
        await conversation.navigate(None)
        assert conversation.info()["leaf_event_id"] is None
        assert b'"head_is_empty":true' in conversation.full_state()
        assert await conversation.final_response() == ""
        await turn(conversation, "hello")
        assert harness.log.prompts()[-1] == "hello"


async def test_a_users_message_that_is_moved_to_is_taken_up_again(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        found = await turn(conversation, "the word is tulip")
        asked = next(e for e in found if e["kind"] == "MessageEvent")
        await conversation.send(say("never"), run=False)
        await conversation.navigate(asked["id"])
        await conversation.run()
        await settled(conversation)
        assert harness.log.prompts()[-1].count("the word is tulip") == 1
        assert harness.log.prompts().count("never") == 0


async def test_what_waits_off_the_branch_waits_no_longer_also_after_a_restart(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "the word is tulip")
        there = conversation.record.leaf_event_id
        await conversation.send(say("never"), run=False)
        await conversation.navigate(there)
        assert conversation.queued == []
    async with open_harness(tmp_path) as harness:
        conversation = await harness.supervisor.get(conversation.id)
        assert conversation.queued == []


async def test_who_runs_does_not_move_and_unknown_events_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "hello")
        there = conversation.record.leaf_event_id
        with pytest.raises(UnknownEvent):
            await conversation.navigate("nope")
        await conversation.navigate(there)  # it is there already: its agent stays
        assert ready_pid(conversation) is not None
        await conversation.send(say("!slow 500 20"), run=True)
        await speaking(conversation)
        with pytest.raises(AlreadyRunning):
            await conversation.navigate(there)
        await conversation.interrupt()
        monkeypatch.setattr("supervisor.conversations.conversation.MOVES_MAX", 0)
        with pytest.raises(NotPossible):
            await conversation.navigate(None)
