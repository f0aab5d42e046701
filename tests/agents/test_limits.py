"""Limits of an agent's process tree: what holds which, what is said, and real processes that hit them.

Control groups of version 2 are a directory with the kernel's rules in most of these tests. Some ask the
kernel itself, and are skipped where it offers no controllers, or where others than pytest are in its group:
`systemd-run --user --scope -p Delegate=yes` starts a pytest, without workers, that gets some.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import trio

from supervisor.agents.containment import cgroup, process_tag, tree
from supervisor.agents.containment.containment import agents_controllers, open_containment
from supervisor.agents.containment.levels import Level
from supervisor.agents.containment.levels import obstacle as level_obstacle
from supervisor.agents.endings import ExitStatus, StopPolicy, TreeUsage
from supervisor.agents.errors import SpawnError
from supervisor.agents.limits import control_group, mechanisms
from supervisor.agents.limits.disk import DiskUse, disk_use
from supervisor.agents.limits.hits import by_output, by_signal, hit_of
from supervisor.agents.limits.keeper import AROUND, keep
from supervisor.agents.limits.mechanisms import Available, Mechanism, hold, namespace_prefix
from supervisor.agents.limits.starting import obstacle
from supervisor.agents.limits.values import NO_LIMITS, AgentLimits, Limit, size
from supervisor.agents.process import AgentProcess, spawn
from supervisor.agents.spawning.confinement import Confinement
from tests.support.processes import descendants as below
from tests.support.processes import kill, wait_until
from tests.support.user import AS_USER, NEEDS_USER

MB = 1024 * 1024
WAIT_S = 30.0
ALL = AgentLimits(memory=1 << 30, processes=64, cpus=1.5, file_size=MB, open_files=50, disk=2 << 30)
EVERYTHING = Available(controllers=frozenset({"memory", "pids", "cpu"}))

linux = pytest.mark.skipif(sys.platform != "linux", reason="limits are Linux's")


# -- values ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1 KiB"), (2.1 * 2**30, "2.1 GiB"), (2**60, "1048576 TiB")],
)
def test_bytes_have_a_unit_that_people_read(count: float, text: str) -> None:
    assert size(count) == text


def test_settings_lower_the_operators_limits_and_raise_none() -> None:
    operators = AgentLimits(memory=100, processes=10)
    wanted = {"memory": 200, "processes": 5, "disk": 7, "cpus": None}
    lowered = operators.lowered(wanted)
    assert (lowered.memory, lowered.processes, lowered.disk, lowered.cpus) == (100, 5, 7, None)
    assert lowered.named(Limit.MEMORY) == "OSTLER_AGENT_MEMORY"
    assert lowered.named(Limit.PROCESSES) == "acp_limits.processes"
    assert list(operators.exceeded(wanted)) == [(Limit.MEMORY, 100)]
    assert not NO_LIMITS
    assert lowered


# -- which mechanism holds which limit -----------------------------------------------------------------------


CGROUP, RLIMIT, NAMESPACE, POLLING = Mechanism


@pytest.mark.parametrize(
    ("available", "expected"),
    [
        (EVERYTHING, {"memory": (CGROUP,), "processes": (CGROUP,), "cpus": (CGROUP,)}),
        (
            Available(controllers=frozenset({"pids"})),
            {"memory": (RLIMIT, POLLING), "processes": (CGROUP,), "cpus": ()},
        ),
        (
            Available(namespace=True),
            {"memory": (RLIMIT, POLLING), "processes": (NAMESPACE, POLLING), "cpus": ()},
        ),
        (Available(), {"memory": (RLIMIT, POLLING), "processes": (POLLING,), "cpus": ()}),
    ],
)
def test_the_best_mechanism_holds_each_limit(available: Available, expected: dict[str, Any]) -> None:
    holding = hold(ALL, available)
    assert holding.by == expected | {"file_size": (RLIMIT,), "open_files": (RLIMIT,), "disk": (POLLING,)}
    assert holding.polled  # for the disk
    told = holding.dump()
    assert told["memory"]["most"] == 1 << 30
    assert told["memory"]["set_by"] == "OSTLER_AGENT_MEMORY"
    assert told["memory"]["held_by"] == list(expected["memory"])


def test_what_is_not_set_is_not_held() -> None:
    assert hold(NO_LIMITS, EVERYTHING).by == {}
    assert not hold(AgentLimits(file_size=1), Available()).polled
    assert keep(NO_LIMITS, EVERYTHING, Path("/nowhere")).confinement() is None


def test_a_share_of_processors_that_nothing_holds_is_refused_with_the_remedy() -> None:
    assert hold(ALL, EVERYTHING).refusal() is None
    reason = hold(AgentLimits(cpus=1.5), Available()).refusal()
    assert reason is not None
    assert reason.startswith("OSTLER_AGENT_CPUS is unavailable: ")
    assert "OSTLER_CONTAINMENT=cgroup" in reason
    assert "acp_limits.cpus" in str(hold(NO_LIMITS.lowered({"cpus": 1}), Available()).refusal())


def test_the_server_refuses_it_at_its_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = AgentLimits(cpus=1.0, memory=1)
    assert "OSTLER_AGENT_CPUS" in str(obstacle(wanted, Level.WARDEN))
    assert obstacle(AgentLimits(memory=1), Level.WARDEN) is None
    monkeypatch.setattr(cgroup, "own_group", lambda proc: tmp_path)
    assert "OSTLER_AGENT_CPUS" in str(obstacle(wanted, Level.CGROUP))
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    assert obstacle(wanted, Level.CGROUP) is None


def test_the_prefix_inside_a_namespace() -> None:
    assert namespace_prefix(hold(ALL, Available(namespace=True))) == ["prlimit", "--nproc=64", "--"]
    assert namespace_prefix(hold(ALL, Available())) == []
    assert namespace_prefix(hold(NO_LIMITS, Available(namespace=True))) == []


# -- what is said --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "used", "how", "text"),
    [
        (
            Limit.MEMORY,
            2.1 * 2**30,
            POLLING,
            "The agent used 2.1 GiB of memory; the limit is 1 GiB (OSTLER_AGENT_MEMORY). Ostler ended it. "
            "Raise the limit, or give the agent a smaller task.",
        ),
        (
            Limit.MEMORY,
            None,
            RLIMIT,
            "A process of the agent got no more memory; the limit is 1 GiB for each process "
            "(OSTLER_AGENT_MEMORY). Raise the limit, or give the agent a smaller task.",
        ),
        (
            Limit.PROCESSES,
            65,
            POLLING,
            "The agent had 65 processes and threads; the limit is 64 processes and threads "
            "(OSTLER_AGENT_PROCESSES). Ostler ended it. "
            "Raise the limit, or let the agent start less at a time.",
        ),
        (
            Limit.FILE_SIZE,
            MB,
            RLIMIT,
            "The agent wrote a file of 1 MiB; the limit is 1 MiB (OSTLER_AGENT_FILE_SIZE). The kernel "
            "ended it. Raise the limit, or let the agent write smaller files.",
        ),
        (
            Limit.DISK,
            3 << 30,
            POLLING,
            "The agent's home has 3 GiB; the limit is 2 GiB (OSTLER_AGENT_DISK). Ostler ended it. "
            "Raise the limit, or delete what the home does not need.",
        ),
    ],
)
def test_a_hit_is_said_with_limit_and_use(
    limit: Limit, used: float | None, how: Mechanism, text: str
) -> None:
    hit = hit_of(ALL, limit, used, how)
    assert hit.text == text
    assert hit.dump()["text"] == text


def test_an_agent_that_continues_is_said_to() -> None:
    text = hit_of(ALL, Limit.MEMORY, 1 << 30, CGROUP, ended=False).text
    assert "The kernel ended a process of it; the agent continues." in text


CRASHED = ExitStatus(code=134, signal=None, uptime=1.0)


@pytest.mark.parametrize(
    ("line", "limit"),
    [
        ("MemoryError", Limit.MEMORY),
        ("FATAL ERROR: Reached heap limit Allocation failed - JavaScript heap out of memory", Limit.MEMORY),
        ("memory allocation of 1048576 bytes failed", Limit.MEMORY),
        ("bash: fork: retry: Resource temporarily unavailable", Limit.PROCESSES),
        ("Error: spawn /bin/sh EAGAIN", Limit.PROCESSES),
        ("RuntimeError: can't start new thread", Limit.PROCESSES),
        ("Error: EMFILE: too many open files, open '/x'", Limit.OPEN_FILES),
        ("OSError: [Errno 27] File too large", Limit.FILE_SIZE),
        ("segmentation fault", None),
        ("the memory of the session", None),
    ],
)
def test_last_words_tell_of_what_the_kernel_refused(line: str, limit: Limit | None) -> None:
    hit = by_output(hold(ALL, Available(namespace=True)), CRASHED, ["before", line])
    assert (None if hit is None else hit.limit) is limit


@pytest.mark.parametrize(
    "status",
    [
        ExitStatus(code=0, signal=None, uptime=1.0),
        ExitStatus(code=None, signal=signal.SIGKILL, uptime=1.0),
    ],
)
def test_last_words_of_an_agent_that_did_not_fail_by_itself_tell_nothing(status: ExitStatus) -> None:
    assert by_output(hold(ALL, Available()), status, ["MemoryError"]) is None


def test_last_words_count_where_a_resource_limit_holds() -> None:
    assert by_output(hold(ALL, EVERYTHING), CRASHED, ["MemoryError"]) is None
    assert by_output(hold(NO_LIMITS, Available()), CRASHED, ["MemoryError"]) is None


@pytest.mark.parametrize(
    ("code", "number", "suspected"),
    [(None, signal.SIGTRAP, True), (134, None, True), (1, None, False), (None, signal.SIGSEGV, False)],
)
def test_an_end_as_runtimes_have_it_without_memory_is_suspicious(
    code: int | None, number: int | None, suspected: bool
) -> None:
    status = ExitStatus(code=code, signal=number, uptime=1.0)
    said = keep(ALL, Available(), None).suspicion(status)
    expected = (
        "It may have got no more memory; the limit is 1 GiB for each process (OSTLER_AGENT_MEMORY)."
        if suspected
        else None
    )
    assert said == expected
    assert keep(ALL, EVERYTHING, None).suspicion(status) is None
    assert keep(NO_LIMITS, Available(), None).suspicion(status) is None


@pytest.mark.parametrize(
    ("code", "number", "told"),
    [(None, signal.SIGXFSZ, True), (128 + signal.SIGXFSZ, None, True), (1, None, False)],
)
def test_a_signal_tells_of_a_file_that_is_too_large(code: int | None, number: int | None, told: bool) -> None:
    status = ExitStatus(code=code, signal=number, uptime=1.0)
    assert (by_signal(hold(ALL, Available()), status) is not None) is told
    assert by_signal(hold(NO_LIMITS, Available()), status) is None


def usage(rss: int = 0, threads: int = 1) -> TreeUsage:
    return TreeUsage(processes=1, rss_bytes=rss, cpu_seconds=0.0, threads=threads)


def test_each_limit_is_reported_once_and_ends_the_agent_once() -> None:
    keeper = keep(AgentLimits(memory=10, processes=2, disk=5), Available(), None)
    assert keeper.look(usage(rss=10, threads=2)) == []
    assert keeper.look_at_disk(5) == []
    (first,) = keeper.look(usage(rss=11))
    assert (first.limit, first.used, first.ended) == (Limit.MEMORY, 11, True)
    assert keeper.look(usage(rss=12)) == []
    assert [each.limit for each in keeper.look(usage(threads=3))] == [Limit.PROCESSES]
    assert [each.limit for each in keeper.look_at_disk(6)] == [Limit.DISK]
    assert keeper.look_at_disk(7) == []
    assert keeper.hit == first


def test_a_full_namespace_is_reported_and_ends_nothing() -> None:
    keeper = keep(AgentLimits(processes=2), Available(namespace=True), None)
    (hit,) = keeper.look(usage(threads=2))
    assert (hit.ended, hit.how, keeper.hit) == (False, NAMESPACE, None)
    assert keeper.look(usage(threads=2 + AROUND)) == []
    # More are around it: the commands of its terminals, each with a namespace of its own.
    (hit,) = keeper.look(usage(threads=3 + AROUND))
    assert (hit.ended, hit.how, keeper.hit) == (True, POLLING, hit)


# -- control groups ------------------------------------------------------------------------------------------


class Kernel:
    """A directory with the rules of version 2 for moving processes and enabling controllers."""

    def __init__(self, root: Path, controllers: str = "cpuset cpu io memory pids") -> None:
        self.root = root
        (root / "cgroup.controllers").write_text(controllers)
        (root / "cgroup.subtree_control").write_text("")
        (root / "cgroup.procs").write_text("")
        self.refused: set[str] = set()

    def write(self, path: Path, text: str) -> None:
        if path.name == "cgroup.procs":
            for each in self.root.rglob("cgroup.procs"):
                each.write_text("\n".join(pid for pid in each.read_text().split() if pid != text))
            with path.open("a") as file:
                file.write(f"\n{text}")
        elif path.name == "cgroup.subtree_control":
            # No internal processes; nothing that the parent does not offer.
            if cgroup._pids(path.parent):
                raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))
            name = text.removeprefix("+")
            if name in self.refused:
                raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))
            assert name in cgroup.offered(path.parent)
            path.write_text(f"{path.read_text()} {name}".strip())
        else:
            path.write_text(text)


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    made = Kernel(tmp_path)
    monkeypatch.setattr(cgroup, "_write", made.write)
    return made


WANTED = ("memory", "pids", "cpu")


def test_the_server_moves_out_of_the_way_of_the_controllers(kernel: Kernel, tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("7\n8\n")
    assert cgroup.enable(tmp_path, WANTED, {7, 8}) == set(WANTED)
    assert cgroup._pids(tmp_path) == set()
    assert cgroup._pids(tmp_path / cgroup.SERVER_GROUP) == {7, 8}
    # The next server of this warden begins there, and has nothing left to do.
    assert cgroup.enable(tmp_path, WANTED, {7, 9}) == set(WANTED)


def test_others_in_the_servers_group_are_left_alone(kernel: Kernel, tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("7\n99\n")
    assert cgroup.enable(tmp_path, WANTED, {7}) == set()
    assert cgroup._pids(tmp_path) == {7, 99}
    assert not (tmp_path / cgroup.SERVER_GROUP).exists()


def test_the_controllers_that_there_are_are_enabled(kernel: Kernel, tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("memory pids\n")
    kernel.refused = {"pids"}
    assert cgroup.enable(tmp_path, WANTED, ()) == {"memory"}


def test_nothing_moves_where_everything_is_enabled_or_nothing_is_offered(
    kernel: Kernel, tmp_path: Path
) -> None:
    (tmp_path / "cgroup.procs").write_text("7\n")
    (tmp_path / "cgroup.controllers").write_text("")
    assert cgroup.enable(tmp_path, WANTED, {7}) == set()
    assert cgroup.enable(tmp_path / "missing", WANTED, {7}) == set()
    assert cgroup._pids(tmp_path) == {7}


@pytest.mark.parametrize("kind", ["domain", "domain invalid"])
def test_a_group_below_which_no_process_may_be_is_refused(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    mkdir: Callable[[Path], None] = Path.mkdir

    def make(path: Path) -> None:
        mkdir(path)
        (path / cgroup.KILL_FILE).touch()
        (path / cgroup.TYPE_FILE).write_text(f"{kind}\n")

    monkeypatch.setattr(Path, "mkdir", make)
    (tmp_path / cgroup.ENABLED_FILE).write_text("pids\n")
    reason = cgroup.probe(tmp_path)
    assert reason is None if kind == "domain" else "enabled (here: pids)" in str(reason)


def test_agents_groups_stay_where_they_were(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text("2 1 0:2 / /cg rw - cgroup2 c rw\n")
    for membership in ("0::/unit\n", f"0::/unit/{cgroup.SERVER_GROUP}\n"):
        (tmp_path / "self/cgroup").write_text(membership)
        assert cgroup.agents_group(tmp_path) == Path("/cg/unit")


def test_a_foreign_process_is_moved_to_the_server_before_the_group_is_killed(
    kernel: Kernel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, pid in ((cgroup.SERVER_GROUP, "7"), ("ostler-agent", "99")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").write_text(pid)
    monkeypatch.setattr(tree, "trespass", lambda pid, bounds: "it belongs to the server")
    cgroup.kill(tmp_path / "ostler-agent", tree.Bounds())
    assert cgroup._pids(tmp_path / cgroup.SERVER_GROUP) == {7, 99}
    assert (tmp_path / "ostler-agent" / cgroup.KILL_FILE).read_text() == "1"


def group(place: Path, **files: str) -> Path:
    """A group with these files; dots in their names are written as `__`."""
    for name, content in files.items():
        (place / name.replace("__", ".")).write_text(content)
    return place


def test_the_limits_of_a_group_are_its_files(tmp_path: Path) -> None:
    files = {"memory__max": "max", "memory__oom__group": "0", "pids__max": "max", "cpu__max": "max 100000"}
    holding = hold(ALL, EVERYTHING)
    control_group.limit(group(tmp_path, **files), holding)
    assert (tmp_path / "memory.max").read_text() == str(1 << 30)
    assert (tmp_path / "memory.oom.group").read_text() == "0"
    assert (tmp_path / "pids.max").read_text() == "64"
    assert (tmp_path / "cpu.max").read_text() == "150000 100000"
    assert not (tmp_path / "memory.swap.max").exists()  # a kernel without swap
    (tmp_path / "pids.max").unlink()
    with pytest.raises(FileNotFoundError):
        control_group.limit(tmp_path, holding)
    assert control_group.settings(hold(AgentLimits(cpus=0.001), EVERYTHING)) == {"cpu.max": "1000 100000"}
    assert control_group.settings(hold(ALL, Available())) == {}


def test_a_group_tells_what_it_ended_and_refused(tmp_path: Path) -> None:
    keeper = keep(ALL, EVERYTHING, tmp_path)
    assert keeper.look(usage()) == []
    group(
        tmp_path,
        memory__events="low 0\nhigh 0\nmax 9\noom 1\noom_kill 1\n",
        memory__current="900\n",
        memory__peak=f"{1 << 30}\n",
        pids__events="max 3\n",
        pids__current="64\n",
    )
    memory, processes = keeper.look(usage())
    assert (memory.limit, memory.used, memory.how, memory.ended) == (Limit.MEMORY, 1 << 30, CGROUP, False)
    assert (processes.limit, processes.used, processes.ended) == (Limit.PROCESSES, 64, False)
    assert keeper.look(usage()) == []
    assert keeper.hit is None


KILLED = ExitStatus(code=None, signal=signal.SIGKILL, uptime=1.0)


def test_an_agent_that_the_kernel_ended_for_its_memory_is_said_to_have_been(tmp_path: Path) -> None:
    group(tmp_path, memory__events="oom_kill 1\n", memory__current=f"{1 << 29}\n")
    keeper = keep(ALL, EVERYTHING, tmp_path)
    keeper.ended(KILLED)
    hit = keeper.explain(KILLED, [])
    assert hit is not None
    assert hit.text.startswith("The agent used 512 MiB of memory; the limit is 1 GiB (OSTLER_AGENT_MEMORY).")
    assert "The kernel ended it." in hit.text


def test_a_refused_process_explains_only_an_end_of_the_agents_own(tmp_path: Path) -> None:
    group(tmp_path, pids__events="max 3\n", pids__current="64\n")
    failed = ExitStatus(code=1, signal=None, uptime=1.0)
    keeper = keep(ALL, EVERYTHING, tmp_path)
    keeper.ended(failed)
    hit = keeper.explain(failed, [])
    assert hit is not None
    assert hit.text == (
        "The agent had 64 processes and threads; the limit is 64 processes and threads "
        "(OSTLER_AGENT_PROCESSES). It could start no more, and ended. "
        "Raise the limit, or let the agent start less at a time."
    )
    keeper = keep(ALL, EVERYTHING, tmp_path)
    keeper.ended(KILLED)
    assert keeper.explain(KILLED, []) is None


def test_a_kill_after_an_earlier_one_that_was_reported_is_another_matter(tmp_path: Path) -> None:
    group(tmp_path, memory__events="oom_kill 1\n")
    keeper = keep(ALL, EVERYTHING, tmp_path)
    keeper.look(usage())
    keeper.ended(KILLED)
    assert keeper.explain(KILLED, []) is None
    orderly = ExitStatus(code=0, signal=None, uptime=1.0)
    fresh = keep(ALL, EVERYTHING, tmp_path)
    fresh.ended(orderly)
    assert fresh.explain(orderly, []) is None


@pytest.fixture
def real_group() -> Iterator[Path]:
    """A group of the kernel's with controllers, below that of this process, which moves as a server does."""
    own = cgroup.agents_group()
    if own is None:
        pytest.skip("no control group of version 2 to be had")
    ours = tree.descendants([os.getpid()], tree.process_table())
    if not {"memory", "pids"} <= cgroup.enable(own, WANTED, {os.getpid(), *ours}):
        pytest.skip("no controllers of memory and processes to be had")
    made = own / f"test-limits-{os.getpid()}"
    try:
        made.mkdir()
    except OSError:
        pytest.skip("no control group of version 2 to be had")
    try:
        yield made
    finally:
        assert wait_until(lambda: cgroup.remove(made), WAIT_S)


