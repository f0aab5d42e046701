"""Process tags, orphans, their reaper and levels, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest
import trio

from supervisor.agents.containment import cgroup, levels, process_tag, tree
from supervisor.agents.containment.containment import (
    PID_FILE,
    containment_level,
    members,
    open_containment,
    reap_orphans,
)
from supervisor.agents.containment.levels import Level, LevelUnavailable
from supervisor.agents.containment.marker import Snapshot
from supervisor.agents.process import SpawnError, StopPolicy, StopStep, spawn
from supervisor.agents.spawning import prctl
from tests.support.processes import alive, command_line, environment, info, kill, wait_until

QUICK = StopPolicy(stdin_grace=0.3, term_grace=0.3, kill=5.0)
WAIT_S = 20.0
ENV = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8"}

# Twice forked, in a session of its own, with nothing in its environment: no ordinary trace leads to it.
DAEMON = """
import os, subprocess, sys, time
code = '''
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork(): os._exit(0)
os.write(1, b"%d\\\\n" % os.getpid())
os.close(1)
time.sleep({seconds})
'''
child = subprocess.Popen([sys.executable, "-I", "-S", "-c", code], env={{}}, start_new_session=True,
    stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
pid = child.stdout.readline().decode().strip()
child.wait()
print(pid, flush=True)
{then}
"""

tags_only = pytest.mark.skipif(not process_tag.usable(), reason="this system shows no resource limits")
pidns_only = pytest.mark.skipif(
    levels.obstacle(Level.PIDNS, warden=False) is not None, reason="no PID namespaces to be had"
)
cgroup_only = pytest.mark.skipif(
    levels.obstacle(Level.CGROUP, warden=False) is not None, reason="no control group of version 2 to be had"
)


def python(code):
    return [sys.executable, "-I", "-S", "-c", code]


def daemon(then="sys.stdin.read()", seconds=300):
    return python(DAEMON.format(then=then, seconds=seconds))


async def first_line(process):
    line = b""
    with trio.fail_after(WAIT_S):
        while not line.endswith(b"\n"):
            data = await process.stdout.receive_some(1)
            assert data, process.stderr_tail()
            line += data
    return line.decode().strip()


async def until(condition):
    with trio.fail_after(WAIT_S):
        while not condition():
            await trio.sleep(0.01)


@asynccontextmanager
async def agent(argv, tmp_path, **options):
    async with spawn(argv, cwd=tmp_path, env=ENV, stop=QUICK, **options) as process:
        yield process


async def started(process, argv):
    """Something that the server starts on behalf of an agent, as a terminal is."""
    directory, nothing = os.open("/", os.O_PATH), os.open(os.devnull, os.O_RDWR)
    try:
        return await process.start(argv, cwd=directory, env=ENV, stdin=nothing, output=nothing)
    finally:
        os.close(directory)
        os.close(nothing)


@pytest.fixture
def state(tmp_path):
    path = tmp_path / "state"
    path.mkdir()
    return path


# -- tags ------------------------------------------------------------------------------------------------


@tags_only
def test_a_brand_outlasts_session_environment_and_exec_and_goes_back():
    number = process_tag.tag_of(0xABCDEF, 7)
    before = process_tag.read_tag(os.getpid())
    with process_tag.tagged(number):
        command = ["sh", "-c", 'env -i "$(command -v setsid)" "$0" -I -S -c "input()"; true', sys.executable]
        child = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        assert process_tag.read_tag(os.getpid()) == before

        def hidden():
            below = tree.descendants([child.pid], tree.process_table())
            return {pid for pid in below if command_line(pid).startswith(f"{sys.executable} -I")}

        assert wait_until(lambda: len(hidden()) == 1, WAIT_S)
        assert Snapshot().tags[number] == {child.pid} | hidden()
    finally:
        child.communicate(b"\n")


@tags_only
def test_a_zombie_still_shows_its_brand():
    number = process_tag.tag_of(1, 1)
    with process_tag.tagged(number):
        child = subprocess.Popen(["true"])
    assert wait_until(lambda: info(child.pid).state == "Z")
    assert process_tag.read_tag(child.pid) == number
    assert child.wait() == 0
    assert process_tag.read_tag(child.pid) == 0


def test_brands_tell_houses_and_agents_apart(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    (tmp_path / "link").symlink_to("a")
    first, second, linked = (process_tag.instance_id(tmp_path / name) for name in ("a", "b", "link"))
    assert first == linked != second
    numbers = {process_tag.tag_of(instance, agent) for instance in (first, second) for agent in (1, 2, 3)}
    assert len(numbers) == 6
    assert {process_tag.instance_of_tag(number) for number in numbers} == {first, second}
    assert max(numbers) < 1 << 63
    assert process_tag.instance_of_tag(process_tag.tag_of(first, (1 << process_tag.AGENT_BITS) + 5)) == first


# -- orphans -----------------------------------------------------------------------------------------------


@tags_only
async def test_a_daemon_without_a_trace_ends_with_its_agent(tmp_path, state):
    async with open_containment(state, Level.TREE):
        async with agent(daemon(), tmp_path) as process:
            pid = int(await first_line(process))
            assert info(pid).ppid == os.getpid()
            assert environment(pid) == {}
            assert info(pid).sid != info(process.pid).sid
            async with agent(python("input()"), tmp_path) as other:
                pass
            assert other.stop_report.outlived == 0
            assert alive(pid)  # another agent's end is none of its business
        assert process.stop_report.step is StopStep.KILL
        assert not alive(pid)
        await until(lambda: info(pid) is None)


@tags_only
async def test_a_daemon_outlives_its_crashed_agent_only_until_that_is_cleared_away(tmp_path, state):
    async with open_containment(state, Level.TREE):
        async with agent(daemon("os.kill(os.getpid(), 9)"), tmp_path) as process:
            pid = int(await first_line(process))
            assert (await process.wait()).signal == signal.SIGKILL
        assert not alive(pid)
        assert process.stop_report.outlived == 1


@tags_only
async def test_orphans_that_die_under_a_living_agent_are_reaped(tmp_path, state):
    many = "for _ in range(20):\n    if os.fork() == 0: os.fork(); os._exit(0)\nprint(1, flush=True)"
    async with open_containment(state, Level.TREE) as containment:
        async with agent(daemon(seconds=0.3), tmp_path) as process:
            pid = int(await first_line(process))
            await until(lambda: info(pid) is None)
            assert not process.exited.is_set()
        async with agent(python(f"import os, time\n{many}; time.sleep(60)"), tmp_path) as process:
            await first_line(process)
        await until(lambda: tree.children() == list(containment.spawner.pids()))


@tags_only
async def test_who_waits_for_a_child_gets_its_status(tmp_path, state):
    async with open_containment(state, Level.TREE), agent(python("input()"), tmp_path) as process:
        child = await started(process, ["sh", "-c", "exit 7"])
        stranger = subprocess.Popen(["sh", "-c", "exit 8"])
        async with agent(daemon(seconds=0), tmp_path) as busy:
            pid = int(await first_line(busy))
            await until(lambda: info(pid) is None)  # orphans have been looked at meanwhile
        assert stranger.wait() == 8
        await until(lambda: info(child.pid).state == "Z")
        assert os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT).si_status == 7
        child.reap()
        assert info(child.pid) is None
        assert not process.exited.is_set()


@tags_only
async def test_what_was_started_on_its_behalf_ends_with_the_agent(tmp_path, state):
    async with open_containment(state, Level.TREE):
        async with agent(python("input()"), tmp_path) as process:
            child = await started(process, ["sleep", "300"])
            assert (await process.usage()).processes == 2
        assert not alive(child.pid)
        child.reap()
        assert info(child.pid) is None


@tags_only
async def test_a_stray_that_turns_up_after_its_agent_is_ended(tmp_path, state):
    async with open_containment(state, Level.TREE) as containment:
        process_marker = containment.new_marker()
        with process_tag.tagged(process_marker.tag):
            stray = subprocess.Popen(["sleep", "300"])
        await containment._tend()
        assert alive(stray.pid)
        containment.release(process_marker)
        await containment._tend()
        await until(lambda: info(stray.pid) is None)
    stray.returncode = 0  # reaped by containment


async def test_leaving_containment_restores_the_process(tmp_path, state):
    before = prctl.is_subreaper()
    async with open_containment(state, Level.WARDEN) as containment:
        assert containment_level() is containment.level is Level.WARDEN
        assert prctl.is_subreaper() or not process_tag.usable()
        assert (state / PID_FILE).read_text() == f"{os.getpid()}\n"
    assert prctl.is_subreaper() == before
    assert not (state / PID_FILE).exists()
    assert containment_level() is Level.TREE


@tags_only
async def test_nothing_is_left_when_containment_ends(tmp_path, state):
    with process_tag.tagged(process_tag.tag_of(process_tag.instance_id(state), 99)):
        stray = subprocess.Popen(["sleep", "300"])
    async with open_containment(tmp_path, Level.TREE):  # another state directory
        pass
    assert stray.poll() is None
    async with open_containment(state, Level.TREE):
        assert not alive(stray.pid)
    stray.wait()


# -- marks that are forged ---------------------------------------------------------------------------------

FORGER = """
import resource, subprocess, sys
resource.setrlimit(10, (int(sys.argv[1]), resource.getrlimit(10)[1]))
subprocess.Popen(["sleep", "300"], stdin=subprocess.DEVNULL)
print("up", flush=True)
sys.stdin.read()
sys.exit(7)
"""


@pytest.mark.guarantee(name="malicious-agents")
@pytest.mark.guarantee(name="nothing-survives")
@tags_only
@pytest.mark.parametrize("forged", ["another", "gone", "spawner"])
async def test_an_agent_that_takes_another_tag_is_neither_ended_nor_reaped_for_it(tmp_path, state, forged):
    async with (
        open_containment(state, Level.TREE) as containment,
        agent(python("print('up', flush=True); input()"), tmp_path) as other,
    ):
        number = {
            "another": process_tag.read_tag(other.pid),
            "gone": process_tag.tag_of(containment.instance, 4321),
            "spawner": process_tag.tag_of_spawner(containment.instance),
        }[forged]
        assert await first_line(other) == "up"
        async with agent([*python(FORGER), str(number)], tmp_path) as forger:
            assert await first_line(forger) == "up"
            assert process_tag.read_tag(forger.pid) == number
            await containment._tend()
            assert (await other.usage()).processes == 1
            assert (await forger.usage()).processes == 2
            assert (await other.stop()).outlived == 0
            assert alive(forger.pid)
            await forger.stdin.aclose()
            await until(forger.exited.is_set)
            await containment._tend()
            assert (await forger.wait()).code == 7
        assert info(forger.pid) is None


@pytest.mark.guarantee(name="nothing-survives")
@cgroup_only
async def test_a_stranger_in_an_agents_control_group_outlives_the_agent(tmp_path, state):
    async with (
        open_containment(state, Level.CGROUP) as containment,
        agent(python("print('up', flush=True); input()"), tmp_path) as other,
    ):
        assert await first_line(other) == "up"
        ignoring = "import signal; signal.signal(15, 1); print('up', flush=True); import time; time.sleep(60)"
        async with agent(python(ignoring), tmp_path) as process:
            assert await first_line(process) == "up"
            group = next(
                path
                for path in cgroup.leftovers(cgroup.agents_group(), containment.instance)
                if process.pid in cgroup.members(path)
            )
            (group / "cgroup.procs").write_text(str(other.pid))
            (group / "cgroup.procs").write_text(str(os.getpid()))
            assert cgroup.members(group) >= {other.pid, process.pid, os.getpid()}
        assert process.stop_report.step is StopStep.KILL
        assert not alive(process.pid)
        assert alive(other.pid)  # and so are we


# -- reaping ------------------------------------------------------------------------------------------------


@tags_only
def test_the_reaper_spares_ourselves_our_parents_and_other_instances(state, tmp_path):
    instance = process_tag.instance_id(state)
    with process_tag.tagged(process_tag.tag_of(instance, 1)):
        assert os.getpid() not in members(instance)
        ours = subprocess.Popen(["sleep", "300"])
    with process_tag.tagged(process_tag.tag_of(process_tag.instance_id(tmp_path), 1)):
        theirs = subprocess.Popen(["sleep", "300"])
    try:
        assert set(members(instance)) == {ours.pid}
        assert reap_orphans(instance) == (1, [])
        assert ours.wait() == -signal.SIGKILL
        assert reap_orphans(instance) == (0, [])
        assert theirs.poll() is None
    finally:
        theirs.kill()
        theirs.wait()


def test_the_reaper_finds_the_variable_too(state):
    from supervisor.agents.containment.containment import marker_prefix
    from supervisor.agents.environment import MARKER

    instance = process_tag.instance_id(state)
    child = subprocess.Popen(["sleep", "300"], env={**ENV, MARKER: marker_prefix(instance) + "x"})
    other = subprocess.Popen(["sleep", "300"], env={**ENV, MARKER: marker_prefix(instance + 1) + "x"})
    try:
        assert reap_orphans(instance) == (1, [])
        assert child.wait() == -signal.SIGKILL
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


# -- levels ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "warden", "level"),
    [
        (None, True, Level.WARDEN),
        ("auto", True, Level.WARDEN),
        ("auto", False, Level.TREE),
        ("", False, Level.TREE),
        ("tree", False, Level.TREE),
        ("warden", True, Level.WARDEN),
    ],
)
def test_choice(text, warden, level):
    assert levels.choose(levels.parse(text), warden=warden) is level


def test_what_cannot_be_had_is_said_in_one_line(monkeypatch):
    with pytest.raises(LevelUnavailable, match=r"^containment 'warden' is unavailable: [^\n]+$"):
        levels.choose(Level.WARDEN, warden=False)
    with pytest.raises(ValueError, match="'strong' is not one of auto, tree, warden"):
        levels.parse("strong")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(LevelUnavailable, match="the program unshare is not installed"):
        levels.choose(Level.PIDNS, warden=True)
    monkeypatch.setattr(cgroup, "own_group", lambda proc: None)
    with pytest.raises(LevelUnavailable, match="not in a cgroup v2 group"):
        levels.choose(Level.CGROUP, warden=True)


def test_a_failing_trial_tells_its_last_words(monkeypatch, tmp_path):
    for name in ("unshare", "setpriv", "sh"):
        (tmp_path / name).write_text(
            "#!/bin/sh\necho first >&2\necho 'Operation not permitted' >&2\nexit 1\n"
        )
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert levels.obstacle(Level.PIDNS, warden=True) == "Operation not permitted"


@pytest.mark.parametrize(
    ("membership", "mounts", "group"),
    [
        ("0::/user/app\n", "30 1 0:26 / /sys/cg rw,nosuid - cgroup2 cgroup2 rw\n", "/sys/cg/user/app"),
        ("4:memory:/x\n0::/\n", "1 1 0:1 / /s rw - sysfs s rw\n2 1 0:2 / /cg rw x:3 - cgroup2 c r\n", "/cg"),
        ("0::/a/b\n", "2 1 0:2 /a /cg rw - cgroup2 c rw\n", "/cg/b"),
        ("0::/a\n", "2 1 0:2 /a /cg rw - cgroup2 c rw\n", "/cg"),
        ("0::/ab\n", "2 1 0:2 /a /cg rw - cgroup2 c rw\n", None),
        ("4:memory:/x\n", "2 1 0:2 / /cg rw - cgroup2 c rw\n", None),
        ("0::/\n", "2 1 0:2 / /cg rw - cgroup cgroup rw,memory\n", None),
    ],
)  # fmt: skip
def test_own_group(tmp_path, membership, mounts, group):
    (tmp_path / "self").mkdir()
    (tmp_path / "self/cgroup").write_text(membership)
    (tmp_path / "self/mountinfo").write_text(mounts)
    found = cgroup.own_group(tmp_path)
    assert (found and str(found)) == group


def test_no_proc_no_group(tmp_path):
    assert cgroup.own_group(tmp_path) is None


def test_groups_are_made_found_and_removed(tmp_path):
    (tmp_path / "ostler-0000000002-1").mkdir()
    made = cgroup.create(tmp_path, 1, 5)
    (made / "below").mkdir()
    assert cgroup.leftovers(tmp_path, 1) == [made]
    cgroup.kill(made, tree.Bounds())
    assert (made / cgroup.KILL_FILE).read_text() == "1"
    (made / cgroup.KILL_FILE).unlink()
    assert cgroup.remove(made)
    assert cgroup.leftovers(tmp_path, 1) == []
    assert cgroup.leftovers(tmp_path / "missing", 1) == []


def test_a_directory_is_no_group_to_be_used(tmp_path):
    assert "cgroup.kill" in cgroup.probe(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert "cannot create a cgroup" in cgroup.probe(tmp_path / "missing")


@cgroup_only
async def test_level_cgroup(tmp_path, state):
    async with open_containment(state, Level.CGROUP) as containment:
        async with agent(daemon("time.sleep(300)"), tmp_path) as process:
            pid = int(await first_line(process))
            assert process.containment is Level.CGROUP
            name = f"ostler-{containment.instance:010x}-1"
            for member in (process.pid, pid):
                assert f"/{name}\n".encode() in tree.read_file(member, "cgroup")
            assert command_line(process.pid).startswith(sys.executable)
        assert not alive(pid)
        assert (await process.wait()).signal == signal.SIGTERM
        await until(lambda: cgroup.leftovers(cgroup.own_group(), containment.instance) == [])
        with pytest.raises(SpawnError, match="no-such-program cannot be started: No such file"):
            async with agent(["no-such-program"], tmp_path):
                pass
        # It was in the group for as long as it took to find out.
        await until(lambda: cgroup.leftovers(cgroup.own_group(), containment.instance) == [])


@cgroup_only
async def test_groups_of_earlier_servers_are_emptied_and_removed(tmp_path, state):
    instance = process_tag.instance_id(state)
    group = cgroup.create(cgroup.own_group(), instance, 1)
    child = subprocess.Popen(levels.in_cgroup(["sleep", "300"], group))
    await until(lambda: (group / "cgroup.procs").read_text().split() == [str(child.pid)])
    async with open_containment(state, Level.TREE):
        assert child.wait() == -signal.SIGKILL
        assert not group.exists()


@pidns_only
async def test_level_pidns(tmp_path, state):
    async with open_containment(state, Level.PIDNS):
        # The daemon tells its number in the namespace; from outside it is found by its tag.
        async with agent(
            daemon("print(os.getpid(), flush=True); sys.stdin.read(); sys.exit(3)"), tmp_path
        ) as one:
            inner = int(await first_line(one))
            assert inner < 50
            assert int(await first_line(one)) < inner
            usage = await one.usage()
            assert usage.processes == 4  # unshare, the first process, the agent, the daemon
        assert (await one.wait()).code == 3
        assert one.stop_report.outlived == 0  # the kernel ended the daemon
        async with agent(python("import os; os.kill(os.getpid(), 9)"), tmp_path) as two:
            status = await two.wait()
            assert (status.code, status.signal) == (None, signal.SIGKILL)
        with pytest.raises(SpawnError, match="no-such-program cannot be started: No such file"):
            async with agent(["no-such-program"], tmp_path):
                pass
        with pytest.raises(SpawnError, match="working directory"):
            async with agent(["true"], tmp_path / "missing"):
                pass


@pidns_only
def test_a_namespace_ends_with_who_started_it(tmp_path):
    code = f"""
import subprocess, sys, time
sys.path[:0] = {sys.path!r}
from supervisor.agents.containment.levels import in_namespace
command = in_namespace({daemon("time.sleep(300)")!r})
subprocess.Popen(command, start_new_session=True, stdin=subprocess.DEVNULL)
time.sleep(300)
"""
    server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
    server.stdout.readline()
    table = tree.process_table()
    below = tree.descendants([server.pid], table)
    assert len(below) == 4
    server.kill()
    server.wait()
    server.stdout.close()
    try:
        assert wait_until(lambda: not any(alive(pid) for pid in below), 2.0)
    finally:
        kill(below)
