"""Warm spares: a started process waits for the next conversation, and nobody can tell but by the time."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any, cast

import attrs
import pytest
import trio
from trio.testing import MockClock

from supervisor import composition
from supervisor.agents.catalog import AgentHome, load_catalog
from supervisor.agents.errors import SpawnError
from supervisor.conversations.agent import admission
from supervisor.conversations.agent.admission import Limits
from supervisor.conversations.agent.incarnation import Incarnation
from supervisor.conversations.agent.launch import homes
from supervisor.conversations.agent.launch.plan import Plan
from supervisor.conversations.agent.warm import planning
from supervisor.conversations.agent.warm import pool as warm_pool
from supervisor.conversations.agent.warm.fork_parent import ForkParent
from supervisor.conversations.agent.warm.process import WarmProcess
from supervisor.conversations.conversation import Conversation
from supervisor.conversations.state.errors import AgentFailure
from supervisor.conversations.state.start import StartRequest
from supervisor.conversations.state.status import AgentPhase
from supervisor.events import Vocabulary
from supervisor.settings.agent import AgentSettings
from supervisor.settings.agent import Limits as AgentLimits
from tests.conversations.harness import (
    QUICK,
    Harness,
    answer,
    events,
    kinds,
    open_harness,
    ready_pid,
    say,
    turn,
    until,
)
from tests.support.processes import alive, info
from tests.support.scripted import scripted_command
from tests.support.thorough import everyday

KEY = "scripted"


@pytest.fixture(autouse=True)
def catalog(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The catalogue with an agent that can wait; the first turn is not waited for."""
    known = dict(load_catalog())
    known[KEY] = attrs.evolve(
        known["custom"], key=KEY, command=(KEY,), warm="session", home=AgentHome(kind="shared")
    )
    monkeypatch.setattr(composition, "load_catalog", lambda: MappingProxyType(known))
    monkeypatch.setattr(warm_pool, "PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(warm_pool, "LOOK_SECONDS", 0.05)
    return known


@asynccontextmanager
async def opened(root: Path, number: int = 1, **more: Any) -> AsyncIterator[Harness]:
    async with open_harness(root, spares={KEY: number}, **more) as harness:
        yield harness


async def begun(harness: Harness, *modes: str, where: str = "workspace", **fields: Any) -> Conversation:
    settings = fields.pop("settings", {})
    home = harness.root / "scripted-home"
    command = scripted_command(*modes, log=harness.root / "scripted.log", home=home)
    request = StartRequest(
        working_dir=str(harness.root / where),
        agent=AgentSettings(acp_server=KEY, acp_command=tuple(command), **settings),
        spelled_out=True,
        event_vocabulary=Vocabulary.EXTENDED,
        **fields,
    )
    conversation, _ = await harness.supervisor.create(request)
    return conversation


def waiting(harness: Harness) -> list[WarmProcess]:
    return [spare for spare in harness.supervisor._context.warm_pool.waiting if spare.usable]


async def spare_of(harness: Harness, number: int = 1) -> list[WarmProcess]:
    """The spares, once so many are ready."""
    await until(lambda: len(waiting(harness)) == number, f"{number} spares")
    return waiting(harness)


def state_of(pid: int) -> str | None:
    found = info(pid)
    return None if found is None else found.state


def pid_of(spare: WarmProcess) -> int:
    assert spare.process is not None
    return spare.process.pid


async def test_the_next_conversation_gets_the_process_that_waits(tmp_path: Path) -> None:
    async with opened(tmp_path) as harness:
        assert harness.supervisor.figures().warm_processes == 0
        first = await begun(harness)
        await turn(first, "hello")
        (spare,) = await spare_of(harness)
        pid = pid_of(spare)
        assert len(harness.log.pids()) == 2
        assert harness.supervisor.figures().live_agents == 2

        second = await begun(harness, where="elsewhere")
        found = await turn(second, "!cwd\n!text hello again")
        assert ready_pid(second) == pid
        assert harness.supervisor.figures().warm_used_total == 1
        # Its session is in the conversation's directory, and the process in one that is nobody's.
        assert str(tmp_path / "elsewhere") in answer(found)
        assert harness.log.received("session/new")[-1]["params"]["cwd"] == str(tmp_path / "elsewhere")
        assert [event["kind"] for event in found if "Error" in event["kind"]] == []
        # Each process was asked to initialize once, and the third one waits by now.
        await spare_of(harness)
        assert len(harness.log.pids()) == len(harness.log.received("initialize")) == 3
        await turn(second, "and again")
        assert ready_pid(second) == pid
    assert not any(map(alive, harness.log.pids()))
    assert not list((tmp_path / "data").glob("spare-*"))


async def test_what_the_agent_asks_for_is_served_in_the_workspace_of_the_conversation(
    tmp_path: Path, catalog: dict[str, Any]
) -> None:
    catalog[KEY] = attrs.evolve(catalog[KEY], fs=True, terminal=True)
    async with opened(tmp_path) as harness:
        await turn(await begun(harness), "hello")
        await spare_of(harness)
        second = await begun(harness, where="elsewhere", confirmation_policy={"kind": "NeverConfirm"})
        await turn(second, "!fswrite made.txt words\n!text done")
        assert harness.supervisor.figures().warm_used_total == 1
        assert (tmp_path / "elsewhere" / "made.txt").read_text() == "words"
        assert "elsewhere" in answer(await turn(second, "!terminal pwd"))


async def test_secrets_of_the_conversation_are_masked_in_the_words_of_a_spare(tmp_path: Path) -> None:
    async with opened(tmp_path, secrets={"TOKEN": "all-know-this-0"}) as harness:
        await turn(await begun(harness), "hello")
        await spare_of(harness)
        second = await begun(harness, where="all-know-this-0")
        said = answer(await turn(second, "!text it is all-know-this-0 indeed"))
        assert harness.supervisor.figures().warm_used_total == 1
        assert "all-know-this-0" not in said


@pytest.mark.guarantee(name="there-is-room-or-a-word-about-it")
@pytest.mark.parametrize("how", ["secret", "variable", "command", "home", "limits", "lookup of nothing"])
async def test_whoever_has_something_of_its_own_gets_a_process_of_its_own(tmp_path: Path, how: str) -> None:
    async with opened(tmp_path) as harness:
        await turn(await begun(harness), "hello")
        (spare,) = await spare_of(harness)
        fields: dict[str, Any] = {
            "secret": {"secrets": {"OWN_TOKEN": "sesame-open-1"}},
            "variable": {"settings": {"acp_env": {"COLOUR": "green"}}},
            "home": {"settings": {"acp_home": "own"}},
            "limits": {"settings": {"acp_limits": AgentLimits(open_files=500)}},
        }.get(how, {})
        modes = ["version=2"] if how == "command" else []
        second = await begun(harness, *modes, **fields)
        await turn(second, "hello")
        same = how == "lookup of nothing"
        assert (ready_pid(second) == pid_of(spare)) is same
        if how in ("secret", "variable", "home"):
            # Nothing of it goes into a process that may become another conversation's.
            await until(lambda: not harness.supervisor._context.warm_pool._kinds[KEY].starting)
            await trio.sleep(0.2)
            assert [pid_of(each) for each in waiting(harness)] == [pid_of(spare)]
            for pid in (pid_of(each) for each in waiting(harness)):
                shown = Path(f"/proc/{pid}/environ").read_bytes()
                assert b"sesame" not in shown
                assert b"COLOUR" not in shown


async def test_the_working_directory_counts_where_the_process_is_started_in_it(
    tmp_path: Path, catalog: dict[str, Any]
) -> None:
    catalog[KEY] = attrs.evolve(catalog[KEY], warm="directory")
    async with opened(tmp_path) as harness:
        await turn(await begun(harness, where="one"), "hello")
        (spare,) = await spare_of(harness)
        other = await begun(harness, where="two")
        await turn(other, "hello")
        assert ready_pid(other) != pid_of(spare)
        await until(lambda: [str(s.plan.cwd) for s in waiting(harness) if s.plan] == [str(tmp_path / "two")])
        (spare,) = waiting(harness)
        last = await begun(harness, where="two")
        await turn(last, "hello")
        assert ready_pid(last) == pid_of(spare)


async def test_agents_without_the_flag_have_no_spares(tmp_path: Path, catalog: dict[str, Any]) -> None:
    catalog[KEY] = attrs.evolve(catalog[KEY], warm=None)
    async with opened(tmp_path) as harness:
        await turn(await begun(harness), "hello")
        await trio.sleep(0.2)
        assert len(harness.log.pids()) == 1
        assert not harness.supervisor._context.warm_pool._kinds


async def test_zero_spares_are_none(tmp_path: Path) -> None:
    async with opened(tmp_path, 0) as harness:
        await turn(await begun(harness), "hello")
        await trio.sleep(0.2)
        assert len(harness.log.pids()) == 1


@pytest.mark.guarantee(name="there-is-room-or-a-word-about-it")
@pytest.mark.parametrize("when", ["before", "at the last moment", "stopped"])
async def test_a_spare_that_is_killed_fails_no_conversation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    # So long that a stopped one that is asked all the same is noticed here.
    async with opened(tmp_path, deadlines=attrs.evolve(QUICK, new_session=90.0)) as harness:
        await turn(await begun(harness), "hello")
        (spare,) = await spare_of(harness)
        pid = pid_of(spare)
        if when == "before":
            os.kill(pid, signal.SIGKILL)
            await until(lambda: harness.supervisor.figures().warm_lost_total == 1)
            (other,) = await spare_of(harness)
            assert pid_of(other) != pid
        elif when == "stopped":
            os.kill(pid, signal.SIGSTOP)
            # It is stopped once it has run so far.
            await until(lambda: state_of(pid) == "T", "the stop")
        else:
            runs = WarmProcess.runs

            async def killed_just_then(self: WarmProcess) -> bool:
                fit = await runs(self)
                os.kill(pid_of(self), signal.SIGKILL)
                return fit

            monkeypatch.setattr(WarmProcess, "runs", killed_just_then)
        second = await begun(harness)
        found = await turn(second, "hello")
        assert ready_pid(second) != pid
        assert [event["kind"] for event in await events(second) if "Error" in event["kind"]] == []
        assert "hello" in answer(found)
        assert second.record.now.failed_restores == 0
        assert second.agent.restarts.count == 0
        await until(lambda: not alive(pid), "the end of the spare")


async def test_a_spare_that_dies_all_the_time_is_not_started_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_pool, "DEATH_PAUSE_SECONDS", 0.001)
    async with opened(tmp_path) as harness:
        first = await begun(harness)
        await turn(first, "hello")
        for count in range(1, warm_pool.DEATHS_MAX + 1):
            (spare,) = await spare_of(harness)
            os.kill(pid_of(spare), signal.SIGKILL)
            await until(lambda count=count: harness.supervisor.figures().warm_lost_total == count)
        await trio.sleep(0.3)
        assert not harness.supervisor._context.warm_pool.waiting
        await turn(await begun(harness), "hello")  # used again
        await spare_of(harness)