@linux
def test_the_kernel_lets_the_server_move_and_enable_controllers(real_group: Path) -> None:
    wanted = cgroup.offered(real_group)
    servers = [subprocess.Popen(["sleep", "100"]) for _ in range(2)]
    try:
        for each in servers:
            (real_group / cgroup.PROCESSES_FILE).write_text(str(each.pid))
        # Its rule: not while the group holds a process.
        with pytest.raises(OSError, match="busy"):
            (real_group / cgroup.ENABLED_FILE).write_text("+memory")
        assert cgroup.enable(real_group, wanted, {servers[0].pid}) == set()
        assert cgroup.enable(real_group, wanted, {each.pid for each in servers}) == wanted
        assert cgroup.members(real_group / cgroup.SERVER_GROUP) == {each.pid for each in servers}
        agent = real_group / "agent"
        agent.mkdir()
        assert cgroup.offered(agent) == wanted
        (agent / cgroup.PROCESSES_FILE).write_text(str(servers[0].pid))
        assert cgroup.members(agent) == {servers[0].pid}
    finally:
        for each in servers:
            each.kill()
            each.wait()


@linux
def test_a_group_that_holds_processes_and_controllers_of_threads_takes_no_agents(real_group: Path) -> None:
    """The kernel enables some controllers all the same, and then no process may enter a group below."""
    stranger = subprocess.Popen(["sleep", "100"])
    try:
        (real_group / cgroup.PROCESSES_FILE).write_text(str(stranger.pid))
        assert cgroup.probe(real_group) is None
        (real_group / cgroup.ENABLED_FILE).write_text("+pids")
        assert "pids" in str(cgroup.probe(real_group))
        assert cgroup.enable(real_group, WANTED, {stranger.pid}) == {"pids"}
    finally:
        stranger.kill()
        stranger.wait()


