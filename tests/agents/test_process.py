"""Real processes: how they end, what they leave, what is remembered of them."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest
import trio
import trio.testing

from supervisor.agents import process as process_module
from supervisor.agents.containment import process_tag, tree
from supervisor.agents.containment.containment import open_containment
from supervisor.agents.containment.levels import Level
from supervisor.agents.pipes import TAIL_LINES, AgentPipe
from supervisor.agents.process import SpawnError, StopPolicy, StopStep, spawn
from supervisor.fairness import Share
from tests.support.processes import alive

QUICK = StopPolicy(stdin_grace=0.3, term_grace=0.3, kill=2.0)

ENV = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}


@pytest.fixture(params=["spawner", "thread"], autouse=True)
async def containing(request, tmp_path_factory):
    """What starts processes: with containment it is the spawner, without it a thread."""
    if request.param == "thread":
        yield
    elif not process_tag.usable():
        pytest.skip("this system shows no resource limits")
    else:
        async with open_containment(tmp_path_factory.mktemp("state"), Level.TREE):
            yield


def python(code):
    return [sys.executable, "-I", "-S", "-c", code]


def run(code, tmp_path, stop=QUICK, **env):
    return spawn(python(code), cwd=tmp_path, env={**ENV, **env}, stop=stop)


async def read_line(stream):
    line = b""
    while not line.endswith(b"\n"):
        data = await stream.receive_some(1)
        assert data, f"ended after {line!r}"
        line += data
    return line


async def read_all(stream):
    return b"".join([data async for data in stream])


async def test_what_was_said_first_is_told_however_long_its_turn_takes(tmp_path, monkeypatch):
    """Others may have their turn between the reading of a line and its being taken apart."""

    async def busy(_):
        waiting.set()
        await over.wait()

    waiting, over = trio.Event(), trio.Event()
    monkeypatch.setattr(Share, "turn", busy)
    code = (
        "import sys; print('first', file=sys.stderr, flush=True); print('then', flush=True); sys.stdin.read()"
    )
    async with run(code, tmp_path) as process:
        with trio.fail_after(30):
            assert await read_line(process.stdout) == b"then\n"
            await waiting.wait()
        assert process.stderr_tail() == ["first"]
        over.set()


async def test_exit_code_and_output(tmp_path):
    async with run(
        "import sys; sys.stdout.write('out'); sys.stderr.write('a\\nb'); sys.exit(7)", tmp_path
    ) as process:
        assert await read_all(process.stdout) == b"out"
        status = await process.wait()
        assert (status.code, status.signal) == (7, None)
        assert 0 < status.uptime < 30
        assert str(status).startswith("exited with code 7 after")
    assert process.stderr_tail() == ["a", "b"]
    assert process.stop_report.step is StopStep.EXITED


async def test_death_by_signal(tmp_path):
    async with run("import os; os.kill(os.getpid(), 9)", tmp_path) as process:
        status = await process.wait()
    assert (status.code, status.signal) == (None, signal.SIGKILL)
    assert "SIGKILL" in str(status)


async def test_leader_is_reaped_after_the_block_and_only_then(tmp_path):
    async with run("", tmp_path) as process:
        await process.wait()
        assert Path(f"/proc/{process.pid}").exists()
    assert not Path(f"/proc/{process.pid}").exists()


async def test_working_directory_and_environment(tmp_path):
    code = "import os; print(os.getcwd()); print(sorted(os.environ))"
    async with run(code, tmp_path, ONLY="1") as process:
        lines = (await read_all(process.stdout)).decode().splitlines()
    assert lines[0] == str(tmp_path.resolve())
    assert {"ONLY", "OSTLER_AGENT", "PATH"} <= set(eval(lines[1]))
    assert "HOME" not in lines[1]


@pytest.mark.parametrize(
    ("argv", "cwd", "message"),
    [
        (["/no/such/program"], ".", "/no/such/program cannot be started: No such file"),
        (["no-such-program-anywhere"], ".", "no-such-program-anywhere cannot be started"),
        ([sys.executable], "missing", "working directory"),
        (["a\0b"], ".", "cannot be started: embedded null"),
        ([], ".", "an empty command"),
    ],
)
async def test_spawn_error(tmp_path, argv, cwd, message):
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(SpawnError, match=message):
        async with spawn(argv, cwd=tmp_path / cwd, env=ENV):
            raise AssertionError("not reached")
    assert len(os.listdir("/proc/self/fd")) == before


async def test_no_descriptor_is_left(tmp_path):
    async with run("", tmp_path) as process:
        await process.wait()
    before = len(os.listdir("/proc/self/fd"))
    async with run("", tmp_path):
        pass
    assert len(os.listdir("/proc/self/fd")) == before


async def test_end_of_input_is_the_first_step(tmp_path):
    async with run("import sys; print('up', flush=True); sys.stdin.read(); sys.exit(3)", tmp_path) as process:
        await read_line(process.stdout)
    assert process.stop_report.step is StopStep.STDIN
    assert (await process.wait()).code == 3


async def test_sigterm_is_the_second_step(tmp_path):
    async with run("import time; print('up', flush=True); time.sleep(60)", tmp_path) as process:
        await read_line(process.stdout)
    assert process.stop_report.step is StopStep.TERM
    assert (await process.wait()).signal == signal.SIGTERM


@pytest.mark.guarantee(name="nothing-survives")
async def test_sigkill_ends_what_ignores_sigterm(tmp_path):
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    async with run(code, tmp_path) as process:
        await read_line(process.stdout)
        report = await process.stop()
        assert await process.stop() is report
    assert report.step is StopStep.KILL
    assert report.survivors == ()
    assert report.seconds < 2
    assert (await process.wait()).signal == signal.SIGKILL


GRANDCHILD = """
import os, subprocess, sys, time
env = {{}} if {bare} else dict(os.environ)
sleeper = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(60)"
child = subprocess.Popen([sys.executable, '-I', '-S', '-c', sleeper], start_new_session=True, env=env,
    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
{then}
"""


@pytest.mark.guarantee(name="nothing-survives")
@pytest.mark.parametrize("then", ["sys.stdin.read()", "time.sleep(60)"])
async def test_own_session_and_bare_environment_do_not_save_a_grandchild(tmp_path, then):
    async with run(GRANDCHILD.format(bare=True, then=then), tmp_path) as process:
        pid = int(await read_line(process.stdout))
        assert alive(pid)
    assert not alive(pid)
    assert process.stop_report.outlived >= 1
    assert process.stop_report.survivors == ()


@pytest.mark.guarantee(name="nothing-survives")
async def test_marker_finds_the_orphan_of_a_crashed_agent(tmp_path):
    async with run(GRANDCHILD.format(bare=False, then="os.kill(os.getpid(), 9)"), tmp_path) as process:
        pid = int(await read_line(process.stdout))
        await process.wait()
        assert alive(pid)
    assert not alive(pid)


async def test_orphan_seen_once_is_found_again(tmp_path):
    async with run(
        GRANDCHILD.format(bare=True, then="sys.stdin.readline(); os._exit(1)"), tmp_path
    ) as process:
        pid = int(await read_line(process.stdout))
        assert (await process.usage()).processes == 2
        await process.stdin.send_all(b"\n")
        await process.wait()
        assert alive(pid)
    assert not alive(pid)


async def test_marker_of_another_agent_is_left_alone(tmp_path):
    sleeper = "import sys; print('up', flush=True); sys.stdin.read()"
    async with run(sleeper, tmp_path) as other:
        await read_line(other.stdout)
        async with run(sleeper, tmp_path) as process:
            await read_line(process.stdout)
        assert not other.exited.is_set()
        assert alive(other.pid)


@pytest.mark.guarantee(name="nothing-hangs")
async def test_output_ends_although_a_grandchild_holds_it(tmp_path):
    code = """
import os, subprocess, sys
sleeper = [sys.executable, '-I', '-S', '-c', 'import time; time.sleep(60)']
child = subprocess.Popen(sleeper, start_new_session=True)
sys.stdout.write(str(child.pid) + '\\n' + 'x' * 50000)
sys.stdout.flush()
os._exit(0)
"""
    with trio.fail_after(30):
        async with run(code, tmp_path) as process:
            await process.wait()
            await trio.sleep(0.3)  # longer than the drain: what was written must still come
            pid, _, rest = (await read_all(process.stdout)).partition(b"\n")
            assert rest == b"x" * 50000
            assert alive(int(pid))
            assert await process.stdout.receive_some() == b""
    assert not alive(int(pid))


async def test_reader_that_waits_is_let_go_after_the_exit(tmp_path):
    code = """
import os, subprocess, sys
subprocess.Popen([sys.executable, '-I', '-S', '-c', 'import time; time.sleep(60)'], start_new_session=True)
sys.stdin.read(1)
os._exit(0)
"""
    with trio.fail_after(30):
        async with run(code, tmp_path) as process, trio.open_nursery() as nursery:
            nursery.start_soon(read_all, process.stdout)
            await trio.testing.wait_all_tasks_blocked()
            await process.stdin.send_all(b"x")


async def test_flooding_grandchild_is_not_listened_to_for_ever(tmp_path):
    code = """
import os, subprocess, sys
subprocess.Popen([sys.executable, '-I', '-S', '-c', 'import os\\nwhile True: os.write(1, b"y" * 65536)'])
os._exit(0)
"""
    with trio.fail_after(30):
        async with run(code, tmp_path) as process:
            assert await read_all(process.stdout)


@pytest.mark.parametrize("patience", [0, 1e-9])
async def test_what_is_in_the_pipe_is_read_also_when_patience_has_run_out(patience):
    descriptor, writer = os.pipe()
    async with AgentPipe(descriptor) as pipe:
        os.write(writer, b"0123456789")
        pipe.writer_exited()
        pipe._patience = patience  # as on a machine so busy that every read takes long
        assert [await pipe.receive_some(5) for _ in range(3)] == [b"01234", b"56789", b""]
        os.write(writer, b"too late")
        assert await pipe.receive_some() == b""
    os.close(writer)


async def test_a_reader_of_a_pipe_that_it_emptied_learns_of_all_that_can_happen():
    """It waits for such a pipe without a look into it before."""
    descriptor, writer = os.pipe()
    pipe = AgentPipe(descriptor)
    os.write(writer, b"short")
    assert await pipe.receive_some() == b"short"
    with trio.move_on_after(0.01):  # cancelled, nothing is lost
        await pipe.receive_some()
    got = []

    async def read():
        got.append(await pipe.receive_some(4))

    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(trio.BusyResourceError):
                await pipe.receive_some()
            os.write(writer, b"more of it")
        assert got == [b"more"]
        assert await pipe.receive_some(100) == b" of it"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            os.close(writer)
        assert got == [b"more", b""]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pipe.aclose)
        with pytest.raises(trio.ClosedResourceError):
            await pipe.receive_some()


async def test_closing_a_pipe_ends_the_wait_for_it():
    descriptor, writer = os.pipe()
    pipe = AgentPipe(descriptor)
    os.write(writer, b"short")
    assert await pipe.receive_some() == b"short"

    async def read():
        with pytest.raises(trio.ClosedResourceError):
            await pipe.receive_some()

    with trio.fail_after(5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            await pipe.aclose()
    os.close(writer)


async def test_exception_of_the_block_comes_out_bare_and_the_tree_is_gone(tmp_path):
    with pytest.raises(ValueError, match="mine"):
        async with run("import sys; sys.stdin.read()", tmp_path) as process:
            raise ValueError("mine")
    assert process.stop_report is not None


@pytest.mark.guarantee(name="nothing-survives")
async def test_cancelled_block_still_climbs_the_ladder(tmp_path):
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
    with trio.CancelScope() as scope:
        async with run(code, tmp_path) as process:
            await read_line(process.stdout)
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert process.stop_report.step is StopStep.KILL
    assert not alive(process.pid)


async def test_cancelled_agent_can_leave_by_itself(tmp_path):
    code = "import sys; print('up', flush=True); sys.stdin.read(); sys.stderr.write('bye'); sys.exit(4)"
    with trio.CancelScope() as scope:
        async with run(code, tmp_path) as process:
            await read_line(process.stdout)
            scope.cancel()
            await trio.sleep_forever()
    assert process.stop_report.step is StopStep.STDIN
    assert (await process.wait()).code == 4
    assert process.stderr_tail() == ["bye"]


@pytest.mark.guarantee(name="nothing-survives")
async def test_fork_storm_ends(tmp_path):
    code = """
import os, signal, time
signal.signal(15, signal.SIG_IGN)
print('up', flush=True)
for _ in range(200):
    if os.fork():
        time.sleep(0.005)
        os.setsid() if os.getpid() != os.getsid(0) and os.getpid() != os.getpgid(0) else None
        time.sleep(60)
time.sleep(60)
"""
    async with run(code, tmp_path) as process:
        await read_line(process.stdout)
        await trio.sleep(0.1)
    assert process.stop_report.survivors == ()
    assert process.marker not in tree.marked("OSTLER_AGENT", tree.process_table())


async def test_usage_counts_the_tree(tmp_path):
    async with run(GRANDCHILD.format(bare=True, then="sys.stdin.read()"), tmp_path) as process:
        await read_line(process.stdout)
        usage = await process.usage()
    assert usage.processes == 2
    assert usage.rss_bytes > 2 * 1024 * 1024
    assert usage.cpu_seconds >= 0


async def test_stdin_closed_by_somebody_else_first(tmp_path):
    async with run("import sys; sys.stdin.read()", tmp_path) as process:
        await process.stdin.aclose()
        await process.wait()
    assert process.stop_report.step is StopStep.EXITED


async def test_stderr_flood_does_not_block_the_agent(tmp_path):
    code = "import sys; [sys.stderr.write('e' * 100 + '\\n') for _ in range(20000)]; sys.exit(5)"
    with trio.fail_after(30):
        async with run(code, tmp_path) as process:
            assert (await process.wait()).code == 5
    assert process.stderr_tail() == ["e" * 100] * TAIL_LINES


async def test_one_that_hangs_in_the_kernel_counts_as_killed(tmp_path, monkeypatch):
    async def never(_):
        await trio.sleep_forever()

    monkeypatch.setattr(process_module, "_wait_exit", never)
    with trio.fail_after(20):
        async with run("import time; time.sleep(60)", tmp_path) as process:
            pass
        status = await process.wait()
    assert status.signal == signal.SIGKILL
    assert not alive(process.pid)