async def test_an_agent_that_does_not_initialize_alone_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(warm_pool, "DEATH_PAUSE_SECONDS", 0.001)
    async with opened(tmp_path) as harness:
        home = harness.root / "scripted-home"
        marker = harness.root / "mean"
        command = ["/bin/sh", "-c", f'test -e {marker} && exit 3; exec "$@"', "sh"]
        command += scripted_command(log=harness.root / "scripted.log", home=home)
        request = StartRequest(
            working_dir=str(harness.root / "workspace"),
            agent=AgentSettings(acp_server=KEY, acp_command=tuple(command)),
            spelled_out=True,
            event_vocabulary=Vocabulary.EXTENDED,
        )
        conversation, _ = await harness.supervisor.create(request)
        await turn(conversation, "hello")
        (spare,) = await spare_of(harness)
        marker.touch()
        os.kill(pid_of(spare), signal.SIGKILL)
        await until(lambda: harness.supervisor.figures().warm_lost_total == warm_pool.DEATHS_MAX)
        assert "hello" in answer(await turn(conversation, "hello"))


@pytest.mark.guarantee(name="there-is-room-or-a-word-about-it")
async def test_changed_secrets_replace_the_spare(tmp_path: Path) -> None:
    async with opened(tmp_path, secrets={"TOKEN": "first-value-0"}) as harness:
        await turn(await begun(harness), "hello")
        (spare,) = await spare_of(harness)
        harness.secrets["TOKEN"] = "second-value-0"
        await until(lambda: waiting(harness) and waiting(harness)[0] is not spare, "another spare")
        await until(lambda spare=spare: not alive(pid_of(spare)), "the end of the first")
        (spare,) = await spare_of(harness)
        second = await begun(harness)
        await turn(second, "hello")
        assert ready_pid(second) == pid_of(spare)
        assert b"TOKEN=second-value-0" in Path(f"/proc/{pid_of(spare)}/environ").read_bytes()


