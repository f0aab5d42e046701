"""How a process is started: by a process of its own, without waiting, and given up when it takes too long."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager

import pytest
import trio

from supervisor.acp import Jail, RpcError, Services
from supervisor.agents.containment import process_tag, tree
from supervisor.agents.containment.containment import open_containment
from supervisor.agents.containment.levels import Level
from supervisor.agents.process import SpawnError, StopPolicy, spawn
from supervisor.agents.spawning import spawner, spawning
from supervisor.agents.spawning import start as spawner_start
from tests.support.lease import leased
from tests.support.processes import alive, command_line, environment, info, kill

QUICK = StopPolicy(stdin_grace=0.3, term_grace=0.3, kill=5.0)
ENV = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}
WAIT_S = 20.0
HANG_S = 0.7  # long enough for what must go on meanwhile, short enough for a test
STALL_S = 0.5  # no hang of somebody else's holds up the loop for so long; a lease would for 45 s

pytestmark = [
    pytest.mark.skipif(not process_tag.usable(), reason="this system shows no resource limits"),
    pytest.mark.guarantee(name="malicious-agents"),
]


@pytest.fixture
async def containment(tmp_path_factory):
    async with open_containment(tmp_path_factory.mktemp("state"), Level.TREE) as opened:
        yield opened


def python(code):
    return [sys.executable, "-I", "-S", "-c", code]


def agent(argv, tmp_path, seconds=WAIT_S, env=ENV):
    return spawn(argv, cwd=tmp_path, env=env, stop=QUICK, seconds=seconds)


async def said(process):
    return b"".join([data async for data in process.stdout]).decode()


async def until(condition):
    with trio.fail_after(WAIT_S):
        while not condition():
            await trio.sleep(0.01)


@asynccontextmanager
async def going_on():
    """The loop turns meanwhile."""
    longest = 0.0

    async def tick():
        nonlocal longest
        while True:
            before = time.monotonic()
            await trio.sleep(0.01)
            longest = max(longest, time.monotonic() - before)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tick)
        yield
        nursery.cancel_scope.cancel()
    assert longest < STALL_S


def ours(containment):
    """What the spawner has started for the server, dead or alive."""
    return [
        pid
        for pid in tree.children()
        if process_tag.instance_of_tag(process_tag.read_tag(pid)) == containment.instance
        and pid not in containment.spawner.pids()
    ]


def program(path):
    path.write_text("#!/bin/sh\necho up\nexec cat\n")
    path.chmod(0o755)
    return path


# -- what is started ---------------------------------------------------------------------------------------


async def test_the_program_begins_as_a_child_of_the_server_in_a_session_of_its_own(containment, tmp_path):
    code = "import os; print(os.getppid(), os.getsid(0) == os.getpid(), sorted(os.listdir('/proc/self/fd')))"
    for _ in range(20):
        async with agent(python(code), tmp_path) as process:
            # The last one is the directory that is read.
            assert await said(process) == f"{os.getpid()} True ['0', '1', '2', '3']\n"


async def test_signals_are_what_a_plain_start_would_leave(containment, tmp_path):
    wanted = ("SigBlk", "SigIgn", "SigCgt")

    def lines(text):
        return [line for line in text.splitlines() if line.startswith(wanted)]

    plain = subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout
    async with agent(["cat", "/proc/self/status"], tmp_path) as process:
        assert lines(await said(process)) == lines(plain)


async def test_the_server_never_carries_the_brand_of_an_agent(containment, tmp_path):
    carried, looking = set(), True

    def look():
        while looking:
            carried.add(process_tag.read_tag(os.getpid()))

    async def one():
        async with agent(python("print('up', flush=True); input()"), tmp_path) as process:
            assert await process.stdout.receive_some() == b"up\n"
            assert process_tag.instance_of_tag(process_tag.read_tag(process.pid)) == containment.instance

    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.to_thread.run_sync, look)
        async with trio.open_nursery() as starts:
            for _ in range(20):
                starts.start_soon(one)
        looking = False
    assert carried == {0}


async def test_a_large_environment(containment, tmp_path):
    large = {**ENV, **{f"V{number}": "x" * 100_000 for number in range(10)}}
    async with agent(python("import os; print(len(os.environ['V9']))"), tmp_path, env=large) as process:
        assert await said(process) == "100000\n"
    with pytest.raises(SpawnError, match="Argument list too long"):
        async with agent(python(""), tmp_path, env={**ENV, "V": "x" * 1_000_000}):
            pass


async def test_errors_are_told_apart(containment, tmp_path):
    plain = tmp_path / "plain"
    plain.write_text("")
    for argv, cwd, message in [
        ([str(plain)], tmp_path, "plain cannot be started: Permission denied"),
        (["true"], plain, "the working directory .* cannot be used: Not a directory"),
        (["true", "a\0b"], tmp_path, "true cannot be started: embedded null"),
    ]:
        with pytest.raises(SpawnError, match=message):
            async with spawn(argv, cwd=cwd, env=ENV):
                pass
    with pytest.raises(SpawnError, match="illegal environment variable name"):
        async with spawn(["true"], cwd=tmp_path, env={**ENV, "A=B": "c"}):
            pass
    await until(lambda: ours(containment) == [])


# -- the spawner -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "variable", "reason"),
    [
        (["x" * 15_000_000], "", "File name too long"),
        (["true", "x" * 15_000_000], "", "Argument list too long"),
        (["true", *["x" * 100_000] * 100], "", "Argument list too long"),
        (["true"], "x" * 15_000_000, "Argument list too long"),
    ],
)
async def test_what_no_kernel_takes_is_refused_in_few_words(containment, tmp_path, argv, variable, reason):
    async def start(argv, *, cwd, env, stdin, output):
        request = spawning.Request(argv=argv, cwd=cwd, env=env, stdin=stdin, stdout=output, stderr=output)
        return await spawning.start_child(request, containment.new_marker())

    async with trio.open_nursery() as nursery:
        services = Services(Jail(tmp_path), nursery, start=start, environment=ENV)
        wanted = {"command": argv[0], "args": argv[1:], "env": [{"name": "A", "value": variable}]}
        with pytest.raises(RpcError, match=reason) as caught:
            await services.handle("terminal/create", wanted)
        assert len(str(caught.value)) < 500
        await services.close()
    assert containment.spawner.pids()


async def test_a_spawner_whose_limits_somebody_took_is_replaced(containment, tmp_path):
    (before,) = containment.spawner.pids()
    resource.prlimit(before, spawner.RLIMIT_LOCKS, (0, 0))  # as any process of the user can
    async with agent(python("print('hello')"), tmp_path) as process:
        assert await said(process) == "hello\n"
    assert containment.spawner.pids() != (before,)


async def test_a_spawner_that_was_started_ahead_is_taken(tmp_path):
    spawner_start.launch_ahead()
    (process, _), *others = spawner_start._ahead
    assert others == []
    async with open_containment(tmp_path, Level.TREE) as containment:
        assert containment.spawner.pids() == (process.pid,)
        assert spawner_start.take_ahead() is None
        assert process_tag.read_tag(process.pid) == process_tag.tag_of_spawner(containment.instance)
        async with agent(python("print('hello')"), tmp_path) as started:
            assert await said(started) == "hello\n"
    assert process.poll() is not None


async def test_a_spawner_that_was_started_ahead_and_ended_since_is_replaced(tmp_path):
    spawner_start.launch_ahead()
    ((process, channel),) = spawner_start._ahead
    kill([process.pid], signal.SIGKILL)
    await until(lambda: info(process.pid).state == "Z")
    async with open_containment(tmp_path, Level.TREE) as containment:
        assert process.poll() is not None
        assert channel.fileno() == -1
        (pid,) = containment.spawner.pids()
        assert pid != process.pid
        async with agent(python("print('hello')"), tmp_path) as started:
            assert await said(started) == "hello\n"
        assert containment.spawner.pids() == (pid,)


async def test_a_spawner_that_was_started_ahead_and_is_of_no_use_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(process_tag, "usable", lambda: False)
    spawner_start.launch_ahead()
    ((process, _),) = spawner_start._ahead
    async with open_containment(tmp_path, Level.TREE) as containment:
        assert containment.spawner is None
        assert process.poll() is not None


async def test_the_spawner_is_small_and_knows_nothing(containment, tmp_path):
    (pid,) = containment.spawner.pids()
    assert environment(pid).keys() <= {"LD_LIBRARY_PATH"}
    assert "spawner.py" in command_line(pid)
    assert info(pid).ppid == os.getpid()
    assert info(pid).sid == pid
    async with agent(["cat"], tmp_path):
        pass
    assert tree.read_entry(pid).rss_bytes < 24 * 1024 * 1024
    assert len(os.listdir(f"/proc/{pid}/fd")) == 4  # the standard ones and the channel: nothing is left open


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_spawner_that_somebody_ends_or_stops_is_replaced(containment, tmp_path, monkeypatch, number):
    monkeypatch.setattr(spawning, "ANSWER_SECONDS", 0.3)
    (before,) = containment.spawner.pids()
    async with agent(["cat"], tmp_path) as other:
        kill([before], number)
        await until(lambda: info(before).state in "ZT")

        async def one():
            async with agent(["cat"], tmp_path) as process:
                assert alive(process.pid)

        async with going_on(), trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(one)
        assert not other.exited.is_set()
    (after,) = containment.spawner.pids()
    assert after != before
    assert not alive(before)
    # The new one survives the looks at orphans, though it carries the tag of the instance.
    await containment._tend()
    assert alive(after)


async def test_the_spawner_ends_with_the_server(tmp_path):
    code = f"""
