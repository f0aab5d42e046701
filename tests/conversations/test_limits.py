"""Agents that take more than they may: what ends, what is said, and that the conversation goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from supervisor.agents.containment.marker import Snapshot
from supervisor.agents.limits.values import AgentLimits
from supervisor.agents.restart import RestartPolicy
from supervisor.conversations.agent import admission
from supervisor.conversations.agent.admission import Admission, Limits
from supervisor.conversations.agent.lifecycle import limits as limits_of_agents
from supervisor.conversations.conversation import Conversation
from supervisor.settings.agent import Limits as OwnLimits
from tests.conversations.harness import (
    answer,
    events,
    one,
    open_harness,
    ready_pid,
    states,
    turn,
    until,
)
from tests.support.processes import alive

MB = 1024 * 1024

MEMORY = AgentLimits(memory=160 * MB)
"""Enough for the scripted agent and one of its children, not for three of them with 60 MB each."""

HOARD = "!hoard 60000000 3\n!hang"


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents with limits are measured all the time."""
    monkeypatch.setattr(admission, "CLOSE_SAMPLE_SECONDS", 0.05)


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents are measured when a test asks."""
    monkeypatch.setattr(admission, "CLOSE_SAMPLE_SECONDS", 600.0)
    monkeypatch.setattr(admission, "SAMPLE_SECONDS", 600.0)


async def back(conversation: Conversation, pid: int | None) -> None:
    """The agent runs again after its end."""
    await until(lambda: ready_pid(conversation) not in (None, pid), "the restart")


async def test_a_tree_above_its_memory_is_ended_and_the_next_message_goes_on(
    tmp_path: Path, often: None
) -> None:
    async with open_harness(tmp_path, agent_limits=MEMORY) as harness:
        conversation = await harness.start()
        await turn(conversation, "the word is tulip")
        pid = ready_pid(conversation)
        error = one(await turn(conversation, HOARD), "ConversationErrorEvent")
        assert error["code"] == "AgentLimit"
        assert error["detail"].startswith("The agent used ")
        assert "of memory; the limit is 160 MiB (OSTLER_AGENT_MEMORY). Ostler ended it." in error["detail"]
        assert "exited with code" not in error["detail"]
        assert error["classification"]["user_action"] == "settings"
        await back(conversation, pid)
        assert "tulip" in answer(await turn(conversation, "!remember"))
        found = await events(conversation)
        (told,) = states(found, "agent_limit")
        assert (told["limit"], told["most"], told["held_by"]) == ("memory", 160 * MB, "polling")
        assert told["used"] > 160 * MB
        assert told["ended"] is True
        (ended,) = states(found, "agent_exit")
        assert (ended["from_outside"], ended["turn_active"]) == (False, True)
        assert harness.supervisor.figures().crashes_total == 1
        assert str(conversation.agent.last_exit).startswith("The agent used ")


async def test_too_many_processes_are_ended(tmp_path: Path, often: None) -> None:
    async with open_harness(tmp_path, agent_limits=AgentLimits(processes=6)) as harness:
        conversation = await harness.start()
        error = one(await turn(conversation, "!fork 10\n!hang"), "ConversationErrorEvent")
        assert error["code"] == "AgentLimit"
        assert "the limit is 6 processes and threads (OSTLER_AGENT_PROCESSES)" in error["detail"]


async def test_an_agent_that_ignores_sigterm_is_ended_as_usual_and_counts_as_crashed(
    tmp_path: Path, often: None
) -> None:
    async with open_harness(tmp_path, agent_limits=AgentLimits(processes=6)) as harness:
        conversation = await harness.start("ignore-term", "ignore-eof")
        error = one(await turn(conversation, "!fork 10\n!hang"), "ConversationErrorEvent")
        assert error["code"] == "AgentLimit"
        (pid, *_) = harness.log.pids()
        await until(lambda: not alive(pid), "its end")
        await back(conversation, pid)
        assert harness.supervisor.figures().crashes_total == 1


async def test_an_agent_that_hits_its_limits_all_the_time_is_parked(tmp_path: Path, often: None) -> None:
    policy = RestartPolicy(crashes=2, first_pause=0.01, longest_pause=0.01)
    async with open_harness(tmp_path, agent_limits=AgentLimits(processes=6), restart=policy) as harness:
        conversation = await harness.start()
        for _ in range(5):
            await turn(conversation, "!fork 10\n!hang")
            if conversation.agent.phase == "parked":
                break
        refused = one(await turn(conversation, "please"), "ConversationErrorEvent")
        assert refused["code"] == "AgentParked"
        assert "OSTLER_AGENT_PROCESSES" in refused["detail"]


async def test_an_idle_agent_above_its_limit_is_told_of_in_a_message(tmp_path: Path, never: None) -> None:
    async with open_harness(tmp_path, agent_limits=MEMORY) as harness:
        conversation = await harness.start()
        await turn(conversation, "!hoard 60000000 3")
        pid = ready_pid(conversation)
        await conversation.agent.measure()
        await back(conversation, pid)
        found = await events(conversation)
        said = [
            event["llm_message"]["content"][0]["text"]
            for event in found
            if event["kind"] == "MessageEvent" and event["source"] == "environment"
        ]
        assert [text for text in said if "OSTLER_AGENT_MEMORY" in text]
        assert conversation.record.now.execution_status == "finished"


async def test_a_file_that_is_too_large_ends_the_agent_with_a_reason(tmp_path: Path) -> None:
    async with open_harness(tmp_path, agent_limits=AgentLimits(file_size=MB)) as harness:
        conversation = await harness.start()
        error = one(await turn(conversation, "!fill large 3000000"), "ConversationErrorEvent")
        assert error["code"] == "AgentLimit"
        assert "a file of 1 MiB; the limit is 1 MiB (OSTLER_AGENT_FILE_SIZE)" in error["detail"]
        assert "SIGXFSZ" not in error["detail"]


async def test_memory_that_one_process_does_not_get_is_the_reason_of_its_end(tmp_path: Path) -> None:
    async with open_harness(tmp_path, agent_limits=AgentLimits(memory=160 * MB)) as harness:
        conversation = await harness.start()
        error = one(await turn(conversation, "!hoard 400000000"), "ConversationErrorEvent")
        assert error["code"] == "AgentLimit"
        assert "got no more memory; the limit is 160 MiB for each process" in error["detail"]


async def test_an_end_that_lack_of_memory_may_explain_says_so(tmp_path: Path) -> None:
    async with open_harness(tmp_path, agent_limits=MEMORY) as harness:
        conversation = await harness.start()
        error = one(await turn(conversation, "!crash trap"), "ConversationErrorEvent")
        assert error["code"] == "ACPAgentExited"
        assert "was killed by SIGTRAP" in error["detail"]
        assert "It may have got no more memory; the limit is 160 MiB for each process" in error["detail"]


async def test_open_files_are_refused_to_the_agent_itself(tmp_path: Path) -> None:
    async with open_harness(tmp_path, agent_limits=AgentLimits(open_files=40)) as harness:
        conversation = await harness.start()
        said = answer(await turn(conversation, "!open 200"))
        made = int(said.split()[1])
        assert 20 < made < 40
        assert "Too many open files" in said


async def test_a_home_above_its_limit_ends_the_agent_and_refuses_the_next_start(
    tmp_path: Path, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits_of_agents, "DISK_SECONDS", 0.05)
    async with open_harness(tmp_path, agent_limits=AgentLimits(disk=2 * MB)) as harness:
        conversation = await harness.start()
        await turn(conversation, "the word is tulip")
        large = tmp_path / "data" / conversation.id / "custom" / "large"
        large.write_bytes(b"x" * 3 * MB)
        await until(lambda: not conversation.agent.live, "the end of the agent")
        refused = one(await turn(conversation, "hello"), "ConversationErrorEvent")
        assert refused["code"] == "ACPSpawnError"
        assert "The agent's home has 3" in refused["detail"]
        assert "the limit is 2 MiB (OSTLER_AGENT_DISK)" in refused["detail"]
        assert str(large.parent.parent) in refused["detail"]
        large.unlink()
        assert "tulip" in answer(await turn(conversation, "!remember"))
        (told,) = states(await events(conversation), "agent_limit")
        assert told["limit"] == "disk"


async def test_the_settings_of_a_conversation_lower_a_limit(tmp_path: Path) -> None:
    settings = {"acp_limits": OwnLimits(open_files=30, memory=1 << 40)}
    limits = AgentLimits(open_files=500, memory=1 << 30)
    async with open_harness(tmp_path, agent_limits=limits) as harness:
        conversation = await harness.start(settings=settings)
        assert int(answer(await turn(conversation, "!open 200")).split()[1]) < 30
        assert conversation.agent.current is not None
        held = conversation.agent.current.process.limits.holding.dump()
        assert (held["open_files"]["most"], held["open_files"]["set_by"]) == (30, "acp_limits.open_files")
        assert (held["memory"]["most"], held["memory"]["set_by"]) == (1 << 30, "OSTLER_AGENT_MEMORY")


async def test_without_limits_nothing_is_limited(tmp_path: Path) -> None:
    async with open_harness(tmp_path) as harness:
        conversation = await harness.start()
        assert answer(await turn(conversation, "!open 100")) == "opened 100 "
        assert conversation.agent.current is not None
        assert conversation.agent.current.process.limits.holding.by == {}


# -- how often ----------------------------------------------------------------------------------------------


class Watched:
    """An agent of admission's that counts its measurements."""

    idle_since = None
    rss_bytes = 0

    def __init__(self) -> None:
        self.times: list[float] = []

    async def measure(self, seen: Snapshot | None = None) -> None:
        self.times.append(trio.current_time())

    async def hibernate(self, reason: str) -> None:
        raise AssertionError


async def test_agents_whose_limits_are_polled_are_measured_more_often(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing() -> Any:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(admission, "take_snapshot", nothing)
    ours, other = Watched(), Watched()
    seat = Admission(Limits())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(seat.watch)
        async with seat.tenancy(ours, lambda: None), seat.tenancy(other, lambda: None):
            await trio.sleep(5.5)
            assert (len(ours.times), len(other.times)) == (1, 1)
            async with seat.closely(ours, True):
                await trio.sleep(15)
            assert len(other.times) == 4
            assert len(ours.times) >= 13
            before = len(ours.times)
            await trio.sleep(10)
            assert len(ours.times) - before <= 3
        nursery.cancel_scope.cancel()