async def test_changed_settings_replace_the_spare(tmp_path: Path) -> None:
    async with opened(tmp_path) as harness:
        command = scripted_command(log=tmp_path / "scripted.log", home=tmp_path / "scripted-home")
        body = {"acp_server": KEY, "acp_command": command, "acp_env": {"COLOUR": "green"}}
        await harness.settings.patch({"agent_settings_diff": body})
        agent = await harness.supervisor._default_agent()
        assert agent.acp_server == KEY

        async def start() -> Conversation:
            request = StartRequest(working_dir=str(tmp_path / "w"), event_vocabulary=Vocabulary.EXTENDED)
            conversation, _ = await harness.supervisor.create(request)
            await turn(conversation, "hello")
            return conversation

        await start()
        (spare,) = await spare_of(harness)
        assert b"COLOUR=green" in Path(f"/proc/{pid_of(spare)}/environ").read_bytes()
        await harness.settings.patch({"agent_settings_diff": {"acp_env": {"COLOUR": "red"}}})
        await until(lambda: waiting(harness) and waiting(harness)[0] is not spare, "another spare")
        (spare,) = waiting(harness)
        assert ready_pid(await start()) == pid_of(spare)
        assert b"COLOUR=red" in Path(f"/proc/{pid_of(spare)}/environ").read_bytes()


