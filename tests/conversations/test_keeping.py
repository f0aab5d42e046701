"""Agents that crash, idle, and have to share a machine: restarts, parking, hibernation, admission."""

from __future__ import annotations

import gc
import os
import signal
import weakref
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from supervisor.agents.containment import tree
from supervisor.agents.restart import RestartPolicy
from supervisor.conversations.agent.admission import Limits, longest_idle, memory_budget
from supervisor.conversations.conversation import Conversation
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.conversations.state.errors import AtCapacity
from tests.conversations.harness import (
    QUICK,
    answer,
    events,
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

SOON = RestartPolicy(first_pause=0.05, longest_pause=0.1)


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
async def test_a_crashed_idle_agent_comes_back_by_itself_and_remembers(tmp_path: Path) -> None:
    async with open_harness(tmp_path, restart=SOON) as harness:
        conversation = await harness.start()
        await turn(conversation, "the word is tulip")
        pid = ready_pid(conversation)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: ready_pid(conversation) not in (None, pid), "the restart")
        assert conversation.record.now.execution_status == "finished"  # no turn was lost
        assert conversation.agent.restarts.count == 1
        assert "SIGKILL" in str(conversation.agent.last_exit)
        phases = states(await events(conversation), "agent_phase")
        assert phases[-3:] == ["restarting", "starting", "ready"]
        (ended,) = states(await events(conversation), "agent_exit")
        assert (ended["code"], ended["signal"], ended["turn_active"]) == (None, signal.SIGKILL, False)
        assert ended["uptime_seconds"] >= 0
        assert "tulip" in answer(await turn(conversation, "!remember"))


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
async def test_an_agent_that_restarts_or_stops_and_who_reads_change_no_conversation(tmp_path: Path) -> None:
    """Or the conversation changed last, which `--continue` takes, would not be the one that was used last."""

    async def newest() -> list[str]:
        return [item["id"] for item in await harness.listed(order="updated_at_desc", limit=2)]

    async with open_harness(tmp_path, restart=SOON) as harness:
        older, newer = [await harness.start() for _ in range(2)]
        for conversation in (older, newer):
            await turn(conversation, "!text hello")
        before = older.record.updated_at
        assert await newest() == [newer.id, older.id]

        pid = ready_pid(older)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await until(lambda: ready_pid(older) not in (None, pid), "the restart")
        await harness.supervisor.stop_agent(older.id)
        await until(lambda: older.agent.phase == "stopped", "the stop")
        older.recorder.unsaved = True
        assert (await older.durable_info())["updated_at"] == before
        assert states(await events(older), "agent_phase")[-1] == "stopped"
        assert await newest() == [newer.id, older.id]

        await turn(older, "!text again")
        assert await newest() == [older.id, newer.id]


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
async def test_a_new_session_after_a_crash_changes_no_conversation(tmp_path: Path) -> None:
    async with open_harness(tmp_path, restart=SOON) as harness:
        conversation = await harness.start()
        await turn(conversation, "!crash 9")
        before = conversation.record.updated_at
        crashed = harness.log.pids()[0]  # it may not be gone yet
        await until(lambda: ready_pid(conversation) not in (None, crashed), "the restart")
        assert states(await events(conversation), "agent_phase")[-1] == "ready"
        assert conversation.record.updated_at == before


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
async def test_an_orderly_exit_is_no_crash(tmp_path: Path) -> None:
    async with open_harness(tmp_path, restart=SOON) as harness:
        conversation = await harness.start()
        await turn(conversation, "!crash 0")
        await until(lambda: conversation.agent.phase == "exited")
        await trio.sleep(0.2)
        assert len(harness.log.pids()) == 1
        assert harness.supervisor.figures().crashes_total == 0


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
async def test_a_crash_loop_ends_with_a_parked_agent_and_an_operator_ends_that(tmp_path: Path) -> None:
    policy = RestartPolicy(crashes=3, first_pause=0.01, longest_pause=0.01)
    async with open_harness(tmp_path, restart=policy) as harness:
        conversation = await harness.start("crash=idle:9")  # after every answer
        for _ in range(10):
            await turn(conversation, "hello")
            if conversation.agent.phase == "parked":
                break
        assert conversation.agent.phase == "parked"
        assert conversation.record.now.execution_status == "error"
        errors = [e for e in await events(conversation) if e["kind"] == "ConversationErrorEvent"]
        assert errors[-1]["code"] == "AgentParked"
        before = len(harness.log.pids())
        refused = await turn(conversation, "please")
        assert one(refused, "ConversationErrorEvent")["code"] == "AgentParked"
        assert len(harness.log.pids()) == before
        await harness.supervisor.restart_agent(conversation.id)
        assert len(harness.log.pids()) == before + 1
        assert conversation.agent.phase in {"ready", "restarting"}


