"""A tool call that was cut off is not run again: not by an agent that resumes what is pending when its
session goes on, and not by one of which nobody knows whether it does."""

from __future__ import annotations

import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from supervisor.conversations.conversation import Conversation
from tests.conversations.harness import (
    answer,
    calling,
    events,
    killed_now,
    open_harness,
    ready_pid,
    say,
    settled,
    speaking,
    turn,
    until,
)

RESUMES = ("resumes-calls", "name=OpenHands CLI ACP Agent")
UNKNOWN = ("resumes-calls",)
LEAVES = ("name=qwen-code",)

End = Callable[[Conversation], Awaitable[object]]


def lines(file: Path) -> int:
    return len(file.read_text().splitlines()) if file.exists() else 0


def opens(gate: Path) -> bool:
    """Let the reader of a named pipe continue, if there is one."""
    try:
        os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


async def counting(one: Conversation, file: Path) -> None:
    """A call that counts itself runs, and would for a minute."""
    await one.send(say(f"!counted {file.name} 60"), run=True)
    await until(lambda: lines(file), "the command")


async def interrupt(one: Conversation) -> None:
    await one.interrupt()


async def interrupt_twice(one: Conversation) -> None:
    await one.interrupt()
    await one.interrupt()


async def kill(one: Conversation) -> None:
    pid = ready_pid(one)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


async def stop(one: Conversation) -> None:
    await one.stop_agent()


async def restart(one: Conversation) -> None:
    await one.restart_agent()


async def restart_at_once(one: Conversation) -> None:
    await one.restart_agent(force=True)


ENDS: Mapping[str, tuple[End, tuple[str, ...]]] = {
    "interrupt": (interrupt, ()),
    "interrupt, deaf": (interrupt, ("cancel=ignore", "without=close")),
    "interrupt, deaf, session closed": (interrupt, ("cancel=ignore",)),
    "interrupt twice": (interrupt_twice, ("cancel=ignore", "without=close")),
    "kill": (kill, ()),
    "stop": (stop, ()),
    "restart": (restart, ()),
    "restart at once": (restart_at_once, ()),
}


@pytest.mark.guarantee(name="no-blind-retry")
@pytest.mark.parametrize("end", ENDS)
async def test_an_agent_that_resumes_calls_gets_a_new_session(tmp_path: Path, end: str) -> None:
    cut_off, modes = ENDS[end]
    file = tmp_path / "workspace" / "ran.txt"
    async with open_harness(tmp_path) as harness:
        one = await harness.start(*RESUMES, *modes)
        await turn(one, "remember PINEAPPLE")
        await counting(one, file)
        await cut_off(one)
        await settled(one)
        await turn(one, "what was the word")
        found = await events(one)
        assert lines(file) == 1
        # It is said, with the reason and the way out; the transcript is what the agent has now.
        (told,) = [e for e in found if e["kind"] == "MessageEvent" and e["source"] == "environment"]
        text = told["llm_message"]["content"][0]["text"]
        assert "a tool call was cut off" in text
        assert "acp_after_cut_off" in text
        assert "PINEAPPLE" in answer(found)
        assert one.record.reported.agent_state["memory"] == "lost"


@pytest.mark.guarantee(name="no-blind-retry")
async def test_a_call_that_waits_for_a_person_is_not_run_after_an_interrupt(tmp_path: Path) -> None:
    """Not in the process that lives on either."""
    file = tmp_path / "workspace" / "ran.txt"
    async with open_harness(tmp_path) as harness:
        one = await harness.start(*RESUMES, confirmation_policy={"kind": "AlwaysConfirm"})
        await one.send(say("!counted ran.txt"), run=True)
        await until(lambda: one.record.now.execution_status == "waiting_for_confirmation")
        await one.interrupt()
        await settled(one)
        await turn(one, "go on")
        assert not lines(file)


@pytest.mark.guarantee(name="no-blind-retry")
@pytest.mark.parametrize("modes", [UNKNOWN, LEAVES, RESUMES], ids=["unknown", "leaves", "resumes"])
async def test_after_the_kill_of_a_server(tmp_path: Path, modes: tuple[str, ...]) -> None:
    file = tmp_path / "workspace" / "ran.txt"
    async with open_harness(tmp_path) as harness:
        one = await harness.start(*modes)
        await turn(one, "remember PINEAPPLE")
        await counting(one, file)
        await calling(one)
        await one.log.flushed()
        root = killed_now(tmp_path)
    async with open_harness(root) as harness:
        again = await harness.supervisor.get(one.id)
        await turn(again, "go on")
        assert lines(file) == 1
        assert again.record.reported.agent_state["memory"] == ("resumed" if modes is LEAVES else "lost")