async def test_an_old_spare_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with opened(tmp_path) as harness:
        await turn(await begun(harness), "hello")
        (spare,) = await spare_of(harness)
        await trio.sleep(0.2)
        assert waiting(harness) == [spare]
        spare.born -= warm_pool.AGE_SECONDS
        await until(lambda: waiting(harness) and waiting(harness)[0] is not spare, "another spare")
        await until(lambda spare=spare: not alive(pid_of(spare)), "the end of the first")


async def test_a_spare_starts_after_a_pause_and_later_with_each_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock
) -> None:
    monkeypatch.setattr(warm_pool, "PAUSE_SECONDS", 2.0)
    monkeypatch.setattr(warm_pool, "LOOK_SECONDS", 1000.0)

    async def quiet(started: int) -> None:
        for _ in range(20):
            await trio.to_thread.run_sync(time.sleep, 0.005)
        assert len(harness.log.pids()) == started

    async with opened(tmp_path, clock=mock_clock) as harness:
        await turn(await begun(harness), "hello")
        await quiet(1)
        mock_clock.jump(1.9)
        await quiet(1)
        mock_clock.jump(0.2)
        (spare,) = await spare_of(harness)
        for pause in (2.0, 4.0, 8.0):
            started = len(harness.log.pids())
            os.kill(pid_of(spare), signal.SIGKILL)
            await until(lambda spare=spare: spare.gone.is_set(), "the loss of the spare")
            await quiet(started)
            mock_clock.jump(pause - 0.1)
            await quiet(started)
            mock_clock.jump(0.2)
            (spare,) = await spare_of(harness)
        # A spare is as old as the clock says.
        mock_clock.jump(warm_pool.AGE_SECONDS - 8)
        await quiet(5)
        assert waiting(harness) == [spare]
        mock_clock.jump(1000.0)
        await until(lambda: spare.gone.is_set(), "the end of the old spare")


@pytest.mark.guarantee(name="there-is-room-or-a-word-about-it")
async def test_a_spare_makes_room_and_never_takes_the_last_place(tmp_path: Path) -> None:
    async with opened(tmp_path, limits=Limits(agents=3)) as harness:
        first = await begun(harness)
        await turn(first, "hello")
        (spare,) = await spare_of(harness)
        # Two more that the spare does not fit: it ends for the second of them.
        others = [await begun(harness, f"version={number}") for number in (2, 3)]
        for other in others:
            await turn(other, "hello")
        await until(lambda: not alive(pid_of(spare)), "the end of the spare")
        assert first.agent.live
        await trio.sleep(0.2)
        assert not harness.supervisor._context.warm_pool.waiting
        assert harness.supervisor.figures().live_agents == 3


