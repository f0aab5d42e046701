"""Interrupts, pauses, and what becomes of a turn that does not let itself be cancelled."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import trio
import trio.testing

from supervisor.agents.restart import RestartPolicy
from supervisor.conversations.agent.incarnation import Incarnation
from supervisor.conversations.conversation import Conversation
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.conversations.state.errors import AlreadyRunning
from supervisor.conversations.turns.cancelling import CancelLadder
from supervisor.conversations.turns.hand_over import HandOver
from supervisor.events import Vocabulary
from supervisor.journal.log import Log
from supervisor.journal.rows import Stored
from tests.conversations.harness import (
    PATIENCE_SECONDS,
    QUICK,
    answer,
    become,
    events,
    kinds,
    open_harness,
    ready_pid,
    say,
    settled,
    speaking,
    states,
    turn,
    until,
)


@pytest.mark.guarantee(name="control-always-returns")
async def test_a_clean_interrupt_keeps_process_session_and_words(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "warm up")
        pid = ready_pid(conversation)
        await conversation.send(say("!slow 500 20"), run=True)
        await speaking(conversation)
        await conversation.interrupt()
        assert conversation.record.now.execution_status == "paused"
        found = (await events(conversation))[-10:]
        partial = [e for e in found if e["kind"] == "MessageEvent" and e["source"] == "agent"]
        assert len(partial) == 1
        assert partial[0]["llm_message"]["content"][0]["text"]
        assert kinds(found)[-1] == "InterruptEvent"
        assert states(found, "agent_state")[-1]["stop_reason"] == "cancelled"
        after = await turn(conversation, "next")
        assert answer(after) == "echo: next "
        assert ready_pid(conversation) == pid
        assert harness.log.prompts() == ["warm up", "!slow 500 20", "next"]


async def test_core_calls_an_interrupt_a_pause(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start(vocabulary=Vocabulary.CORE)
        await conversation.send(say("!slow 500 20"), run=True)
        await speaking(conversation)
        await conversation.interrupt()
        assert kinds(await events(conversation))[-1] == "PauseEvent"


@pytest.mark.guarantee(name="control-always-returns")
async def test_an_agent_that_ignores_a_cancel_loses_its_process_and_nothing_else(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("cancel=ignore", "without=close")
        await turn(conversation, "remember me")
        pid = ready_pid(conversation)
        await conversation.send(say("!slow 2000 20"), run=True)
        await speaking(conversation)
        await conversation.interrupt()  # control returns though nothing has settled
        assert conversation.record.now.execution_status == "paused"
        await until(lambda: ready_pid(conversation) != pid, "the end of the process")
        found = await turn(conversation, "!remember")
        assert "remember me" in answer(found)
        assert ready_pid(conversation) != pid
        assert kinds(await events(conversation)).count("InterruptEvent") == 1


@pytest.mark.guarantee(name="control-always-returns")
@pytest.mark.parametrize("vocabulary", Vocabulary)
async def test_a_message_while_a_deaf_agent_is_ended_makes_no_second_event_of_the_interrupt(
    tmp_path: Path, vocabulary: Vocabulary
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("cancel=ignore", "without=close", vocabulary=vocabulary)
        await conversation.send(say("!slow 2000 20"), run=True)
        await speaking(conversation)
        await conversation.interrupt()
        assert conversation.runner.cancelling
        found = await turn(conversation, "next")
        assert "next" in answer(found)
        mark = "InterruptEvent" if vocabulary is Vocabulary.EXTENDED else "PauseEvent"
        assert kinds(await events(conversation)).count(mark) == 1
        # Who sent it and waits for its run is not told of another one's end.
        assert states(found, "execution_status") == ["running", "finished"]
        await conversation.send(say("!slow 2000 20"), run=True)
        await speaking(conversation)
        await conversation.interrupt()
        await settled(conversation)
        assert kinds(await events(conversation)).count(mark) == 2  # each has its own


@pytest.mark.guarantee(name="control-always-returns")
async def test_an_agent_that_ignores_a_cancel_but_closes_its_session_keeps_its_process(
    tmp_path: Path,
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("cancel=ignore")
        await turn(conversation, "remember me")
        pid = ready_pid(conversation)
        await conversation.send(say("!slow 2000 20"), run=True)
        await speaking(conversation)
        await conversation.interrupt()
        await until(lambda: not conversation.busy, "the end of the turn")
        assert harness.log.received("session/close")
        assert "remember me" in answer(await turn(conversation, "!remember"))
        assert ready_pid(conversation) == pid
        assert conversation.record.reported.agent_state["memory"] == "resumed"


@pytest.mark.guarantee(name="control-always-returns")
async def test_a_message_waits_until_a_closed_session_is_open_again(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("cancel=ignore")
        await turn(conversation, "remember me")
        repair = conversation.runner.repair
        pid, reopen, gate = ready_pid(conversation), repair.reopen, trio.Event()

        async def reopen_later(run: Incarnation) -> bool:
            await gate.wait()
            return await reopen(run)

        repair.reopen = reopen_later  # type: ignore[method-assign]
        await conversation.send(say("!slow 2000 20"), run=True)
        await speaking(conversation)
        await conversation.interrupt()
        await until(lambda: not conversation.busy, "the end of the turn")
        before = conversation.log.last_seq
        await conversation.send(say("!remember"), run=True)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert harness.log.prompts() == ["remember me", "!slow 2000 20"]
        gate.set()
        await settled(conversation)
        assert "remember me" in answer((await events(conversation))[before + 1 :])
        assert ready_pid(conversation) == pid
        assert len(harness.log.received("initialize")) == 1


@pytest.mark.guarantee(name="control-always-returns")
async def test_interrupting_a_start_keeps_the_message(tmp_path: Path) -> None:
    async with open_harness(tmp_path, deadlines=Deadlines()) as harness:
        conversation = await harness.start("hang=init")
        await conversation.send(say("hello"), run=True)
        await until(lambda: harness.log.received("initialize"))
        await conversation.interrupt()
        assert conversation.record.now.execution_status == "paused"
        assert harness.log.prompts() == []
        assert conversation.queued == [say("hello")]


async def test_pause_lets_the_turn_end_and_takes_no_more(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await conversation.send(say("!slow 20 20"), run=True)
        await conversation.send(say("second"), run=True)
        await until(lambda: harness.log.prompts())
        await conversation.pause()
        assert conversation.record.now.execution_status == "paused"
        await until(lambda: not conversation.busy)
        assert harness.log.prompts() == ["!slow 20 20"]
        assert conversation.record.now.execution_status == "paused"
        assert "PauseEvent" in kinds(await events(conversation))
        await conversation.run()
        assert await settled(conversation) == "finished"
        assert harness.log.prompts() == ["!slow 20 20", "second"]


@pytest.mark.guarantee(name="no-blind-retry")
async def test_run_after_an_interrupt_goes_on_and_repeats_nothing(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await conversation.send(say("!slow 500 20"), run=True)
        await speaking(conversation)
        await conversation.interrupt()
        await conversation.run()
        assert await settled(conversation) == "finished"
        prompts = harness.log.prompts()
        assert prompts[0] == "!slow 500 20"
        assert "Continue where you left off" in prompts[1]
        assert len(prompts) == 2


async def test_a_cancelled_turn_that_ends_another_way_is_told_as_that(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("cancel=ignore")
        await conversation.send(say("!text a\n!sleep 0.1\n!stop refusal"), run=True)
        await speaking(conversation)
        await conversation.interrupt()
        assert not conversation.busy
        found = await events(conversation)
        assert conversation.record.now.execution_status == "error"
        assert kinds(found)[-1] == "ConversationErrorEvent"
        assert states(found, "agent_state")[-1].get("phase") != "cancelling"


PATIENT = Deadlines(retry=(60.0,), interrupt_answer=0.5)


async def waiting_to_try_again(conversation: Conversation) -> None:
    await conversation.send(say("!flaky 9 -32603 overloaded 529"), run=True)

    async def retries() -> list[Any]:
        return states(await events(conversation), "agent_retry")

    with trio.fail_after(PATIENCE_SECONDS):
        while not await retries():
            await trio.sleep(0.01)


async def test_an_interrupt_between_two_tries_needs_no_agent(tmp_path: Path) -> None:
    async with open_harness(tmp_path, deadlines=PATIENT, restart=RestartPolicy(first_pause=60.0)) as harness:
        conversation = await harness.start()
        await waiting_to_try_again(conversation)
        pid = ready_pid(conversation)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: ready_pid(conversation) is None)
        await conversation.interrupt()
        assert not conversation.busy
        assert conversation.record.now.execution_status == "paused"
        assert "ConversationErrorEvent" not in kinds(await events(conversation))


async def test_a_forced_stop_does_not_wait_for_the_next_try(tmp_path: Path) -> None:
    async with open_harness(tmp_path, deadlines=PATIENT) as harness:
        conversation = await harness.start()
        await waiting_to_try_again(conversation)
        await conversation.stop_agent(force=True)
        await until(lambda: not conversation.busy, "the end of the turn")
        assert conversation.record.now.execution_status == "paused"


NOT_FOUND = "error=prompt:-32002:session not found"


@pytest.mark.guarantee(name="control-always-returns")
async def test_an_interrupt_while_an_agent_logs_in_prompts_nothing_more(tmp_path: Path) -> None:
    modes = ("prompt-key=NEVER_SET", "env-auth=way:MY_KEY", "slow=auth:0.4")
    async with open_harness(tmp_path, secrets={"MY_KEY": "k" * 20}) as harness:
        conversation = await harness.start(*modes)
        await conversation.send(say("hello"), run=True)
        await until(lambda: harness.log.received("authenticate"))
        await conversation.interrupt()
        assert await settled(conversation) == "paused"
        assert [e["code"] for e in await events(conversation) if e["kind"] == "ConversationErrorEvent"] == []
        assert "echo: next" in answer(await turn(conversation, "next"))
        assert harness.log.prompts().count("hello") == 1


@pytest.mark.guarantee(name="control-always-returns")
@pytest.mark.parametrize("method", ["authenticate", "session/load"])
async def test_an_interrupt_waits_for_no_login_and_no_session(tmp_path: Path, method: str) -> None:
    """Both are part of a turn, and have deadlines of their own, of half a minute and more."""
    modes = {
        "authenticate": ("prompt-key=NEVER_SET", "env-auth=way:MY_KEY", "hang=auth"),
        "session/load": (NOT_FOUND, "hang=load"),
    }
    async with open_harness(tmp_path, secrets={"MY_KEY": "k" * 20}, deadlines=Deadlines()) as harness:
        conversation = await harness.start(*modes[method])
        await conversation.send(say("hello"), run=True)
        await until(lambda: harness.log.received(method))
        began = trio.current_time()
        await conversation.interrupt()
        assert await settled(conversation) == "paused"
        assert trio.current_time() - began < PATIENCE_SECONDS / 2
        found = await events(conversation)
        assert "ConversationErrorEvent" not in kinds(found)
        assert [each["stop_reason"] for each in states(found, "turn")[1:]] == ["cancelled"]


@pytest.mark.guarantee(name="control-always-returns")
@pytest.mark.parametrize(("said", "finished"), [("", False), ("!text some words\n", True)])
async def test_an_interrupted_turn_that_the_agent_calls_ended_is_no_answer_without_a_word(
    tmp_path: Path, said: str, finished: bool
) -> None:
    """There are agents that answer a cancelled prompt with end_turn: whether they were done nobody knows."""
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("cancel=end_turn")
        await conversation.send(say(f"{said}!hang"), run=True)
        await until(lambda: harness.log.records("turn"))  # a cancel that comes before it is for no turn
        if said:
            await speaking(conversation)
        await conversation.interrupt()
        assert await settled(conversation) == "paused"
        found = await events(conversation)
        finishes = [e for e in found if (e.get("action") or {}).get("kind") == "FinishAction"]
        assert len(finishes) == finished
        if finished:
            assert finishes[0]["summary"] == "Ended after an interrupt; may be cut short"
        assert "InterruptEvent" in kinds(found)
        (ended,) = [each for each in states(found, "turn") if each["status"] == "ended"]
        assert (ended["stop_reason"], ended["answered"]) == ("end_turn", finished)
        assert ended["error"] is None


@pytest.mark.guarantee(name="no-blind-retry")
async def test_a_message_that_is_interrupted_before_its_prompt_is_handed_over_by_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is slow, say: the hand-over is not on it yet, and the agent has nothing."""

    async def slow(self: HandOver) -> None:
        await until(lambda: self._queue.interrupted)

    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "hello")
        with monkeypatch.context() as patched:
            patched.setattr(HandOver, "_handed_over", slow)
            await conversation.send(say("and this"), run=True)
            await until(lambda: not conversation.queued)
            await conversation.interrupt()
            assert await settled(conversation) == "paused"
        await conversation.run()
        assert await settled(conversation) == "finished"
        assert harness.log.prompts() == ["hello", "and this"]