async def test_an_operator_restarts_a_busy_agent_and_the_session_goes_on(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "the word is tulip")
        pid = ready_pid(conversation)
        await conversation.send(say("!slow 500 20"), run=True)
        await speaking(conversation)
        await harness.supervisor.restart_agent(conversation.id)
        assert conversation.record.now.execution_status == "paused"
        assert ready_pid(conversation) not in (None, pid)
        assert len(harness.log.received("session/close")) == 1
        assert "tulip" in answer(await turn(conversation, "!remember"))
        (view,) = await harness.supervisor.agents()
        assert (view.restarts, view.state, view.provider) == (1, "ready", "custom")
        assert view.rss_bytes is not None
        assert view.rss_bytes > 1_000_000


async def test_force_waits_for_nothing(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start("cancel=ignore", "without=close")
        await conversation.send(say("!hang"), run=True)
        await until(lambda: harness.log.prompts())
        await harness.supervisor.restart_agent(conversation.id, force=True)
        assert conversation.agent.phase == "ready"
        assert conversation.record.now.execution_status == "paused"


async def test_a_stopped_agent_comes_back_with_the_next_message(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "hello")
        await harness.supervisor.stop_agent(conversation.id)
        assert ready_pid(conversation) is None
        assert conversation.agent.phase == "stopped"
        assert await harness.supervisor.agents() == []
        assert answer(await turn(conversation, "again")) == "echo: again "


async def test_a_message_before_a_crashed_agent_is_gone_waits_for_its_restart(tmp_path: Path) -> None:
    """Its own start would fail with the first crash, where a restart tries again."""
    async with open_harness(tmp_path, restart=SOON) as harness:
        conversation = await harness.start("crash=replay", "without=resume", "grandchild=stubborn")
        await turn(conversation, "one")
        await turn(conversation, "!crash 1")
        assert conversation.record.now.execution_status == "error"
        assert conversation.agent.live  # what it started heeds no SIGTERM
        assert not conversation.agent.restarts.active
        assert answer(await turn(conversation, "three")).endswith("echo: three ")
        assert conversation.record.now.execution_status == "finished"
        assert conversation.agent.restarts.crashes == 3
        assert len(harness.log.pids()) == 4


async def test_an_operator_stops_an_agent_that_is_coming_back(tmp_path: Path) -> None:
    async with open_harness(tmp_path, restart=RestartPolicy(first_pause=60.0)) as harness:
        conversation = await harness.start()
        await turn(conversation, "!crash 1")
        await until(lambda: conversation.agent.phase == "restarting")
        await harness.supervisor.stop_agent(conversation.id)
        assert conversation.agent.phase == "stopped"
        assert len(harness.log.pids()) == 1


async def test_a_stop_in_the_moment_of_the_crash_is_heard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stop may run before the task that brings the agent back has run at all. Trio runs the two in an
    order of chance, so the moment is tried often."""
    async with (
        open_harness(tmp_path, restart=RestartPolicy(first_pause=60.0)) as harness,
        trio.open_nursery() as stops,
    ):

        def stop_at_once(conversation: Conversation, phase: str) -> None:
            if phase == "restarting":
                stops.start_soon(harness.supervisor.stop_agent, conversation.id)

        for _ in range(10):
            conversation = await harness.start()
            publisher = conversation.runner.publisher
            told = publisher.phase
            monkeypatch.setattr(
                publisher,
                "phase",
                lambda phase, told=told, of=conversation: (told(phase), stop_at_once(of, phase)),
            )
            await turn(conversation, "!crash 1")
            await until(lambda of=conversation: of.agent.phase == "stopped", "the stop")
        assert len(harness.log.pids()) == 10


@pytest.mark.guarantee(name="there-is-room-or-a-word-about-it")
async def test_at_the_limit_the_longest_idle_makes_room_and_comes_back(tmp_path: Path) -> None:
    async with open_harness(tmp_path, limits=Limits(agents=2)) as harness:
        first, second, third = [await harness.start() for _ in range(3)]
        for conversation in (first, second, third):
            await turn(conversation, "the word is tulip")
        assert first.agent.phase == "hibernated"
        assert ready_pid(second) is not None
        assert harness.supervisor.figures().live_agents == 2
        assert "tulip" in answer(await turn(first, "!remember"))
        assert second.agent.phase == "hibernated"


@pytest.mark.guarantee(name="there-is-room-or-a-word-about-it")
async def test_nobody_busy_makes_room_and_who_comes_too_late_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "supervisor.conversations.agent.admission.SAMPLE_SECONDS", 600
    )  # the end of a turn is told
    async with open_harness(tmp_path, limits=Limits(agents=1)) as harness:
        first, second = await harness.start(), await harness.start()
        await first.send(say("!slow 30 20"), run=True)
        await until(lambda: ready_pid(first))
        await second.send(say("hello"), run=True)
        await until(lambda: second.agent.phase == "queued")
        assert harness.supervisor.figures().queued == 1
        assert await settled(second) == "finished"
        assert await settled(first) == "finished"


@pytest.mark.guarantee(name="there-is-room-or-a-word-about-it")
async def test_a_full_server_refuses_where_the_operator_wants_that(tmp_path: Path) -> None:
    async with open_harness(tmp_path, limits=Limits(agents=1, full="refuse")) as harness:
        first, second = await harness.start(), await harness.start()
        await first.send(say("!slow 500 20"), run=True)
        await until(lambda: ready_pid(first))
        with pytest.raises(AtCapacity) as refused:
            await second.send(say("hello"), run=True)
        assert refused.value.retry_after > 0
        assert second.log.last_seq == -1  # nothing was taken, so nothing is owed
        await first.interrupt()
        await until(lambda: not first.busy)
        await second.send(say("hello"), run=True)
        assert await settled(second) == "finished"


@pytest.mark.guarantee(name="there-is-room-or-a-word-about-it")
async def test_memory_is_a_limit_too(tmp_path: Path) -> None:
    async with open_harness(tmp_path, limits=Limits(memory_bytes=1)) as harness:
        first, second = await harness.start(), await harness.start()
        await turn(first, "hello")
        await first.agent.measure()
        await turn(second, "hello")
        assert first.agent.phase == "hibernated"


async def test_all_agents_are_measured_in_one_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []
    table = tree.process_table

    def counted() -> tree.ProcessTable:
        looks.append(1)
        return table()

    async with open_harness(tmp_path) as harness:
        for _ in range(3):
            await turn(await harness.start(), "hello")
        monkeypatch.setattr(tree, "process_table", counted)
        views = await harness.supervisor.agents()
        assert len(looks) == 1
        assert all(view.rss_bytes and view.processes for view in views)
        assert len(views) == 3


@pytest.mark.guarantee(name="there-is-room-or-a-word-about-it")
async def test_idle_agents_go_to_sleep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("supervisor.conversations.agent.admission.SAMPLE_SECONDS", 0.05)
    async with open_harness(tmp_path, limits=Limits(idle_seconds=0.2)) as harness:
        conversation = await harness.start()
        await turn(conversation, "the word is tulip")
        await until(lambda: conversation.agent.phase == "hibernated")
        assert len(harness.log.received("session/close")) == 1
        assert "tulip" in answer(await turn(conversation, "!remember"))


@pytest.mark.parametrize("work", ["turn", "start", "terminal"])
async def test_idle_time_counts_from_the_end_of_the_last_work(
    tmp_path: Path, mock_clock: MockClock, work: str
) -> None:
    async with open_harness(tmp_path, clock=mock_clock, deadlines=Deadlines()) as harness:
        conversation = await harness.start()
        agent = conversation.agent
        await turn(conversation, "hello")
        mock_clock.jump(100)
        before = trio.current_time()
        if work == "start":
            await agent.stop()
            await harness.supervisor.restart_agent(conversation.id)
        elif work == "turn":
            await conversation.send(say("!hang"), run=True)
            await until(lambda: "!hang" in harness.log.prompts())
            assert agent.idle_since is None
            mock_clock.jump(1700)
            before = trio.current_time()
            mock_clock.rate = 20.0
            await conversation.interrupt()
            await settled(conversation)
        else:
            assert agent.ready is not None
            services = agent.ready.services
            opened = await services.handle("terminal/create", {"command": "true"})
            assert agent.idle_since is None
            await services.handle("terminal/release", opened)
        assert agent.idle_since is not None
        assert before <= agent.idle_since <= trio.current_time()
        (view,) = await harness.supervisor.agents()
        assert view.idle is not None
        assert view.uptime is not None
        assert view.idle <= view.uptime


async def test_a_long_turn_is_not_followed_by_sleep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    async with open_harness(
        tmp_path, limits=Limits(idle_seconds=1800), clock=mock_clock, deadlines=Deadlines()
    ) as harness:
        first, second = await harness.start(), await harness.start()
        await first.send(say("!hang"), run=True)
        await until(lambda: "!hang" in harness.log.prompts())
        mock_clock.jump(1000)
        await turn(second, "hello")
        mock_clock.jump(700)
        mock_clock.rate = 20.0
        await first.interrupt()
        await settled(first)
        mock_clock.rate = 0.0
        admission = harness.supervisor._context.admission
        # The one that worked until now is the last to make room, though its turn began first.
        assert longest_idle(admission._tenants) is second.agent
        mock_clock.jump(1000)
        await admission._hibernate_idle()
        assert ready_pid(first) is not None
        mock_clock.jump(850)
        await admission._hibernate_idle()
        assert ready_pid(first) is None


@pytest.mark.guarantee(name="there-is-room-or-a-word-about-it")
async def test_an_agent_that_somebody_waits_for_stays_awake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("supervisor.conversations.agent.admission.SAMPLE_SECONDS", 0.05)
    async with open_harness(tmp_path, limits=Limits(idle_seconds=0.1), deadlines=QUICK) as harness:
        conversation = await harness.start(confirmation_policy={"kind": "AlwaysConfirm"})
        await conversation.send(say("!perm"), run=True)
        await until(lambda: conversation.record.now.execution_status == "waiting_for_confirmation")
        await trio.sleep(0.4)
        assert ready_pid(conversation) is not None
        await conversation.interrupt()


@pytest.mark.parametrize(
    ("files", "budget"),
    [
        ({}, None),
        ({"proc/meminfo": "MemTotal:       1000 kB\nMemFree: 1 kB\n"}, 819200),
        ({"proc/meminfo": "MemTotal: 1000 kB\n", "sys/fs/cgroup/memory.max": "1000\n"}, 800),
        (
            {"proc/meminfo": "MemTotal: 1000 kB\n", "sys/fs/cgroup/memory.max": "max\n"},
            int(1000 * 1024 * 0.8),
        ),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": "500\n"}, 400),
    ],
)
def test_the_budget_is_a_part_of_the_smallest_limit(
    tmp_path: Path, files: dict[str, str], budget: int | None
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory_budget(tmp_path) == budget


async def test_a_hibernated_conversation_keeps_its_agents_words_and_not_the_agent(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        await turn(conversation, "!complain a last word")
        trace = len(conversation.agent.output.trace())
        words = conversation.agent.output.stderr_tail()
        run = conversation.agent.ready
        assert run is not None
        parts = [weakref.ref(each) for each in (run, run.connection, run.process, run.services, run.plan)]
        del run
        await conversation.agent.hibernate("a test")
        await until(lambda: not conversation.active)
        gc.collect()
        assert [part() for part in parts] == [None] * len(parts)
        assert conversation.agent.output.stderr_tail() == words
        assert "a last word" in words
        assert len(conversation.agent.output.trace()) >= trace > 0