@pytest.mark.guarantee(name="there-is-room-or-a-word-about-it")
async def test_a_full_house_lets_a_conversation_have_the_spare(tmp_path: Path) -> None:
    async with opened(tmp_path, limits=Limits(agents=3)) as harness:
        first = await begun(harness)
        await turn(first, "hello")
        (spare,) = await spare_of(harness)
        harness.supervisor._context.admission.limits = Limits(agents=2)
        second = await begun(harness)
        await turn(second, "hello")
        assert ready_pid(second) == pid_of(spare)
        assert first.agent.live


@pytest.mark.guarantee(name="there-is-room-or-a-word-about-it")
@pytest.mark.parametrize("whose", ["agents", "machine"])
async def test_short_memory_ends_the_spare_and_starts_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    async with opened(tmp_path) as harness:
        await turn(await begun(harness), "hello")
        (spare,) = await spare_of(harness)
        if whose == "agents":
            harness.supervisor._context.admission.limits = Limits(memory_bytes=1)
            await spare.measure()
        else:
            monkeypatch.setattr(warm_pool, "memory_left", lambda: warm_pool.LEFT_BYTES - 1)
        await until(lambda: not alive(pid_of(spare)), "the end of the spare")
        await trio.sleep(0.3)
        assert not harness.supervisor._context.warm_pool.waiting
        assert len(harness.log.pids()) == 2


class Forking:
    """Parents and spares that are no processes: `parents` that were started, and what they take of `left`."""

    PARENT, SPARE = 330 * 2**20, 20 * 2**20

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parents: list[ForkParent] = []
        self.left = 2**40
        self.living = 0
        self.broken: Exception | None = None
        forking = self

        async def run(parent: ForkParent, plan: Plan, *_: Any) -> None:
            forking.parents.append(parent)
            try:
                if forking.broken is not None:
                    raise forking.broken
                parent.forker = cast("Any", SimpleNamespace(usable=True, process=SimpleNamespace(pid=1)))
                parent.rss_bytes = forking.PARENT
                parent.decided.set()
                forking.living += forking.PARENT
                try:
                    await trio.sleep_forever()
                finally:
                    forking.living -= forking.PARENT
            finally:
                parent.decided.set()

        async def measure(_: Any, seen: Any = None) -> None:
            """They take what they take."""

        async def wait(
            spare: WarmProcess, plan: Plan, stop: Any, waits: Any, of: Any, ready: Any, by: Any
        ) -> None:
            spare.initialized, spare.rss_bytes = cast("Any", object()), forking.SPARE
            ready()
            forking.living += forking.SPARE
            try:
                await trio.sleep_forever()
            finally:
                forking.living -= forking.SPARE

        monkeypatch.setattr(warm_pool, "can_fork", lambda: True)
        monkeypatch.setattr(planning, "can_fork", lambda: True)
        monkeypatch.setattr(warm_pool, "parent_command", lambda plan: ["parent"])
        monkeypatch.setattr(ForkParent, "run", run)
        monkeypatch.setattr(ForkParent, "measure", measure)
        monkeypatch.setattr(WarmProcess, "measure", measure)
        monkeypatch.setattr(WarmProcess, "wait", wait)
        monkeypatch.setattr(warm_pool, "memory_left", lambda: forking.left - forking.living)


@pytest.fixture
def forking(monkeypatch: pytest.MonkeyPatch, catalog: dict[str, Any]) -> Forking:
    catalog[KEY] = attrs.evolve(catalog[KEY], forks="parent.py")
    return Forking(monkeypatch)


@pytest.mark.guarantee(name="there-is-room-or-a-word-about-it")
@pytest.mark.parametrize("whose", ["agents", "machine", "others'"])
async def test_where_memory_is_short_parents_are_not_started_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock, forking: Forking, whose: str
) -> None:
    monkeypatch.setattr(warm_pool, "LOOK_SECONDS", 10.0)
    async with opened(tmp_path, clock=mock_clock) as harness:
        pool, admitted = harness.supervisor._context.warm_pool, harness.supervisor._context.admission
        await turn(await begun(harness), "hello")
        await until(lambda: [s for s in pool.waiting if s.initialized] != [], "a spare that is ready")
        assert len(forking.parents) == 1
        room = (forking.PARENT + forking.SPARE) * 9 // 10  # for less than the two of them
        if whose == "agents":
            rss = sum(t.rss_bytes for t in admitted._tenants - admitted._warm)
            admitted.limits = Limits(memory_bytes=rss + room)
        elif whose == "machine":
            forking.left = warm_pool.LEFT_BYTES + room
        else:
            # Enough for them, until they run: somebody else takes it then.
            monkeypatch.setattr(warm_pool, "memory_left", lambda: 0 if forking.living else 2**40)
        for _ in range(60):
            mock_clock.jump(10.0)
            for _ in range(4):
                await trio.to_thread.run_sync(time.sleep, 0.002)
        assert not pool.waiting
        assert len(forking.parents) <= (1 if whose != "others'" else 7)  # ten minutes, and the pause doubles


