"""Turns can be told apart: when each begins and ends, about which message, why, and what it used."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from supervisor.conversations.conversation import Conversation
from supervisor.events import Vocabulary
from tests.conversations.harness import (
    calling,
    events,
    killed_now,
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


def told(found: list[dict[str, Any]]) -> list[tuple[int, str, str | None]]:
    """Number, status and stop reason of each state of a turn."""
    return [(each["number"], each["status"], each.get("stop_reason")) for each in states(found, "turn")]


def index(found: list[dict[str, Any]], **wanted: Any) -> int:
    """Where the first event with these members is."""
    return next(at for at, event in enumerate(found) if wanted.items() <= event.items())


async def all_told(conversation: Conversation) -> list[dict[str, Any]]:
    return states(await events(conversation), "turn")


@pytest.mark.guarantee(name="nothing-is-lost")
@pytest.mark.parametrize("vocabulary", list(Vocabulary))
async def test_queued_messages_are_turns_of_their_own(tmp_path: Path, vocabulary: Vocabulary) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(vocabulary=vocabulary)
        first = await conversation.send(say("!slow 5 20"), run=True)
        second = await conversation.send(say("hello"), run=True)
        await settled(conversation)
        found = await events(conversation)
        began, ended, began_next, ended_next = states(found, "turn")
        assert began == {"status": "running", "number": 1, "message_id": first}
        assert began_next == {"status": "running", "number": 2, "message_id": second}
        answers = [e["id"] for e in found if (e.get("action") or {}).get("kind") == "FinishAction"]
        assert [ended["answer_id"], ended_next["answer_id"]] == answers
        assert [ended["message_id"], ended_next["message_id"]] == [first, second]
        assert (ended["status"], ended["stop_reason"], ended["error"]) == ("ended", "end_turn", None)
        assert ended["usage"] is None
        assert ended["seconds"] > 0
        # Each answer is between the states of its turn, and the run ends after the last.
        places = [index(found, key="turn", value=each) for each in (began, ended, began_next, ended_next)]
        answered = [index(found, id=each) for each in answers]
        assert places[0] < answered[0] < places[1] < places[2] < answered[1] < places[3]
        assert places[3] < index(found, key="execution_status", value="finished")


async def test_the_end_tells_what_the_turn_used(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "!usage 1000 200000 0.1")
        await turn(conversation, "!usage 500 200000 0.2")
        await turn(conversation, "none")
        used = [each["usage"] for each in await all_told(conversation) if each["status"] == "ended"]
        assert used == [
            {
                "prompt_tokens": tokens,
                "completion_tokens": 20,
                "cache_read_tokens": 0,
                "cache_write_tokens": 0,
                "reasoning_tokens": 0,
                "cost": cost,
            }
            for tokens, cost in ((980, 0.1), (480, 0.2))
        ] + [None]


@pytest.mark.parametrize(
    ("prompt", "stop_reason", "error"),
    [
        ("!stop max_tokens", "max_tokens", None),
        ("!text a\n!stop refusal", "refusal", None),
        ("!stop cancelled", "cancelled", None),
        ("!stop " + "x" * 200, "x" * 80, None),
        ("!error -32603 no luck", "failed", "ACPPromptError"),
        ("!crash 3", "failed", "ACPAgentExited"),
    ],
)
async def test_the_end_tells_why(tmp_path: Path, prompt: str, stop_reason: str, error: str | None) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        found = await turn(conversation, prompt)
        _, ended = states(found, "turn")
        assert (ended["stop_reason"], ended["error"]) == (stop_reason, error)
        assert ended["message_id"] == found[0]["id"]
        if error is not None:
            # What went wrong belongs to the turn.
            failed = index(found, kind="ConversationErrorEvent", code=error)
            assert failed < index(found, key="turn", value=ended)


async def test_an_interrupted_turn_is_told_and_shown_while_it_runs(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        message = await conversation.send(say("!slow 500 20"), run=True)
        await speaking(conversation)
        assert conversation.info()["agent_state"]["turn"] == {"number": 1, "message_id": message}
        await conversation.interrupt()
        assert told(await events(conversation)) == [(1, "running", None), (1, "ended", "cancelled")]
        assert "turn" not in conversation.info()["agent_state"]


async def test_what_ostler_answers_by_itself_is_a_turn_too(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        found = await turn(conversation, "/mcp")
        began, ended = states(found, "turn")
        assert began["message_id"] == ended["message_id"] == found[0]["id"]
        assert (ended["stop_reason"], ended["answered"]) == ("end_turn", True)
        assert harness.log.prompts() == []


@pytest.mark.guarantee(name="nothing-is-lost")
async def test_a_turn_that_a_dead_server_cut_off_ends_as_interrupted_once(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(settings={"acp_after_cut_off": "restore"})
        await turn(conversation, "hello")
        cut = await conversation.send(say("!opentool\n!hang"), run=True)
        queued = await conversation.send(say("next"), run=True)
        await calling(conversation)
        await conversation.log.flushed()
        root = killed_now(tmp_path)
    async with open_harness(root) as harness:
        conversation = await harness.supervisor.get(conversation.id)
        await settled(conversation)
        found = await events(conversation)
        assert told(found)[2:] == [
            (2, "running", None),
            (2, "ended", "interrupted"),
            (3, "running", None),
            (3, "ended", "end_turn"),
        ]
        assert [each["message_id"] for each in states(found, "turn")[2:]] == [cut, cut, queued, queued]
        error = one(found, "ConversationErrorEvent")
        assert found.index(error) < index(found, key="turn", value=states(found, "turn")[3])
    async with open_harness(root) as harness:
        conversation = await harness.supervisor.get(conversation.id)
        assert len(await all_told(conversation)) == 6


async def test_every_turn_has_one_end_whenever_the_server_dies(tmp_path: Path) -> None:
    """Looked at in the journal as it is after each of its transactions, as far as they can be caught."""
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        roots = []
        for number in range(6):
            await conversation.send(say(f"!slow {number} 1"), run=True)
            place = tmp_path / str(number)
            place.mkdir()
            await conversation.log.flushed()
            roots.append(killed_now(tmp_path).rename(place / "root"))
        await settled(conversation)
    for root in roots:
        async with open_harness(root) as harness:
            conversation = await harness.supervisor.get(conversation.id)
            await settled(conversation)
            found = told(await events(conversation))
            assert [status for _, status, _ in found] == ["running", "ended"] * (len(found) // 2)
            assert [number for number, _, _ in found[::2]] == [number for number, _, _ in found[1::2]]


async def test_a_message_that_is_prompted_again_is_another_turn(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("prompt-key=DEMO_KEY")
        await turn(conversation, "hello")
        harness.secrets["DEMO_KEY"] = "k"
        await conversation.run()
        await settled(conversation)
        found = await events(conversation)
        assert told(found) == [
            (1, "running", None),
            (1, "ended", "failed"),
            (2, "running", None),
            (2, "ended", "end_turn"),
        ]
        assert {each["message_id"] for each in states(found, "turn")} == {found[0]["id"]}


async def test_a_message_whose_agent_cannot_be_started_has_no_turn(tmp_path: Path) -> None:
    """It stays queued, and has one turn when the agent gets it."""
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("error=new:-32603:no luck", "until-start=1")
        found = await turn(conversation, "hello")
        assert conversation.record.now.execution_status == "error"
        assert told(found) == []
        assert "turn" not in conversation.record.reported.agent_state
        await conversation.run()
        assert await settled(conversation) == "finished"
        found = await events(conversation)
        assert told(found) == [(1, "running", None), (1, "ended", "end_turn")]
        assert {each["message_id"] for each in states(found, "turn")} == {found[0]["id"]}


@pytest.mark.parametrize("during", ["a turn", "a cancelled turn", "none"])
async def test_the_exit_of_an_agent_says_whether_a_turn_was_under_way(tmp_path: Path, during: str) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("cancel=ignore")
        message = (await turn(conversation, "hello"))[0]["id"]
        if during != "none":
            message = await conversation.send(say("!text a\n!hang"), run=True)
            await speaking(conversation)
        pid = ready_pid(conversation)
        assert pid is not None
        if during == "a cancelled turn":
            run = conversation.agent.ready
            assert run is not None
            current = conversation.queue.turn
            assert current is not None
            current.cancel()
        os.kill(pid, signal.SIGKILL)
        await until(lambda: ready_pid(conversation) != pid, "the end of the process")
        await settled(conversation)

        def exits(found: list[dict[str, Any]]) -> list[Any]:
            return states(found, "agent_exit")

        while not exits(await events(conversation)):
            await until(lambda: True)
        (ended,) = exits(await events(conversation))
        assert ended["turn_active"] is (during != "none")
        assert ended["message_id"] == (None if during == "none" else message)
