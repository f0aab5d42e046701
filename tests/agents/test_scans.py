"""How often all of /proc is read: once for all who wait, and once for an end."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio

from supervisor.agents.containment import marker as mark
from supervisor.agents.containment import process_tag, tree
from supervisor.agents.containment.containment import open_containment
from supervisor.agents.containment.levels import Level
from supervisor.agents.containment.marker import take_snapshot
from supervisor.agents.endings import StopPolicy, StopStep
from supervisor.agents.process import spawn
from supervisor.workspace.commands.bash import Bash, BashLimits, Command, TooManyCommands, open_bash

WAIT_S = 60.0
ENDS = 32

pytestmark = pytest.mark.skipif(not process_tag.usable(), reason="this system shows no resource limits")


class Scans:
    """Counts the reads of all of /proc, and holds them up where a test wants it."""

    def __init__(self) -> None:
        self.number = 0
        self.most_at_once = self._now = 0

    def read(self) -> tree.ProcessTable:
        self.number += 1
        self._now += 1
        self.most_at_once = max(self.most_at_once, self._now)
        try:
            return tree.process_table()
        finally:
            self._now -= 1


@pytest.fixture
async def scans(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Scans]:
    counted = Scans()
    async with open_containment(tmp_path_factory.mktemp("state"), Level.TREE):

        class Counting:
            process_table = staticmethod(counted.read)

            def __getattr__(self, name: str) -> object:
                return getattr(tree, name)

        monkeypatch.setattr(mark, "tree", Counting())
        yield counted


async def end(cwd: Path, begun: trio.Event, go: trio.Event, argv: tuple[str, ...] = ("cat",)) -> None:
    """A process that ends by itself, and is waited for."""
    stop = StopPolicy(stdin_grace=10.0)
    async with spawn(argv, cwd=cwd, env={"PATH": os.environ["PATH"]}, stop=stop) as process:
        begun.set()
        await go.wait()
        await process.stdin.aclose()
        await process.wait()


@pytest.mark.guarantee(name="clients-commands-are-bounded-and-ended")
async def test_an_end_that_leaves_nothing_takes_one_look(scans: Scans, tmp_path: Path) -> None:
    go = trio.Event()
    go.set()
    with trio.fail_after(WAIT_S):
        await end(tmp_path, trio.Event(), go)
    assert scans.number == 1


async def test_what_is_left_takes_a_look_for_each_step(scans: Scans, tmp_path: Path) -> None:
    """One that finds it, one after SIGTERM, which ends it."""
    go = trio.Event()
    go.set()
    with trio.fail_after(WAIT_S):
        await end(tmp_path, trio.Event(), go, ("sh", "-c", "setsid sleep 300 & exec cat"))
    assert scans.number == 2


@pytest.mark.guarantee(name="what-holds-how-much")
async def test_the_loop_reads_nothing_of_a_tree_that_is_ending(
    scans: Scans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not of processes that take their time after SIGTERM either: there may be thousands."""
    loop, read_entry = threading.get_ident(), tree.read_entry
    by_loop, by_threads = list[int](), list[int]()

    def counted(pid: int) -> tree.ProcessEntry | None:
        (by_loop if threading.get_ident() == loop else by_threads).append(pid)
        return read_entry(pid)

    slow = "trap 'sleep 0.3; exit' TERM; while :; do sleep 0.05; done"
    command = f'for n in 1 2 3 4 5; do setsid sh -c "{slow}" & done; sleep 0.3; exec cat'
    stop = StopPolicy(stdin_grace=10.0, term_grace=WAIT_S)
    env = {"PATH": os.environ["PATH"]}
    with trio.fail_after(WAIT_S):
        async with spawn(("sh", "-c", command), cwd=tmp_path, env=env, stop=stop) as process:
            await trio.sleep(1.0)
            monkeypatch.setattr(tree, "read_entry", counted)
            await process.stdin.aclose()
            await process.wait()
    assert process.stop_report is not None
    assert process.stop_report.step is StopStep.TERM
    assert process.stop_report.outlived >= 5
    assert len(by_threads) > 5 * 3, "they were waited for"
    assert len(by_loop) <= 2, "of the leader alone"


