"""Goals: the agent is prompted until a judge says that the objective is reached."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from supervisor.conversations.conversation import Conversation
from supervisor.conversations.state.errors import AlreadyRunning, NotAccepted
from supervisor.conversations.turns.goal import UNREADABLE, verdict_of
from tests.conversations.harness import (
    answer,
    events,
    open_harness,
    ready_pid,
    say,
    settled,
    speaking,
    states,
    turn,
    until,
)


@pytest.mark.parametrize(
    ("answer", "verdict"),
    [
        ('{"score": 0.5, "complete": false, "missing": "x"}', (0.5, False, "x")),
        ('Sure!\n```json\n{"score":1,"complete":true,"missing":""}\n```', (1.0, True, "")),
        ('{"complete": false} then {"complete": true, "missing": {"a": 1}}', (1.0, True, "")),
        ('{"complete": true, "score": 7}', (1.0, True, "")),
        ('{"complete": true, "score": NaN}', (1.0, True, "")),
        ("I think it is complete.", (0.0, False, UNREADABLE)),
        ('{"complete": "yes"}', (0.0, False, UNREADABLE)),
        ("{" * 200_000, (0.0, False, UNREADABLE)),
        ('{"a":' * 50_000 + "1" + "}" * 50_000, (0.0, False, UNREADABLE)),
    ],
)
def test_a_verdict_is_strict_or_counts_as_not_complete(answer: str, verdict: tuple[Any, ...]) -> None:
    found = verdict_of(answer)
    assert (found["score"], found["complete"], found["missing"]) == verdict


async def ended(conversation: Conversation) -> list[dict[str, Any]]:
    """The goal as clients saw it, in order."""
    await until(lambda: not conversation._goal.running, "the end of the goal")
    return states(await events(conversation), "goal")


def brief(goals: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [(goal["active"], goal["status"], goal["iteration"]) for goal in goals]


async def test_it_is_prompted_until_the_judge_is_content(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        # The objective itself counts once, as a prompt; each verdict of the judge once more.
        await conversation.start_goal("!verdict 3", 10)
        goals = await ended(conversation)
        assert brief(goals) == [(True, "running", 0), (True, "running", 1), (False, "complete", 2)]
        assert goals[1]["verdict"] == {"score": 0.2, "complete": False, "missing": "the tests"}
        assert goals[2]["verdict"]["complete"] is True
        assert (goals[2]["objective"], goals[2]["max_iterations"]) == ("!verdict 3", 10)
        own = [p for p in harness.log.prompts() if "side question" not in p]
        assert own[0] == "!verdict 3"
        assert "Outstanding: the tests" in own[1]
        users = [e for e in await events(conversation) if e["kind"] == "MessageEvent"]
        assert len(users) == 2
        assert conversation.record.now.execution_status == "finished"


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
async def test_so_often_at_the_most_and_an_unreadable_verdict_is_told(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await conversation.start_goal("do it", 2)
        goals = await ended(conversation)
        assert brief(goals) == [(True, "running", 0), (True, "running", 1), (False, "capped", 2)]
        assert goals[-1]["verdict"]["missing"] == UNREADABLE
        with pytest.raises(NotAccepted, match="no_resumable_goal"):
            await conversation.resume_goal()


async def test_to_stop_it_is_not_to_stop_the_turn_and_it_can_be_resumed(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await conversation.start_goal("!slow 30 20\n!verdict 2", 5)
        await speaking(conversation)
        with pytest.raises(AlreadyRunning):
            await conversation.start_goal("another", 5)
        with pytest.raises(AlreadyRunning):
            await conversation.resume_goal()
        await conversation.stop_goal()
        assert conversation.busy
        assert await settled(conversation) == "finished"
        assert brief(await ended(conversation))[-1] == (False, "interrupted", 0)
        await conversation.stop_goal()  # there is none: no error
        await conversation.resume_goal()
        assert brief(await ended(conversation))[-1] == (False, "complete", 1)
        assert any("Resuming a goal" in prompt for prompt in harness.log.prompts())


async def test_a_person_who_interrupts_or_says_something_ends_it(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await conversation.start_goal("!hang", 5)
        await until(lambda: harness.log.prompts())
        await conversation.interrupt()
        assert brief(await ended(conversation))[-1] == (False, "interrupted", 0)
        await conversation.start_goal("!slow 500 20", 5)
        await speaking(conversation)
        await conversation.send(say("hello"), run=False)
        assert brief(await ended(conversation))[-1] == (False, "interrupted", 0)
        await conversation.interrupt()


async def test_an_agent_that_cannot_be_asked_interrupts_it_with_the_reason(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("error=fork:-32000:log in again")
        await conversation.start_goal("do it", 5)
        goals = await ended(conversation)
        assert brief(goals)[-1] == (False, "interrupted", 0)
        assert "log in again" in goals[-1]["verdict"]["missing"]


async def test_a_server_that_ends_leaves_an_interrupted_goal(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await conversation.start_goal("!hang", 5)
        await until(lambda: harness.log.prompts())
    async with open_harness(tmp_path) as harness:
        again = await harness.supervisor.get(conversation.id)
        goals = states(await events(again), "goal")
        assert brief(goals) == [(True, "running", 0), (False, "interrupted", 0)]
        await again.resume_goal()
        await until(lambda: any("Resuming a goal" in p for p in harness.log.prompts()))
        await again.interrupt()


@pytest.mark.guarantee(name="a-fork-is-whole-and-says-what-its-agent-remembers")
async def test_a_goal_that_an_earlier_server_left_running_is_interrupted(tmp_path: Path) -> None:
    """As a killed server leaves it: the record says that it runs, between two turns."""
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "hello")
        goal = {"active": True, "status": "running", "iteration": 3, "max_iterations": 9, "objective": "x"}
        conversation._goal._tell({**goal, "verdict": None})
        await conversation.log.flushed()
    async with open_harness(tmp_path) as harness:
        again = await harness.supervisor.get(conversation.id)
        assert brief(states(await events(again), "goal"))[-1] == (False, "interrupted", 3)


async def test_an_agent_that_is_killed_over_it_interrupts_it(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await conversation.start_goal("!hang", 5)
        await until(lambda: harness.log.prompts())
        pid = ready_pid(conversation)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        assert brief(await ended(conversation))[-1] == (False, "interrupted", 0)


async def test_a_pause_between_two_turns_ends_it(tmp_path: Path) -> None:
    """While the judge is asked, no turn is under way that a pause could let finish."""
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await conversation.start_goal("!sleep 0.5\n!verdict 9", 5)
        await until(lambda: len(harness.log.prompts()) == 2, "the judge")
        assert not conversation.busy
        assert conversation._goal.running
        await conversation.pause()
        assert not conversation._goal.running
        assert brief(states(await events(conversation), "goal"))[-1] == (False, "interrupted", 0)
        await until(lambda: harness.log.received("session/cancel"), "the end of the question")
        assert len(harness.log.prompts()) == 2
        assert conversation.record.now.execution_status == "finished"
        assert "hello" in answer(await turn(conversation, "hello"))