@pytest.mark.parametrize("agents", [3, 4])
async def test_a_spare_and_its_parent_together_leave_a_place(
    tmp_path: Path, forking: Forking, agents: int
) -> None:
    async with opened(tmp_path, limits=Limits(agents=agents)) as harness:
        pool = harness.supervisor._context.warm_pool
        await turn(await begun(harness), "hello")
        if agents == 4:
            await until(lambda: [s for s in pool.waiting if s.initialized] != [], "a spare that is ready")
        else:
            await trio.sleep(0.3)
        assert len(forking.parents) == len(pool.waiting) == agents - 3


async def test_parents_that_never_get_ready_are_tried_later_and_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mock_clock: MockClock, forking: Forking
) -> None:
    monkeypatch.setattr(warm_pool, "LOOK_SECONDS", 1000.0)
    forking.broken = SpawnError("it has threads")
    async with opened(tmp_path, clock=mock_clock) as harness:
        pool = harness.supervisor._context.warm_pool

        async def another_spare() -> int:
            for spare in pool.waiting:
                spare.scope.cancel()
                await spare.gone.wait()
            await until(lambda: [s for s in pool.waiting if s.initialized] != [], "a spare")
            assert not pool.parents
            return len(forking.parents)

        await turn(await begun(harness), "hello")
        found = [await another_spare() for _ in range(4)]
        assert found == [1, 1, 1, 1]  # a parent for the first alone, a spare each time
        for pause, tried in ((60, 2), (60, 2), (60, 3), (239, 3), (1, 4)):
            mock_clock.jump(pause + 0.01)
            assert await another_spare() == tried
        kind = pool._kinds[KEY]
        assert kind.need == (forking.SPARE, 1)  # what a spare takes that nobody forks
        kind.refusals = 1000
        mock_clock.jump(warm_pool.AGE_SECONDS)
        await another_spare()
        mock_clock.jump(warm_pool.AGE_SECONDS)
        forking.broken = None
        for spare in pool.waiting:
            spare.scope.cancel()
        await until(lambda: [p.usable for p in pool.parents] == [True], "a parent")
        assert (kind.refusals, kind.forks) == (0, True)


async def test_a_fault_at_the_end_of_a_spare_does_not_take_the_place_of_a_cancellation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait = WarmProcess.wait

    async def faulty(self: WarmProcess, *args: Any) -> None:
        try:
            await wait(self, *args)
        finally:
            if self.taken:
                raise RuntimeError("a fault at its end")

    monkeypatch.setattr(WarmProcess, "wait", faulty)
    async with opened(tmp_path) as harness:
        await turn(await begun(harness), "hello")
        (spare,) = await spare_of(harness)
        second = await begun(harness)
        await turn(second, "hello")
        assert ready_pid(second) == pid_of(spare)
        plan = second.agent.current.plan  # type: ignore[union-attr]
        assert plan.own is None
        take_over, seen = WarmProcess.take_over, []
        (other,) = await spare_of(harness)

        async def hold() -> None:
            try:
                async with take_over(other, plan, second.agent._handler):  # type: ignore[arg-type]
                    await trio.sleep_forever()
            except BaseException as error:
                seen.append(error)
                raise

        other.taken = True
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold)
            await until(lambda: other._taker is not None, "a conversation that has it")
            nursery.cancel_scope.cancel()
        assert other._failure is not None
        assert not [each for each in seen if isinstance(each, RuntimeError)]
        await harness.supervisor.delete(second.id)