@pytest.mark.guarantee(name="no-blind-retry")
@pytest.mark.parametrize("modes", [LEAVES, RESUMES], ids=["leaves", "resumes"])
async def test_after_the_kill_of_a_server_that_had_not_stored_the_call(
    tmp_path: Path, modes: tuple[str, ...]
) -> None:
    file = tmp_path / "workspace" / "ran.txt"
    async with open_harness(tmp_path) as harness:
        one = await harness.start(*modes)
        await turn(one, "remember PINEAPPLE")
        gate = tmp_path / "workspace" / "gate"
        os.mkfifo(gate)
        await one.send(say(f"!counted {file.name} 60 gate"), run=True)
        await until(lambda: len(harness.log.prompts()) == 2)
        root = killed_now(tmp_path)  # of the call that follows nothing is stored
        await until(lambda: opens(gate), "the agent at the gate")
        await until(lambda: lines(file), "the command")
    async with open_harness(root) as harness:
        again = await harness.supervisor.get(one.id)
        await turn(again, "go on")
        assert lines(file) == 1
        assert again.record.reported.agent_state["memory"] == ("resumed" if modes is LEAVES else "lost")


async def test_an_unknown_agent_keeps_its_memory_where_no_call_is_known(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        one = await harness.start(*UNKNOWN)
        await turn(one, "remember PINEAPPLE")
        await one.send(say("!hang"), run=True)
        await until(lambda: "!hang" in harness.log.prompts())
        await one.log.flushed()
        root = killed_now(tmp_path)
    async with open_harness(root) as harness:
        again = await harness.supervisor.get(one.id)
        await turn(again, "go on")
        assert again.record.reported.agent_state["memory"] == "resumed"


@pytest.mark.guarantee(name="no-blind-retry")
@pytest.mark.parametrize(
    ("modes", "settings", "memory"),
    [
        (UNKNOWN, {}, "lost"),
        (LEAVES, {}, "resumed"),
        (("name=OpenHands CLI ACP Agent",), {"acp_after_cut_off": "restore"}, "resumed"),
        (LEAVES, {"acp_after_cut_off": "new_session"}, "lost"),
    ],
    ids=["unknown", "known to leave it", "told to restore", "told not to"],
)
async def test_who_gets_a_new_session(
    tmp_path: Path, modes: tuple[str, ...], settings: dict[str, Any], memory: str
) -> None:
    file = tmp_path / "workspace" / "ran.txt"
    async with open_harness(tmp_path) as harness:
        one = await harness.start(*modes, settings=settings)
        await counting(one, file)
        await kill(one)
        await settled(one)
        await turn(one, "go on")
        assert lines(file) == 1
        assert one.record.reported.agent_state["memory"] == memory


@pytest.mark.guarantee(name="no-blind-retry")
async def test_an_unknown_agent_that_ends_the_turn_as_cancelled_is_believed(tmp_path: Path) -> None:
    file = tmp_path / "workspace" / "ran.txt"
    async with open_harness(tmp_path) as harness:
        one = await harness.start()
        await counting(one, file)
        await one.interrupt()
        await settled(one)
        assert one.record.now.cut_off == "cancelled"
        await one.stop_agent()
        await turn(one, "go on")
        assert one.record.reported.agent_state["memory"] == "resumed"
        assert one.record.now.cut_off is None


async def test_an_unknown_agent_that_answers_a_cancel_with_an_error_is_not(tmp_path: Path) -> None:
    file = tmp_path / "workspace" / "ran.txt"
    async with open_harness(tmp_path) as harness:
        one = await harness.start("cancel=error")
        await counting(one, file)
        await one.interrupt()
        await settled(one)
        await one.stop_agent()
        await turn(one, "go on")
        assert one.record.reported.agent_state["memory"] == "lost"


async def test_a_call_that_ended_is_no_reason(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        one = await harness.start(*RESUMES)
        await turn(one, "!tool")
        await one.send(say("!tool\n!slow 600 50"), run=True)
        await speaking(one)
        await one.interrupt()
        await settled(one)
        await one.stop_agent()
        await turn(one, "go on")
        assert one.record.reported.agent_state["memory"] == "resumed"


@pytest.mark.guarantee(name="no-blind-retry")
@pytest.mark.parametrize(
    ("modes", "forked"),
    [(UNKNOWN, False), (LEAVES, True), (RESUMES, False)],
    ids=["unknown", "leaves", "resumes"],
)
async def test_a_side_question_does_not_run_the_open_call(
    tmp_path: Path, modes: tuple[str, ...], forked: bool
) -> None:
    """A fork of the session has the call, too; a new session has a transcript."""
    file = tmp_path / "workspace" / "ran.txt"
    async with open_harness(tmp_path) as harness:
        one = await harness.start(*modes, confirmation_policy={"kind": "AlwaysConfirm"})
        await turn(one, "remember PINEAPPLE")
        await one.send(say("!counted ran.txt"), run=True)
        await until(lambda: one.record.now.execution_status == "waiting_for_confirmation")
        said = await one.ask_agent("!remember")
        assert "PINEAPPLE" in (said if forked else harness.log.prompts()[-1])
        assert not lines(file)
        assert len(harness.log.received("session/fork")) == forked
        await one.respond(True, "")
        await settled(one)
        assert lines(file) == 1
        await one.ask_agent("!remember")  # nothing is open any more
        assert len(harness.log.received("session/fork")) == forked + 1
