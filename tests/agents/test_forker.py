"""Processes that a running program forks are contained as those that are started."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from supervisor.agents import builtin as builtin_package
from supervisor.agents.containment.containment import open_containment
from supervisor.agents.containment.levels import Level
from supervisor.agents.containment.process_tag import read_tag
from supervisor.agents.containment.tree import shared_bytes
from supervisor.agents.endings import StopPolicy
from supervisor.agents.environment import MARKER
from supervisor.agents.errors import SpawnError
from supervisor.agents.limits.values import AgentLimits
from supervisor.agents.process import AgentProcess, spawn
from supervisor.agents.spawning import spawning
from supervisor.agents.spawning.forker import Forker, open_forker
from supervisor.conversations.agent.warm.fork_parent import ForkParent
from tests.conversations.harness import until
from tests.support.processes import alive

PARENT = Path(builtin_package.__file__).with_name("parent.py")

PROGRAM = """
import gc, os, sys, threading, time
QUIET = {"QUIETED": "1"}
CONTENT = None

def _import_sdk():
    global CONTENT
    if os.environ.get("CLUMSY"):
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    if os.environ.get("BROKEN"):
        raise ImportError("a module is missing")
    CONTENT = bytes(range(256)) * 4 * 4 * 10000  # 40 MB that are shared
    if os.environ.get("MANY"):
        CONTENT = [[number] for number in range(300000)]  # 30 MB of objects

def main():
    for line in sys.stdin:
        word, _, rest = line.strip().partition(" ")
        if word == "exit":
            sys.exit(int(rest))
        if word == "env":
            print(os.environ.get(rest), flush=True)
        if word == "where":
            print(os.getcwd(), os.getsid(0), os.getpgid(0), os.getppid(),
                  len(CONTENT), sys.argv[1:], flush=True)
        if word == "child":
            pid = os.spawnlp(os.P_NOWAIT, "setsid", "setsid", "sleep", "600")
            print(pid, flush=True)
        if word == "collect":
            print(gc.collect(), flush=True)
        if word == "limits":
            import resource
            print(resource.getrlimit(resource.RLIMIT_NOFILE)[1],
                  resource.getrlimit(resource.RLIMIT_DATA)[1], flush=True)
        if word == "files":
            print(sorted(os.listdir("/proc/self/fd")), flush=True)
    return 0
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    directory = tmp_path / "program"
    directory.mkdir()
    for name in ("parent.py", "__main__.py"):
        shutil.copy(PARENT.with_name(name), directory / name)
    (directory / "__init__.py").touch()
    (directory / "program.py").write_text(PROGRAM)
    return directory


@asynccontextmanager
async def forking(program: Path, **env: str) -> AsyncIterator[Forker]:
    state = program.parent / "state"
    state.mkdir(exist_ok=True)
    async with open_containment(state, Level.TREE):
        argv = [sys.executable, str(program / "parent.py"), "--an", "argument"]
        given = {"PATH": "/usr/bin:/bin", **env}
        async with open_forker(argv, cwd=state, env=given, stop=StopPolicy(), seconds=10) as forker:
            yield forker


def forked(forker: Forker, where: Path, **env: str):
    argv = [sys.executable, "program", "--an", "argument"]
    return spawn(argv, cwd=where, env={"PATH": "/usr/bin:/bin", **env}, by=forker)


async def ask(process: AgentProcess, line: str) -> str:
    await process.stdin.send_all(line.encode() + b"\n")
    with trio.fail_after(20):
        return (await process.stdout.receive_some(65536)).decode().strip()


def environ(pid: int) -> dict[str, str]:
    entries = Path(f"/proc/{pid}/environ").read_text().split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


async def test_a_fork_has_the_limits_of_its_agent(program: Path, tmp_path: Path) -> None:
    limits = AgentLimits(open_files=33, memory=512 * 1024 * 1024)
    argv = [sys.executable, "program", "--an", "argument"]
    async with (
        forking(program) as forker,
        spawn(argv, cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, by=forker, limits=limits) as process,
        forked(forker, tmp_path) as other,
    ):
        assert process.forked
        assert await ask(process, "limits") == f"33 {512 * 1024 * 1024}"
        assert await ask(other, "limits") != f"33 {512 * 1024 * 1024}"


