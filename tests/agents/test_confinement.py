"""Programs that may use little: by the spawner, by a thread, and within a namespace."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from supervisor.agents.containment import process_tag
from supervisor.agents.containment.containment import open_containment
from supervisor.agents.containment.levels import Level, obstacle
from supervisor.agents.endings import StopPolicy
from supervisor.agents.errors import SpawnError
from supervisor.agents.install.programs import ANSWER_CONFINEMENT
from supervisor.agents.process import spawn
from supervisor.agents.spawning.confinement import (
    MB,
    MORE_PROCESSES,
    Confinement,
    Reach,
    can_wall,
    memory_share,
)
from supervisor.agents.spawning.spawner import machine_threads
from supervisor.conversations.hooks import execution as hooks
from supervisor.conversations.mcp import helper as helpers

WAIT_S = 30.0

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits and walls are Linux's")

walled = pytest.mark.skipif(not can_wall(), reason="this kernel has no Landlock")

NOWHERE = Reach(runs=(Path("/usr"), Path("/lib"), Path("/lib64"), Path("/bin"), Path("/etc/ld.so.cache")))


@pytest.fixture(params=["spawner", "thread", "namespace"])
async def started(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[str]:
    """Each way in which a process is started."""
    async with AsyncExitStack() as stack:
        if request.param != "thread":
            level = Level.TREE if request.param == "spawner" else Level.PIDNS
            if not process_tag.usable() or obstacle(level, warden=False) is not None:
                pytest.skip("not on this system")
            state = tmp_path_factory.mktemp("state")
            await stack.enter_async_context(open_containment(state, level))
        yield request.param


async def shell(script: str, cwd: Path, confinement: Confinement) -> tuple[int | None, str]:
    """Exit code (negative for a signal) and output of a script."""
    said = b""
    with trio.fail_after(WAIT_S):
        async with spawn(
            ["/bin/sh", "-c", script],
            cwd=cwd,
            env={"PATH": os.environ["PATH"]},
            stop=StopPolicy(stdin_grace=0.0),
            confinement=confinement,
        ) as process:
            async for data in process.stdout:
                said += bytes(data)
            status = await process.wait()
    return (status.code if status.signal is None else -status.signal), said.decode()


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_memory_has_a_limit_for_each_process(started: str, tmp_path: Path) -> None:
    code = f"b = bytearray({64 * MB}); print(len(b))"
    take = f"{sys.executable} -I -S -c '{code}' 2>/dev/null || echo none; ulimit -d"
    small = await shell(take, tmp_path, Confinement(memory_bytes=32 * MB))
    assert small == (0, f"none\n{32 * 1024}\n")
    large = await shell(take, tmp_path, Confinement(memory_bytes=256 * MB))
    assert large == (0, f"{64 * MB}\n{256 * 1024}\n")


async def test_node_runs_within_a_limit_of_its_memory(started: str, tmp_path: Path) -> None:
    """A limit of the address space would end it at its start."""
    if shutil.which("node") is None:
        pytest.skip("there is no Node.js")
    assert await shell("node -p 1+1", tmp_path, Confinement(memory_bytes=512 * MB)) == (0, "2\n")


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_a_file_grows_to_its_limit(started: str, tmp_path: Path) -> None:
    script = "exec head -c 3000000 /dev/zero > large"
    code, _ = await shell(script, tmp_path, Confinement(file_bytes=MB))
    assert code == -signal.SIGXFSZ
    assert (tmp_path / "large").stat().st_size == MB


THREADS = """
import _thread, os, resource
if os.getuid() == 0:
    os.setuid(65534)  # the kernel limits the superuser in nothing
limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
_thread.stack_size(32768)
lock, made = _thread.allocate_lock(), 0
lock.acquire()
try:
    while made < 20000:
        _thread.start_new_thread(lock.acquire, ())
        made += 1
except RuntimeError:
    pass