def at_the_end(conversation: Conversation, monkeypatch: pytest.MonkeyPatch) -> trio.Event:
    """Set in the moment in which the end of a run is recorded, while its task has not come back yet."""
    moment = trio.Event()
    publisher = conversation.runner.publisher
    record_end = publisher.run_closed

    def close(*args: Any, **named: Any) -> None:
        record_end(*args, **named)
        moment.set()

    monkeypatch.setattr(publisher, "run_closed", close)
    return moment


@pytest.mark.parametrize(
    ("script", "stop", "expected"),
    [
        ("!hang", "interrupt", "finished"),  # it goes on
        ("!slow 20 20", "pause", "paused"),  # the turn has come to its end: nothing is left to do
        ("!error -32602 It is wrong.", None, "finished"),  # it goes on
        ("hello", None, "finished"),
    ],
)
async def test_a_run_in_the_moment_in_which_another_ends_is_no_lie(
    tmp_path: Path, script: str, stop: str | None, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await conversation.ask("warm up")
        moment, seen = at_the_end(conversation, monkeypatch), []

        async def run() -> None:
            await moment.wait()
            seen.append((conversation.queue.active, conversation.queue.turn))
            await conversation.run()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            await conversation.send(say(script), run=True)
            if stop is not None:
                await until(lambda: script in harness.log.prompts())
                await getattr(conversation, stop)()
        assert seen == [(True, None)]
        assert await settled(conversation) == expected
        said = len(harness.log.prompts())
        assert said == (3 if script.startswith(("!hang", "!error")) else 2)


async def test_a_run_while_an_interrupted_turn_ends_goes_on_after_it(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("cancel=late:1.0")
        await conversation.send(say("!slow 500 20"), run=True)
        await speaking(conversation)
        await conversation.interrupt()
        assert conversation.busy
        assert conversation.record.now.execution_status == "paused"
        await conversation.run()
        assert await settled(conversation) == "finished"
        assert len(harness.log.prompts()) == 2


async def test_a_run_on_an_interrupted_turn_that_does_not_end_is_refused(tmp_path: Path) -> None:
    deadlines = attrs.evolve(QUICK, end=0.1, interrupt_answer=0.1, cancel_grace=60.0)
    async with open_harness(tmp_path, deadlines=deadlines) as harness:
        conversation = await harness.start("cancel=ignore")
        await conversation.send(say("!hang"), run=True)
        await until(lambda: "!hang" in harness.log.prompts())
        await conversation.interrupt()
        with pytest.raises(AlreadyRunning, match="has not ended yet"):
            await conversation.run()
        assert conversation.record.now.execution_status == "paused"


async def test_a_run_takes_up_what_comes_while_it_looks_for_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await conversation.ask("hello")

        async def read(self: Log, *given: Any) -> list[Stored]:
            await conversation.send(say("meanwhile"), run=False)
            return []

        # of a message that is gone
        gone = conversation.log.last_seq + 1
        become(conversation, retry_seq=gone)
        with monkeypatch.context() as patched:
            patched.setattr(Log, "read", read)
            await conversation.run()
        assert await settled(conversation) == "finished"
        assert harness.log.prompts() == ["hello", "meanwhile"]


async def test_the_time_for_the_end_of_a_turn_may_be_over() -> None:
    queue: Any = SimpleNamespace(turn=(turn := object()), settled=trio.Event())
    shared: Any = SimpleNamespace(
        queue=queue, context=SimpleNamespace(deadlines=Deadlines()), recorder=SimpleNamespace(logger=None)
    )
    nothing: Any = None
    ladder = CancelLadder(shared, nothing, nothing)
    running: Any = turn
    assert not await ladder._ends_within(running, -0.01)