@pytest.mark.guarantee(name="nothing-survives")
async def test_a_fork_is_a_process_of_its_own(program: Path, tmp_path: Path) -> None:
    async with forking(program) as forker, forked(forker, tmp_path, COLOUR="red") as one:
        async with forked(forker, tmp_path, COLOUR="green") as two:
            assert one.forked
            pids = {forker.process.pid, one.pid, two.pid}
            assert len(pids) == 3
            # Known as the server's child, in its own session, under its own tag and marker, as every agent.
            said = f"{tmp_path} {one.pid} {one.pid} {os.getpid()} 40960000 ['--an', 'argument']"
            assert await ask(one, "where") == said
            assert [await ask(each, "env COLOUR") for each in (one, two)] == ["red", "green"]
            assert await ask(one, "env QUIETED") == "None"
            assert await ask(one, f"env {MARKER}") == one.marker
            assert len({read_tag(pid) for pid in pids}) == 3
            assert [environ(pid)[MARKER] for pid in (one.pid, two.pid)] == [one.marker, two.marker]
            assert environ(forker.process.pid)[MARKER] == forker.process.marker
            assert await ask(one, "files") == str(["0", "1", "2", "3"])  # and the directory that it lists
        # It shares what was imported, half of it with its parent, and only its own part counts. The rest is
        # the interpreter, whose size is another one for each version and build of Python.
        assert shared_bytes(one.pid) > 20_000_000
        resident = int(Path(f"/proc/{one.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        assert 0 < (await one.usage()).rss_bytes < resident - 20_000_000


async def test_a_collection_in_a_fork_copies_nothing_of_its_parent(program: Path, tmp_path: Path) -> None:
    async with (
        forking(program, MANY="1") as forker,
        forked(forker, tmp_path, MANY="1") as process,
    ):
        assert process.forked
        await ask(process, "collect")
        # It would write into each object that it visits, and so copy 30 MB.
        lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        (copied,) = [int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:")]
        assert copied < 10_000  # KB


@pytest.mark.guarantee(name="nothing-survives")
async def test_its_end_and_its_whole_tree_are_known_to_the_server(program: Path, tmp_path: Path) -> None:
    async with forking(program) as forker:
        async with forked(forker, tmp_path) as process:
            child = int(await ask(process, "child"))
            assert (await process.usage()).processes == 2
            await process.stdin.send_all(b"exit 7\n")
            status = await process.wait()
            assert (status.code, status.signal) == (7, None)
            assert alive(child)
        assert not alive(child)
        async with forked(forker, tmp_path) as process:
            os.kill(process.pid, signal.SIGKILL)
            assert (await process.wait()).signal == signal.SIGKILL
        assert not list(Path("/proc").glob(f"{process.pid}/stat"))
        assert forker.usable


@pytest.mark.guarantee(name="nothing-survives")
async def test_the_program_that_forked_may_end_before_and_after(program: Path, tmp_path: Path) -> None:
    async with forking(program) as forker, forked(forker, tmp_path, COLOUR="red") as process:
        os.kill(forker.process.pid, signal.SIGKILL)
        await forker.process.wait()
        assert await ask(process, "env COLOUR") == "red"
        # Whoever starts now gets a process all the same: it is started.
        async with spawn(["/bin/cat"], cwd=tmp_path, env={"PATH": "/usr/bin:/bin"}, by=forker) as other:
            assert not other.forked
            assert await ask(other, "hello") == "hello"
        assert await ask(process, "env COLOUR") == "red"
    assert not alive(process.pid)


async def test_stopping_the_program_that_forked_spares_its_forks(program: Path, tmp_path: Path) -> None:
    async with open_containment(tmp_path, Level.TREE):
        argv = [sys.executable, str(program / "parent.py")]
        async with trio.open_nursery() as nursery:
            held = trio.Event()

            async def hold(task_status: trio.TaskStatus[Forker]) -> None:
                env = {"PATH": "/usr/bin:/bin"}
                async with open_forker(argv, cwd=tmp_path, env=env, stop=StopPolicy(), seconds=10) as forker:
                    task_status.started(forker)
                    await held.wait()

            forker = await nursery.start(hold)
            async with forked(forker, tmp_path, COLOUR="red") as process:
                held.set()
                await until(lambda: not alive(forker.process.pid))
                assert await ask(process, "env COLOUR") == "red"


@pytest.mark.guarantee(name="there-is-room-or-a-word-about-it")
async def test_a_program_that_is_stopped_makes_room_for_another(
    program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawning, "ANSWER_SECONDS", 0.3)
    stop = StopPolicy(stdin_grace=0.1, term_grace=0.1, kill=5.0)
    plan: Any = SimpleNamespace(cwd=tmp_path, start_environment={"PATH": "/usr/bin:/bin"})
    parent = ForkParent("spare-1", "scripted", b"", b"key")
    ended = trio.Event()

    async def run() -> None:
        with parent.scope:
            await parent.run(plan, [sys.executable, str(program / "parent.py")], stop, 10)
        ended.set()

    async with open_containment(tmp_path, Level.TREE), trio.open_nursery() as nursery:
        nursery.start_soon(run)
        await parent.decided.wait()
        assert parent.forker is not None
        async with forked(parent.forker, tmp_path, COLOUR="red") as before:
            os.kill(parent.forker.process.pid, signal.SIGSTOP)
            env = {"PATH": "/usr/bin:/bin"}
            async with spawn(["/bin/cat"], cwd=tmp_path, env=env, by=parent.forker) as other:
                assert not other.forked
            with trio.fail_after(20):
                await ended.wait()
            assert not alive(parent.forker.process.pid)
            assert await ask(before, "env COLOUR") == "red"


@pytest.mark.parametrize(
    ("variable", "words"), [("BROKEN", "a module is missing"), ("CLUMSY", "2 threads run")]
)
async def test_a_program_that_cannot_fork_says_why(
    program: Path, tmp_path: Path, variable: str, words: str
) -> None:
    argv = [sys.executable, str(program / "parent.py")]
    async with open_containment(tmp_path, Level.TREE):
        with pytest.raises(SpawnError, match=words):
            async with open_forker(argv, cwd=tmp_path, env={variable: "1"}, stop=StopPolicy(), seconds=10):
                pass