print(limit, made, flush=True)
os._exit(0)
"""
"""Starts threads, which count as processes, until it may not."""


@pytest.mark.guarantee(name="repositories-with-hooks")
@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
async def test_processes_have_a_limit_that_others_do_not_use_up(started: str, tmp_path: Path) -> None:
    if os.getuid() == 0 and started == "namespace":
        pytest.skip("there is no other user in it")
    (tmp_path / "threads.py").write_text(THREADS)
    more = 64
    run = f"exec {sys.executable} -I -S threads.py"
    before = machine_threads()
    code, said = await shell(run, tmp_path, Confinement(more_processes=more))
    limit, made = map(int, said.split())
    assert code == 0
    # Others start and end meanwhile, but no thousands.
    assert more < limit < before + more + 2000
    assert more / 2 < made < limit


def test_a_lower_limit_that_is_there_stays(tmp_path: Path) -> None:
    """Also a soft one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (MB, before[1]))
    try:
        script = "grep 'file size' /proc/self/limits"
        wanted = Confinement(file_bytes=4 * MB).command(["/bin/sh", "-c", script])
        said = subprocess.run(wanted, cwd=tmp_path, capture_output=True, check=True).stdout.decode()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert said.split()[3:5] == [str(MB)] * 2


@pytest.mark.guarantee(name="clients-files-are-whole-and-bounded")
@pytest.mark.parametrize(
    "own", [hooks.CONFINEMENT, helpers.CONFINEMENT, ANSWER_CONFINEMENT], ids=["hooks", "MCP", "versions"]
)
def test_all_have_limits(own: Confinement) -> None:
    assert None not in (own.memory_bytes, own.file_bytes)
    assert own.more_processes == MORE_PROCESSES


@pytest.mark.skipif(not process_tag.usable(), reason="this system shows no resource limits")
async def test_the_tag_of_an_agent_stays(tmp_path: Path) -> None:
    """It is a limit, too (process_tag.py)."""
    limits = Confinement(memory_bytes=64 * MB, file_bytes=MB)
    (tmp_path / "state").mkdir()
    async with open_containment(tmp_path / "state", Level.TREE):
        _, said = await shell("grep 'file locks' /proc/self/limits", tmp_path, limits)
    assert "unlimited" not in said.split()[3]


@walled
async def test_nothing_else_is_within_reach(started: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/file").write_text("inside\n")
    (tmp_path / "in/run").write_text("#!/bin/sh\necho ran\n")
    (tmp_path / "in/run").chmod(0o755)
    (tmp_path / "out").mkdir()
    (tmp_path / "out/file").write_text("outside\n")
    (tmp_path / "in/link").symlink_to(tmp_path / "out/file")
    (tmp_path / "own").mkdir()
    reach = reaching(reads=(tmp_path / "in",), writes=(tmp_path / "own", Path("/dev/null")))
    script = """
        cat in/file
        for each in in/link out/file; do cat $each || echo no $each; done
        ls out || echo no list
        in/run || echo no run
        echo x > in/new || echo no new
        echo x > own/new && cat own/new
        mv own/new own/moved && echo moved
    """
    code, said = await shell(f"exec 2>/dev/null; {script}", tmp_path, Confinement(reach=reach))
    told = ["inside", "no in/link", "no out/file", "no list", "no run", "no new", "x", "moved"]
    assert (code, said.split("\n")) == (0, [*told, ""])


@walled
async def test_a_link_that_stands_there_by_now_leads_nowhere(started: str, tmp_path: Path) -> None:
    (tmp_path / "out/w").mkdir(parents=True)
    (tmp_path / "out/w/file").write_text("outside\n")
    (tmp_path / "in").symlink_to(tmp_path / "out")
    reach = reaching(reads=(tmp_path / "in/w",), writes=(tmp_path / "in",))
    confinement = Confinement(reach=reach)
    if started == "spawner":
        with pytest.raises(SpawnError):
            await shell("cat in/w/file", tmp_path, confinement)
    else:
        code, said = await shell("cat in/w/file", tmp_path, confinement)
        assert (code != 0, said) == (True, "")


def reaching(*, reads: tuple[Path, ...], writes: tuple[Path, ...]) -> Reach:
    return Reach(runs=NOWHERE.runs, reads=reads, writes=writes)


@pytest.mark.parametrize(
    ("files", "share"),
    [
        ({}, 5000),
        ({"proc/meminfo": "MemTotal: 1000 kB\n"}, 5000),
        ({"proc/meminfo": "MemTotal: 8 kB\n"}, 2048),
        ({"proc/meminfo": "MemTotal: 1000 kB\n", "sys/fs/cgroup/memory.max": "1000\n"}, 250),
        ({"proc/meminfo": "MemTotal: 8 kB\n", "sys/fs/cgroup/memory.max": "max\n"}, 2048),
        ({"sys/fs/cgroup/memory/memory.limit_in_bytes": "400\n"}, 100),
    ],
)
def test_a_share_is_of_what_the_control_group_allows(
    tmp_path: Path, files: dict[str, str], share: int
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert memory_share(5000, 0.25, tmp_path) == share
