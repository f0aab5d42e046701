"""Every deadline of a conversation, on a clock of the test's own, against real processes that keep still."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from supervisor.agents.catalog import load_catalog
from supervisor.agents.containment.marker import live_markers
from supervisor.conversations.conversation import Conversation
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.conversations.state.start import StartRequest
from supervisor.conversations.turns.debouncer import Debouncer
from supervisor.journal.rows import Frame, Transient
from supervisor.settings.agent import AgentSettings
from tests.conversations.harness import (
    answer,
    events,
    kinds,
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
from tests.support.processes import alive

pytestmark = pytest.mark.guarantee(name="nothing-hangs")

DEADLINES = Deadlines()


@pytest.mark.parametrize(
    ("modes", "method", "seconds"),
    [
        (["hang=init"], "initialize", DEADLINES.initialize),
        (["hang=new"], "session/new", DEADLINES.new_session),
    ],
)
async def test_a_start_ends_at_its_deadline_and_not_before(
    tmp_path: Path, mock_clock: MockClock, modes: list[str], method: str, seconds: float
) -> None:
    async with open_harness(tmp_path, clock=mock_clock, deadlines=DEADLINES) as harness:
        conversation = await harness.start(*modes)
        await conversation.send(say("hello"), run=True)
        await until(lambda: harness.log.received(method))
        mock_clock.jump(seconds - 1)
        await trio.testing.wait_all_tasks_blocked()
        assert conversation.busy
        mock_clock.jump(1.5)
        assert await settled(conversation) == "error"
        error = one(await events(conversation), "ConversationErrorEvent")
        assert error["code"] == "ACPStartupTimeout"
        assert f"did not answer {method} within {seconds:g} s" in error["detail"]


async def test_an_install_that_hangs_ends_at_its_deadline(tmp_path: Path, mock_clock: MockClock) -> None:
    for name, text in (("npm", "touch $0.ran; sleep 60"), ("node", "echo v24.0.0")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}:/usr/bin:/bin"
    async with open_harness(
        tmp_path, clock=mock_clock, deadlines=Deadlines(install=90), path=path
    ) as harness:
        agent = AgentSettings(acp_server="gemini-cli", acp_command=load_catalog()["gemini-cli"].command)
        request = StartRequest(working_dir=str(tmp_path / "w"), agent=agent)
        conversation, _ = await harness.supervisor.create(request)
        await conversation.send(say("hello"), run=True)
        await until((tmp_path / "npm.ran").exists)
        # It runs before its start is known here, which has a deadline of its own.
        await until(lambda: not any(each.starting for each in live_markers()))
        mock_clock.jump(89)
        await trio.testing.wait_all_tasks_blocked()
        assert conversation.busy
        mock_clock.jump(1)
        mock_clock.rate = 1.0  # npm is ended in real time
        assert await settled(conversation) == "error"
        error = one(await events(conversation), "ConversationErrorEvent")
        assert error["code"] == "ACPSpawnError"
        assert "npm did not end in 90 s" in error["detail"]


async def test_authenticate_ends_at_its_deadline(tmp_path: Path, mock_clock: MockClock) -> None:
    async with open_harness(
        tmp_path, clock=mock_clock, deadlines=DEADLINES, secrets={"OPENAI_API_KEY": "k"}
    ) as harness:
        # Known by its words as an agent whose login Ostler can choose.
        conversation = await harness.start(
            "key=NEVER_SET", "auth=api-key", "hang=auth", settings={"acp_args": ("--mode", "name=codex-acp")}
        )
        conversation.record.agent = conversation.record.agent.__class__(
            acp_server="codex", acp_command=conversation.record.agent.acp_command
        )
        await conversation.send(say("hello"), run=True)
        await until(lambda: harness.log.received("authenticate"))
        mock_clock.jump(DEADLINES.authenticate + 0.5)
        assert await settled(conversation) == "error"
        error = one(await events(conversation), "ConversationErrorEvent")
        assert error["code"] == "ACPAuthRequired"
        assert "no answer to authenticate within 30 s" in error["detail"]


async def test_a_load_that_hangs_gives_way_to_a_new_session(tmp_path: Path, mock_clock: MockClock) -> None:
    async with open_harness(tmp_path, clock=mock_clock, deadlines=DEADLINES) as harness:
        conversation = await harness.start("without=resume", "hang=load")
        await turn(conversation, "first")
        await turn(conversation, "!crash 1")
        await conversation.send(say("second"), run=True)
        await until(lambda: harness.log.received("session/load"))
        mock_clock.jump(DEADLINES.load_session + 1)
        assert await settled(conversation) == "finished"
        found = await events(conversation)
        assert states(found, "agent_state")[-1]["memory"] == "lost"
        assert "no answer to session/load within 60 s" in str(found)


async def test_a_setting_that_hangs_is_given_up_and_the_turn_goes_on(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with open_harness(tmp_path, clock=mock_clock, deadlines=DEADLINES) as harness:
        conversation = await harness.start("hang=config", settings={"acp_model": "other"})
        await conversation.send(say("hello"), run=True)
        await until(lambda: harness.log.received("session/set_config_option"))
        mock_clock.jump(DEADLINES.option + 0.5)
        assert await settled(conversation) == "finished"
        assert answer(await events(conversation)) == "echo: hello "


async def test_silence_within_a_turn(tmp_path: Path, mock_clock: MockClock) -> None:
    async with open_harness(tmp_path, clock=mock_clock, deadlines=DEADLINES) as harness:
        conversation = await harness.start()
        silence = conversation.record.agent.acp_prompt_timeout
        await conversation.send(say("!text a\n!hang"), run=True)
        await speaking(conversation)
        mock_clock.jump(silence - 1)  # in one step: what was due on the way is told once
        await trio.testing.wait_all_tasks_blocked()
        assert conversation.busy
        mock_clock.jump(1.5)
        assert await settled(conversation) == "error"
        error = one(await events(conversation), "ConversationErrorEvent")
        assert "silent for 1800.5 s" in error["detail"]
        (warning,) = states(await events(conversation), "agent_silent")
        assert (warning["silent_seconds"], warning["ends_in_seconds"]) == (1440.0, 360.0)
        after = await turn(conversation, "still there?")
        assert answer(after) == "echo: still there? "


async def test_an_interrupt_answers_in_time_and_the_process_goes_after_the_grace(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with open_harness(tmp_path, clock=mock_clock, deadlines=DEADLINES) as harness:
        conversation = await harness.start("cancel=ignore", "without=close")
        await conversation.send(say("!text a\n!hang"), run=True)
        await speaking(conversation)
        pid = ready_pid(conversation)
        answered = trio.Event()

        async def interrupt() -> None:
            await conversation.interrupt()
            answered.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(interrupt)
            await until(lambda: harness.log.received("session/cancel"))
            mock_clock.jump(DEADLINES.interrupt_answer - 0.5)
            await trio.testing.wait_all_tasks_blocked()
            assert not answered.is_set()
            mock_clock.jump(1)
            await until(answered.is_set)
        assert conversation.record.now.execution_status == "paused"
        assert conversation.record.reported.agent_state["phase"] == "cancelling"
        assert ready_pid(conversation) == pid
        mock_clock.jump(DEADLINES.cancel_close)
        await until(lambda: ready_pid(conversation) is None, "the end of the process")
        await until(lambda: not conversation.busy)
        found = await events(conversation)
        assert kinds(found).count("InterruptEvent") == 1
        assert [e["llm_message"]["content"][0]["text"] for e in found if e["kind"] == "MessageEvent"][
            -1
        ] == "a"


async def interrupted(conversation: Conversation, clock: MockClock) -> None:
    """Interrupt a turn that does not end; control is back, and the agent counts as deaf."""
    await conversation.send(say("!text a\n!hang"), run=True)
    await speaking(conversation)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(conversation.interrupt)
        await trio.testing.wait_all_tasks_blocked()
        clock.jump(max(DEADLINES.interrupt_answer, DEADLINES.cancel_grace))


@pytest.mark.guarantee(name="nothing-hangs")
async def test_a_deaf_agent_is_replaced_as_soon_as_the_next_message_waits(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with open_harness(tmp_path, clock=mock_clock, deadlines=DEADLINES) as harness:
        conversation = await harness.start("cancel=ignore", "without=close")
        await turn(conversation, "the word is tulip")
        pid = ready_pid(conversation)
        await interrupted(conversation, mock_clock)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert ready_pid(conversation) == pid
        began = trio.current_time()
        found = await turn(conversation, "!remember")
        assert "tulip" in answer(found)
        assert ready_pid(conversation) != pid
        assert trio.current_time() == began  # nobody waited for a deadline


async def test_a_message_that_waited_before_the_interrupt_does_not_hasten_it(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with open_harness(tmp_path, clock=mock_clock, deadlines=DEADLINES) as harness:
        conversation = await harness.start("cancel=ignore", "without=close")
        await conversation.send(say("!text a\n!hang"), run=True)
        await conversation.send(say("later"), run=True)
        await speaking(conversation)
        pid = ready_pid(conversation)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(conversation.interrupt)
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(DEADLINES.cancel_grace)
        await trio.testing.wait_all_tasks_blocked(0.05)
        assert ready_pid(conversation) == pid
        await conversation.run()
        assert await settled(conversation) == "finished"
        assert ready_pid(conversation) != pid
        assert harness.log.prompts()[1:] == ["later"]


@pytest.mark.guarantee(name="nothing-hangs")
async def test_an_agent_that_is_deaf_to_everything_is_gone_within_five_seconds(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with open_harness(tmp_path, clock=mock_clock, deadlines=DEADLINES) as harness:
        conversation = await harness.start("cancel=ignore", "hang=close", "ignore-eof", "ignore-term")
        began = trio.current_time()
        await interrupted(conversation, mock_clock)
        pid = ready_pid(conversation)
        assert pid is not None
        await until(lambda: harness.log.received("session/close"))
        mock_clock.jump(DEADLINES.cancel_close)
        await until(lambda: harness.log.records("eof"))
        mock_clock.jump(DEADLINES.stop_stdin)
        await until(lambda: harness.log.records("sigterm"))
        mock_clock.jump(DEADLINES.stop_term)
        assert trio.current_time() - began < 5
        mock_clock.rate = 1.0  # it is killed, and looked for, in real time
        await until(lambda: not alive(pid), "the end of the process")
        await settled(conversation)
        assert conversation.record.now.execution_status == "paused"


async def test_a_turn_that_ends_at_the_last_moment_keeps_its_process(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with open_harness(tmp_path, clock=mock_clock, deadlines=DEADLINES) as harness:
        conversation = await harness.start("cancel=ignore")
        await conversation.send(say("!text a\n!hang"), run=True)
        await speaking(conversation)
        run, current = conversation.agent.ready, conversation.queue.turn
        assert run is not None
        assert current is not None

        async def ends(seconds: float) -> bool:
            raise AssertionError("nobody waits for a turn that has ended")

        conversation.queue.turn = None
        await conversation.runner.repair.free_session(run, current, ends)
        assert harness.log.received("session/close") == []
        assert run.usable
        conversation.queue.turn = current


async def test_what_is_held_back_comes_a_little_after_the_last_word(autojump_clock: MockClock) -> None:
    fired: list[float] = []
    timer = Debouncer(0.25, 3.0, lambda: fired.append(trio.current_time()))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(timer.run)
        begin = trio.current_time()
        for _ in range(3):
            timer.note()
            await trio.sleep(0.2)
        await trio.sleep(1)
        assert [round(at - begin, 3) for at in fired] == [0.65]
        begin = trio.current_time()
        for _ in range(40):
            timer.note()
            await trio.sleep(0.1)
        assert round(fired[1] - begin, 3) == 3.0
        nursery.cancel_scope.cancel()


async def test_a_start_as_a_whole_has_the_conversation_s_limit(tmp_path: Path, mock_clock: MockClock) -> None:
    async with open_harness(tmp_path, clock=mock_clock, deadlines=DEADLINES) as harness:
        conversation = await harness.start("hang=new", settings={"acp_startup_timeout": 7.0})
        await conversation.send(say("hello"), run=True)
        await until(lambda: harness.log.received("session/new"))
        mock_clock.jump(7.5)
        assert await settled(conversation) == "error"
        error = one(await events(conversation), "ConversationErrorEvent")
        assert error["code"] == "ACPStartupTimeout"
        assert "get ready within 7 s" in error["detail"]


@pytest.mark.guarantee(name="no-blind-retry")
async def test_a_failure_that_passes_is_tried_again_after_its_pauses(
    tmp_path: Path, mock_clock: MockClock
) -> None:
    async with open_harness(tmp_path, clock=mock_clock, deadlines=DEADLINES) as harness:
        conversation = await harness.start()
        line = "!flaky 2 -32603 upstream overloaded, try again"
        await conversation.send(say(line), run=True)
        for count, pause in enumerate(DEADLINES.retry, start=1):
            while len(states(await events(conversation), "agent_retry")) < count:
                await until(lambda: True)
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(pause - 0.1)
            await trio.testing.wait_all_tasks_blocked()
            assert len(harness.log.prompts()) == count
            mock_clock.jump(0.2)
        assert await settled(conversation) == "finished"
        assert harness.log.prompts() == [line] * 3


@pytest.mark.parametrize("status", ["finished", "waiting_for_confirmation"])
async def test_the_state_is_told_again_shortly_after_a_run(
    tmp_path: Path, mock_clock: MockClock, status: str
) -> None:
    """After one that waits for a person, too: a client waits for either."""
    async with open_harness(tmp_path, clock=mock_clock, deadlines=DEADLINES) as harness:
        conversation = await harness.start(confirmation_policy={"kind": "AlwaysConfirm"})
        cursor = conversation.log.subscribe(None)
        await conversation.send(say("hello" if status == "finished" else "!perm"), run=True)
        await until(lambda: conversation.record.now.execution_status == status)

        async def snapshots() -> int:
            """How many have come since it was asked last."""
            await trio.testing.wait_all_tasks_blocked()
            marker = b'{"marker":true}'
            conversation.log.publish(Frame(legacy=marker))
            count = 0
            while True:
                for item in await cursor.next():
                    if isinstance(item, Transient):
                        if item.frame.legacy == marker:
                            return count
                        count += b'"full_state"' in (item.frame.legacy or b"")

        assert await snapshots() == 1
        mock_clock.jump(0.3)
        assert await snapshots() == 1
        mock_clock.jump(0.8)
        assert await snapshots() == 1