@pytest.mark.guarantee(name="there-is-room-or-a-word-about-it")
async def test_a_hundred_conversations_share_no_spare(tmp_path: Path) -> None:
    async with opened(tmp_path, 3) as harness:
        await turn(await begun(harness), "hello")
        ready = {pid_of(spare) for spare in await spare_of(harness, 3)}
        many = [await begun(harness, where=f"w{number}") for number in range(everyday(12, 30))]
        async with trio.open_nursery() as nursery:
            for each in many:
                nursery.start_soon(turn, each, "hello")
        pids = [ready_pid(each) for each in many]
        assert len(set(pids)) == len(many)
        assert ready <= set(pids)
        sessions = [message["params"]["cwd"] for message in harness.log.received("session/new")]
        assert len(set(sessions)) == len(sessions) == len(many) + 1


async def test_a_used_spare_crashes_and_comes_back_as_every_agent(tmp_path: Path) -> None:
    async with opened(tmp_path) as harness:
        await turn(await begun(harness), "hello")
        (spare,) = await spare_of(harness)
        second = await begun(harness)
        await turn(second, "hello")
        assert ready_pid(second) == pid_of(spare)
        os.kill(pid_of(spare), signal.SIGKILL)
        await until(lambda: ready_pid(second) not in (None, pid_of(spare)), "a restart")
        assert second.agent.restarts.count == 1
        assert harness.supervisor.figures().warm_lost_total == 0
        assert "hello" in answer(await turn(second, "hello"))


@pytest.mark.guarantee(name="nothing-survives")
async def test_deleting_and_stopping_end_a_spare_that_is_used(tmp_path: Path) -> None:
    async with opened(tmp_path) as harness:
        first = await begun(harness)
        await turn(first, "hello")
        (spare,) = await spare_of(harness)
        second = await begun(harness)
        await turn(second, "!spawn session\n!text done")
        (child,) = harness.log.children()
        await harness.supervisor.delete(second.id)
        assert not alive(pid_of(spare))
        assert not alive(child)
        # The one that waits is nobody's: deleting conversations leaves it alone.
        (left,) = await spare_of(harness)
        await harness.supervisor.delete(first.id)
        assert waiting(harness) == [left]
        third = await begun(harness)
        await turn(third, "hello")
        assert ready_pid(third) == pid_of(left)
        await harness.supervisor.stop_agent(third.id)
        assert not alive(pid_of(left))


async def test_hibernated_agents_come_back_in_a_spare_with_their_session(tmp_path: Path) -> None:
    async with opened(tmp_path) as harness:
        first = await begun(harness)
        await turn(first, "hello")
        (spare,) = await spare_of(harness)
        await first.agent.hibernate("a test")
        found = await turn(first, "hello")
        assert ready_pid(first) == pid_of(spare)
        assert first.record.reported.agent_state["memory"] in ("resumed", "loaded")
        assert "ConversationErrorEvent" not in kinds(found)


async def test_the_end_of_the_server_gives_them_up(tmp_path: Path) -> None:
    async with opened(tmp_path) as harness:
        first = await begun(harness)
        await turn(first, "hello")
        (spare,) = await spare_of(harness)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(harness.supervisor.close)
        await until(lambda: not alive(pid_of(spare)), "the end of the spare")
        assert not harness.supervisor._context.warm_pool.waiting


@pytest.mark.guarantee(name="there-is-room-or-a-word-about-it")
@pytest.mark.parametrize("error", [PermissionError(13, "Permission denied"), RuntimeError("a fault")])
async def test_a_directory_that_cannot_be_removed_harms_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    remove = homes._remove
    refused: list[str] = []

    def refuse(directory: Path) -> None:
        if directory.name in kept:
            refused.append(directory.name)
            raise error
        remove(directory)

    async with opened(tmp_path) as harness:
        first = await begun(harness)
        await turn(first, "hello")
        (spare,) = await spare_of(harness)
        kept = {spare.name}
        monkeypatch.setattr(homes, "_remove", refuse)
        os.kill(pid_of(spare), signal.SIGKILL)
        await until(lambda: refused == [spare.name], "the end of the spare")
        await until(lambda: waiting(harness) and waiting(harness)[0] is not spare, "another spare")
        assert "again" in answer(await turn(first, "again"))