@linux
async def test_a_control_group_holds_a_tree(tmp_path: Path) -> None:
    """Where the kernel offers memory and processes: one child is ended for its memory, and reported."""
    if level_obstacle(Level.CGROUP, warden=False) is not None or not process_tag.usable():
        pytest.skip("no control group of version 2 to be had")
    (tmp_path / "state").mkdir()
    async with open_containment(tmp_path / "state", Level.CGROUP):
        if not {"memory", "pids"} <= agents_controllers(mechanisms.CONTROLLERS.values()):
            pytest.skip("no controllers of memory and processes to be had")
        limits = AgentLimits(memory=128 * MB, processes=16)
        code = f"""
import subprocess, sys
take = "kept = bytearray({512 * MB})"
print(subprocess.run([sys.executable, "-I", "-S", "-c", take]).returncode, flush=True)
{FORK}
"""
        async with running(code, tmp_path, limits) as process:
            said = b""
            with trio.fail_after(WAIT_S):
                while said.count(b"\n") < 3:
                    said += bytes(await process.stdout.receive_some())
            ended, number, made = map(int, said.split())
            assert ended == -signal.SIGKILL
            assert (number, made) == (errno.EAGAIN, 15)
            hits = process.limits.look(await process.usage())
        assert [(hit.limit, hit.how, hit.ended) for hit in hits] == [
            (Limit.MEMORY, CGROUP, False),
            (Limit.PROCESSES, CGROUP, False),
        ]