@pytest.mark.guarantee(name="clients-commands-are-bounded-and-ended")
async def test_ends_at_the_same_time_share_a_look(scans: Scans, tmp_path: Path) -> None:
    begun, go = [trio.Event() for _ in range(ENDS)], trio.Event()
    with trio.fail_after(WAIT_S):
        async with trio.open_nursery() as nursery:
            for each in begun:
                nursery.start_soon(end, tmp_path, each, go)
            for each in begun:
                await each.wait()
            go.set()
    # They do not end at one moment: whoever ends during a look needs the next one.
    assert 1 <= scans.number <= ENDS // 3
    assert scans.most_at_once == 1


async def test_a_look_begins_after_the_call(scans: Scans) -> None:
    """Whoever asks while one is read waits for the next, with all others that do."""
    seen = []

    async def look() -> None:
        seen.append(await take_snapshot())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(look)
        while not scans.number:
            await trio.sleep(0.0005)
        for _ in range(10):
            nursery.start_soon(look)
    assert len({id(each) for each in seen}) == scans.number <= 3
    await look()
    assert seen[-1] not in seen[:-1]


# -- commands of clients


async def started(bash: Bash, command: str, cwd: Path, seconds: int = 60) -> Command:
    """Once there is room."""
    with trio.fail_after(WAIT_S):
        while True:
            try:
                return bash.start(command, cwd=str(cwd), seconds=seconds)
            except TooManyCommands:
                await trio.sleep(0.005)


@pytest.mark.guarantee(name="clients-commands-are-bounded-and-ended")
async def test_many_short_commands_hold_up_no_end(scans: Scans, tmp_path: Path) -> None:
    """The timeout of one, and the end of what is no command, come as if there were no others."""
    async with open_bash(dict(os.environ)) as bash:
        begun, go = trio.Event(), trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end, tmp_path, begun, go)
            await begun.wait()
            for number in range(150):
                await started(bash, "true" if number % 2 else "sleep 0.01 &", tmp_path)
            at_once = bash.running
            before = scans.number
            go.set()
            late = await started(bash, "sleep 300", tmp_path, seconds=0)
        assert scans.number - before <= 6
        assert at_once <= 32
        with trio.fail_after(WAIT_S):
            await late.gone.wait()
            while bash.running:
                await trio.sleep(0.01)


@pytest.mark.guarantee(name="clients-commands-are-bounded-and-ended")
async def test_commands_count_until_nothing_is_left_of_them(
    scans: Scans, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = trio.Event()

    async def later() -> object:
        await held.wait()
        return await take_snapshot()

    monkeypatch.setattr("supervisor.agents.process.take_snapshot", later)
    async with open_bash(dict(os.environ), limits=BashLimits(commands=3)) as bash:
        three = [bash.start("true", cwd=str(tmp_path), seconds=60) for _ in range(3)]
        with trio.fail_after(WAIT_S):
            for command in three:
                await command.finished.wait()
        with pytest.raises(TooManyCommands):
            bash.start("true", cwd=str(tmp_path), seconds=60)
        held.set()
        with trio.fail_after(WAIT_S):
            for command in three:
                await command.gone.wait()
        assert bash.running == 0
        bash.start("true", cwd=str(tmp_path), seconds=60)


@pytest.mark.guarantee(name="clients-commands-are-bounded-and-ended")
async def test_what_is_in_the_background_counts_while_it_is_ended(scans: Scans, tmp_path: Path) -> None:
    """Deaf to SIGTERM, so that its end takes a second: meanwhile no other takes its place."""
    deaf = "(trap '' TERM; while :; do sleep 0.1; done) >/dev/null 2>&1 &"
    async with open_bash(dict(os.environ), limits=BashLimits(commands=2, background=2)) as bash:
        for _ in range(4):
            await started(bash, deaf, tmp_path)
        most = 0
        with trio.move_on_after(3):
            while True:
                live = list(bash._live.values())
                most = max(most, len(live))
                await trio.sleep(0.005)
        assert most <= 4
        assert sum(each.lingering and not each.asked.is_set() for each in bash._live.values()) == 2