@pytest.mark.guarantee(name="there-is-room-or-a-word-about-it")
async def test_what_cannot_be_removed_does_not_keep_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove = homes._remove

    def refuse(directory: Path) -> None:
        if directory.name in first:
            raise PermissionError(13, "Permission denied", str(directory))
        remove(directory)

    async with opened(tmp_path) as harness:
        data = tmp_path / "data"
        left = [data / f"{warm_pool.WARM_PREFIX}{number}" for number in range(3)]
        for each in left:
            (each / "workspace").mkdir(parents=True)
        first = [next(data.glob(f"{warm_pool.WARM_PREFIX}*")).name]
        monkeypatch.setattr(homes, "_remove", refuse)
        await harness.supervisor._context.launcher.files.forget_warm()
        assert [each.name for each in left if each.exists()] == first


@pytest.mark.guarantee(name="there-is-room-or-a-word-about-it")
@pytest.mark.parametrize("when", ["planned", "planned again"])
async def test_a_conversation_that_is_deleted_while_it_starts_keeps_no_spare(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    async with opened(tmp_path) as harness:
        await turn(await begun(harness), "hello")
        second = await begun(harness)
        await turn(second, "hello")
        await second.stop_agent()
        (spare,) = await spare_of(harness)
        plan, plans = second.agent._plan, 0
        inside, gate, ended = trio.Event(), trio.Event(), trio.Event()

        async def slow(install: float) -> Plan:
            nonlocal plans
            plans += 1
            made = await plan(install)

            async def end() -> None:
                await made.ended()
                ended.set()

            if plans == (1 if when == "planned" else 2):
                inside.set()
                await gate.wait()
                return attrs.evolve(made, ended=end)
            return made

        async def unready(run: Incarnation) -> bool:
            run.asked = AgentPhase.STARTING
            run.scope.cancel()
            await run.gone.wait()
            return False

        monkeypatch.setattr(second.agent, "_plan", slow)
        if when == "planned again":
            monkeypatch.setattr(second.agent, "_make_ready_untried", unready)
        failures: list[Exception] = []

        async def restart() -> None:
            try:
                await second.restart_agent(force=True)
            except Exception as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(restart)
            await inside.wait()
            await harness.supervisor.delete(second.id)
            gate.set()
        (failure,) = failures
        assert isinstance(failure, AgentFailure)
        assert failure.retryable
        assert ended.is_set()
        assert harness.supervisor._context.admission.live == 1 + harness.supervisor.figures().warm_processes
        if when == "planned":
            assert waiting(harness) == [spare]
        else:
            await until(lambda: not alive(pid_of(spare)), "the end of the spare")


@pytest.mark.guarantee(name="there-is-room-or-a-word-about-it")
async def test_a_spare_that_no_conversation_could_take_over_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(tmp_path) as harness:
        await turn(await begun(harness), "hello")
        second = await begun(harness)
        (spare,) = await spare_of(harness)

        def refuse(*_: Any) -> None:
            raise AgentFailure("ACPSpawnError", "no place")

        monkeypatch.setattr(admission.Admission, "succession", refuse)
        await second.send(say("hello"), run=True)
        await until(lambda: not alive(pid_of(spare)), "the end of the spare")


async def test_warm_processes_are_listed_with_their_figures(tmp_path: Path) -> None:
    async with opened(tmp_path) as harness:
        assert await harness.supervisor.warm_processes() == []
        await turn(await begun(harness), "hello")
        (spare,) = await spare_of(harness)
        (view,) = await harness.supervisor.warm_processes()
        assert (view.provider, view.pid, view.ready, view.name) == (
            KEY,
            pid_of(spare),
            True,
            "scripted-agent",
        )
        assert view.rss_bytes > 0
        assert view.processes == 1
        assert harness.supervisor._context.admission.rss_bytes >= view.rss_bytes
        assert len(await harness.supervisor.agents()) == 1


def test_memory_that_is_left(tmp_path: Path) -> None:
    assert admission.memory_left(tmp_path) is None
    proc, group = tmp_path / "proc", tmp_path / "sys/fs/cgroup"
    proc.mkdir()
    group.mkdir(parents=True)
    (proc / "meminfo").write_text("MemTotal: 9000 kB\nMemAvailable: 4000 kB\n")
    assert admission.memory_left(tmp_path) == 4000 * 1024
    (group / "memory.max").write_text("max\n")
    (group / "memory.current").write_text("500\n")
    (group / "memory.stat").write_text("anon 400\ninactive_file 100\n")
    assert admission.memory_left(tmp_path) == 4000 * 1024
    (group / "memory.max").write_text("2000\n")
    assert admission.memory_left(tmp_path) == 1600