# -- real processes ------------------------------------------------------------------------------------------


@pytest.fixture(params=["spawner", "thread", "namespace"])
async def started(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Each way in which a process is started."""
    async with AsyncExitStack() as stack:
        if request.param != "thread":
            level = Level.TREE if request.param == "spawner" else Level.PIDNS
            if not process_tag.usable() or level_obstacle(level, warden=False) is not None:
                pytest.skip("not on this system")
            state = tmp_path_factory.mktemp("state")
            await stack.enter_async_context(open_containment(state, level))
        yield request.param


async def output(process: AgentProcess) -> str:
    said = b""
    with trio.fail_after(WAIT_S):
        async for data in process.stdout:
            said += bytes(data)
        await process.wait()
    return said.decode()


def running(code: str, tmp_path: Path, limits: AgentLimits, *, shell: bool = False) -> Any:
    argv = ["/bin/sh", "-c", code] if shell else [sys.executable, "-I", "-S", "-c", code]
    return spawn(
        argv, cwd=tmp_path, env={"PATH": os.environ["PATH"]}, stop=StopPolicy(stdin_grace=0.0), limits=limits
    )


TAKE_MEMORY = f"""
try:
    kept = bytearray({256 * MB})
except MemoryError:
    print("refused")
else:
    print("taken")
"""


@linux
async def test_one_process_gets_no_more_memory(started: str, tmp_path: Path) -> None:
    async with running(TAKE_MEMORY, tmp_path, AgentLimits(memory=128 * MB)) as process:
        assert await output(process) == "refused\n"
    async with running(TAKE_MEMORY, tmp_path, AgentLimits(memory=1024 * MB)) as process:
        assert await output(process) == "taken\n"


@linux
async def test_last_words_explain_an_end_for_lack_of_memory(tmp_path: Path) -> None:
    limits = AgentLimits(memory=128 * MB)
    async with running(f"kept = bytearray({256 * MB})", tmp_path, limits) as process:
        with trio.fail_after(WAIT_S):
            status = await process.wait()
            while not process.stderr_tail():
                await trio.sleep(0.01)
        hit = process.limits.explain(status, process.stderr_tail())
    assert hit is not None
    assert (hit.limit, hit.most, hit.how) == (Limit.MEMORY, 128 * MB, RLIMIT)


@linux
async def test_a_file_grows_to_its_limit_and_its_end_is_explained(started: str, tmp_path: Path) -> None:
    limits = AgentLimits(file_size=MB)
    script = "exec head -c 3000000 /dev/zero > large"
    async with running(script, tmp_path, limits, shell=True) as process:
        with trio.fail_after(WAIT_S):
            await process.wait()
        assert process.limits.hit is not None
        assert process.limits.hit.limit is Limit.FILE_SIZE
    assert (tmp_path / "large").stat().st_size == MB


OPEN = """
import resource
kept = []
try:
    while len(kept) < 200:
        kept.append(open("/dev/null"))
except OSError as error:
    print(error.errno)
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@linux
async def test_a_process_opens_so_many_files(started: str, tmp_path: Path) -> None:
    async with running(OPEN, tmp_path, AgentLimits(open_files=40)) as process:
        assert await output(process) == f"{errno.EMFILE}\n(40, 40)\n"


@linux
def test_the_soft_limit_of_open_files_stays_below_a_higher_one(tmp_path: Path) -> None:
    """Programs that use select(2) break above 1024; Node.js raises its limit itself."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = Confinement(open_files=300).command(["/bin/sh", "-c", "ulimit -Sn; ulimit -Hn"])
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
    try:
        said = subprocess.run(wanted, cwd=tmp_path, capture_output=True, check=True, text=True).stdout
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert said == "200\n300\n"


@linux
async def test_what_the_server_starts_for_an_agent_has_its_limits(started: str, tmp_path: Path) -> None:
    limits = AgentLimits(memory=64 * MB, open_files=33)
    wait = "import sys; sys.stdin.read()"
    async with running(wait, tmp_path, limits) as process:
        directory, nothing = os.open("/", os.O_PATH), os.open(os.devnull, os.O_RDWR)
        made = os.open(tmp_path / "said", os.O_RDWR | os.O_CREAT)
        try:
            script = "ulimit -n; ulimit -d"
            child = await process.start(
                ["/bin/sh", "-c", script], cwd=directory, env={}, stdin=nothing, output=made
            )
            assert await trio.to_thread.run_sync(
                lambda: wait_until(lambda: (tmp_path / "said").read_text() == f"33\n{64 * 1024}\n", WAIT_S)
            )
        finally:
            for each in (directory, nothing, made):
                os.close(each)
            child.reap()


SYSTEM_PYTHON = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
"""Which every user may run: root's own is not readable in another user's namespace."""

FORK = """
import os, subprocess, sys
made = 0
try:
    while made < 40:
        subprocess.Popen(["sleep", "100"])
        made += 1
except OSError as error:
    print(error.errno)
print(made, flush=True)
sys.stdin.read()
"""


@linux
async def test_a_namespace_counts_the_processes_of_its_own_agent(tmp_path: Path) -> None:
    if level_obstacle(Level.PIDNS, warden=False) is not None or not process_tag.usable():
        pytest.skip("no PID namespaces to be had")
    if not mechanisms.namespace_counts():
        pytest.skip("the kernel limits the superuser in nothing")
    (tmp_path / "state").mkdir()
    async with open_containment(tmp_path / "state", Level.PIDNS):
        limits = AgentLimits(processes=16)
        # Two of them: each has its own count.
        argv = [SYSTEM_PYTHON, "-I", "-S", "-c", FORK]
        options: Any = {"cwd": tmp_path, "env": {"PATH": os.environ["PATH"]}, "limits": limits}
        async with spawn(argv, **options) as first, spawn(argv, **options) as second:
            for process in (first, second):
                said = b""
                with trio.fail_after(WAIT_S):
                    while said.count(b"\n") < 2:
                        said += bytes(await process.stdout.receive_some())
                number, made = map(int, said.split())
                assert number == errno.EAGAIN
                assert 8 <= made < 16
                (hit,) = process.limits.look(await process.usage())
                assert (hit.limit, hit.ended) == (Limit.PROCESSES, False)


IN_NAMESPACE = ["unshare", "--user", "--map-current-user"]


@linux
@NEEDS_USER
def test_the_prefix_inside_a_user_namespace_counts_its_own_processes_alone() -> None:
    """By another user than root, whom the kernel limits in nothing; of two namespaces each has its count."""
    if any(shutil.which(name) is None for name in ("unshare", mechanisms.PRLIMIT)):
        pytest.skip("util-linux is not here")
    trial = [*AS_USER, *IN_NAMESPACE, SYSTEM_PYTHON, "--version"]
    if subprocess.run(trial, capture_output=True, check=False).returncode:
        pytest.skip("no user namespaces to be had, or no Python in them")
    prefix = namespace_prefix(hold(AgentLimits(processes=16), Available(namespace=True)))
    command = [*AS_USER, *IN_NAMESPACE, *prefix, SYSTEM_PYTHON, "-I", "-S", "-c", FORK]
    both = [
        subprocess.Popen(command, cwd="/", stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(2)
    ]
    try:
        for each in both:
            assert each.stdout is not None
            assert int(each.stdout.readline()) == errno.EAGAIN
            assert int(each.stdout.readline()) == 15  # itself is the sixteenth
    finally:
        for each in both:
            kill([each.pid, *(entry.pid for entry in below(each.pid))])
            each.communicate()


async def test_threads_count_as_processes(tmp_path: Path) -> None:
    code = """
import sys, threading
for _ in range(3):
    threading.Thread(target=sys.stdin.read, daemon=True).start()
print(flush=True)
threading.Event().wait()
"""
    async with spawn([sys.executable, "-c", code], cwd=tmp_path, env={}) as process:
        with trio.fail_after(WAIT_S):
            await process.stdout.receive_some()
        measured = await process.usage()
    assert (measured.processes, measured.threads) == (1, 4)


async def test_a_tree_is_terminated_and_then_stopped_as_usual(tmp_path: Path) -> None:
    code = """
import signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})  # it may come before the wait for it
print(flush=True)
signal.sigwait({signal.SIGTERM})
sys.exit(3)
"""
    async with spawn([sys.executable, "-I", "-S", "-c", code], cwd=tmp_path, env={}) as process:
        with trio.fail_after(WAIT_S):
            await process.stdout.receive_some()
            await process.terminate()
            assert (await process.wait()).code == 3
            await process.terminate()  # nothing is left to be ended


async def test_an_agent_whose_share_of_processors_nothing_holds_is_not_started(tmp_path: Path) -> None:
    with pytest.raises(SpawnError, match="OSTLER_AGENT_CPUS is unavailable"):
        async with running("", tmp_path, AgentLimits(cpus=1.0)):
            raise AssertionError


# -- the disk ------------------------------------------------------------------------------------------------


def blocks(path: Path) -> int:
    return path.lstat().st_blocks * 512


def test_the_disk_use_of_a_home(tmp_path: Path) -> None:
    home, outside = tmp_path / "home", tmp_path / "outside"
    (home / "a/b").mkdir(parents=True)
    outside.mkdir()
    (outside / "large").write_bytes(b"x" * MB)
    (home / "a/file").write_bytes(b"x" * 100_000)
    os.link(home / "a/file", home / "a/b/again")
    (home / "link").symlink_to(outside)
    with (home / "sparse").open("wb") as file:
        file.truncate(100 * MB)
    places = [home, home / "a", home / "a/b", home / "a/file", home / "link", home / "sparse"]
    expected = sum(map(blocks, places))
    assert disk_use([home], 1 << 40) == DiskUse(expected, whole=True)
    assert disk_use([home, home / "a", tmp_path / "missing"], 1 << 40) == DiskUse(expected, whole=True)


@pytest.mark.parametrize("bounds", [{"most_entries": 3}, {"seconds": -1.0}])
def test_a_walk_ends_at_its_bounds(tmp_path: Path, bounds: Any) -> None:
    for number in range(10):
        (tmp_path / str(number)).write_bytes(b"x" * 10_000)
    assert not disk_use([tmp_path], 1 << 40, **bounds).whole


def test_a_walk_ends_when_it_has_seen_enough(tmp_path: Path) -> None:
    for number in range(10):
        (tmp_path / str(number)).write_bytes(b"x" * 10_000)
    everything = disk_use([tmp_path], 1 << 40)
    found = disk_use([tmp_path], 20_000)
    assert 20_000 < found.bytes < everything.bytes
    assert not found.whole


def test_what_cannot_be_read_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "closed").mkdir()
    scan: Callable[[Any], Any] = os.scandir

    def refused(path: Any) -> Any:
        if str(path).endswith("closed"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return scan(path)

    monkeypatch.setattr(os, "scandir", refused)
    found = disk_use([tmp_path], 1 << 40)
    assert found == DiskUse(blocks(tmp_path) + blocks(tmp_path / "closed"), whole=False)