import sys, time
import trio
from pathlib import Path
from supervisor.agents.containment.containment import open_containment
from supervisor.agents.containment.levels import Level
async def main():
    async with open_containment(Path({str(tmp_path)!r}), Level.TREE) as containment:
        print(*containment.spawner.pids(), flush=True)
        await trio.sleep_forever()
trio.run(main)
"""
    for stopped in (False, True):
        with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as server:
            pid = next(int(line) for line in server.stdout if line.strip().isdigit())
            if stopped:
                kill([pid], signal.SIGSTOP)
            server.kill()
        await until(lambda pid=pid: not alive(pid))


async def test_who_asks_without_knowing_the_pid_gets_nothing_started(containment, tmp_path):
    """The grandchild runs no program before the server has heard of it."""
    process_marker = containment.new_marker()
    trace = tmp_path / "ran"
    ends = [os.open(os.devnull, os.O_RDWR)]
    request = spawning.Request(
        argv=["touch", str(trace)], cwd=tmp_path, env=ENV, stdin=ends[0], stdout=ends[0], stderr=ends[0]
    )
    for delay in (0.0, 0.0005, 0.001, 0.002, 0.004):
        child = None
        with trio.move_on_after(delay):
            child = await spawning.start_child(request, process_marker)
        if child is not None:
            await until(lambda child=child: info(child.pid).state == "Z")
            child.reap()
    containment.release(process_marker)
    await until(lambda: ours(containment) == [])
    assert process_marker.owned == set()
    os.close(ends[0])


# -- what hangs --------------------------------------------------------------------------------------------


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
async def test_an_exec_that_hangs_is_given_up_and_holds_up_nobody(containment, tmp_path):
    held = program(tmp_path / "held")
    free = program(tmp_path / "free")
    left: list[int] = []
    with leased(held):

        async def hang():
            before = time.monotonic()
            with pytest.raises(SpawnError, match=r"held did not start within 0\.7 s: its file or file"):
                async with agent([str(held)], tmp_path, seconds=HANG_S):
                    pass
            assert HANG_S <= time.monotonic() - before < WAIT_S

        async with going_on(), trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(hang)
            await trio.sleep(0.2)
            left += ours(containment)
            assert len(left) == 10  # each waits in its exec
            before = time.monotonic()
            async with agent([str(free)], tmp_path) as process:
                assert await process.stdout.receive_some() == b"up\n"
            assert time.monotonic() - before < WAIT_S
        await until(lambda: not any(info(pid) for pid in left))
    # The file is free again.
    async with agent([str(held)], tmp_path) as process:
        assert await process.stdout.receive_some() == b"up\n"


async def test_cancelling_a_start_that_hangs_leaves_nothing(containment, tmp_path):
    held = program(tmp_path / "held")
    with leased(held):
        with trio.move_on_after(HANG_S) as scope:
            async with agent([str(held)], tmp_path):
                pass
        assert scope.cancelled_caught
        await until(lambda: ours(containment) == [])


async def test_without_a_spawner_the_loop_goes_on_as_well(tmp_path):
    held = program(tmp_path / "held")
    with leased(held):
        async with going_on():
            with pytest.raises(SpawnError, match=r"did not start within 0\.7 s"):
                async with agent([str(held)], tmp_path, seconds=HANG_S):
                    pass
    await until(lambda: tree.children() == [] or not any(map(alive, tree.children())))


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
async def test_an_agents_own_hanging_terminals_hold_up_no_other_agents(containment, tmp_path):
    held = program(tmp_path / "held")
    async with (
        agent(["cat"], tmp_path, seconds=HANG_S) as one,
        agent(["cat"], tmp_path) as other,
        trio.open_nursery() as nursery,
        going_on(),
    ):
        first, second = (
            Services(Jail(tmp_path), nursery, environment=ENV, start=process.start)
            for process in (one, other)
        )
        with leased(held):

            async def hang():
                with pytest.raises(RpcError, match="its file or file system does not answer"):
                    await first.handle("terminal/create", {"command": str(held), "args": ["x"]})

            async with trio.open_nursery() as hanging:
                for _ in range(8):
                    hanging.start_soon(hang)
                await trio.sleep(0.1)
                terminal = await second.handle("terminal/create", {"command": "echo", "args": ["hello"]})
                await second.handle("terminal/wait_for_exit", terminal)
                assert (await second.handle("terminal/output", terminal))["output"] == "hello\n"
        assert first.terminals == 0
        for services in (first, second):
            await services.close()


@pytest.mark.guarantee(name="a-crash-is-contained-and-bounded")
async def test_a_file_under_a_lease_is_an_error_at_once(tmp_path):
    held = tmp_path / "held"
    held.write_text("x")
    async with trio.open_nursery() as nursery:
        services = Services(Jail(tmp_path), nursery)
        with leased(held):
            async with going_on():
                with trio.fail_after(WAIT_S), pytest.raises(RpcError, match="a lease on the file"):
                    await services.handle("fs/read_text_file", {"path": str(held)})
        assert await services.handle("fs/read_text_file", {"path": str(held)}) == {"content": "x"}


def test_the_file_in_memory_takes_any_size():
    for size in (0, 1, 3_000_000):
        with spawning._in_memory(b"x" * size) as descriptor:
            assert os.fstat(descriptor).st_size == size
