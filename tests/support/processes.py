"""What /proc tells of process trees, and how a test ends all that it started."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")
CLOCK_SLACK_S = 0.1  # between the kernel's ticks and the clock
CLOSE_WAIT = "08"  # the state in /proc/net/tcp of a connection that only the other side has closed


@dataclass(frozen=True)
class ProcessInfo:
    """One line of /proc/PID/stat, as far as tests care."""

    pid: int
    name: str
    state: str
    ppid: int
    pgid: int
    sid: int


def info(pid: int) -> ProcessInfo | None:
    """None when there is no such process."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    close = stat.rindex(")")
    fields = stat[close + 2 :].split()
    name = stat[stat.index("(") + 1 : close]
    return ProcessInfo(pid, name, fields[0], int(fields[1]), int(fields[2]), int(fields[3]))


def alive(pid: int) -> bool:
    """Whether it runs: a zombie does not."""
    found = info(pid)
    return found is not None and found.state not in "ZX"


def alive_since(pid: int, when: float) -> bool:
    """Whether the process of that number that ran at this Unix time still does: numbers are given again."""
    try:
        stat = (PROC / str(pid) / "stat").read_text()
    except OSError:
        return False
    fields = stat[stat.rindex(")") + 2 :].split()
    begun = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    booted = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    return fields[0] not in "ZX" and booted + begun <= when + CLOCK_SLACK_S


def cpu_seconds(pid: int) -> float:
    """Processor time of the process so far; work can be measured by it on a busy machine."""
    fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def waited_seconds(pid: int) -> float:
    """How long its threads that are there have waited for a processor so far."""
    return sum(waited_by_thread(pid).values())


def waited_by_thread(pid: int) -> dict[int, float]:
    """The same of each thread, by its id."""
    waited = {}
    for task in (PROC / str(pid) / "task").glob("*"):
        fields = _read(pid, f"task/{task.name}/schedstat").split()
        waited[int(task.name)] = int(fields[1]) / 1e9 if len(fields) > 1 else 0.0
    return waited


def thread_states(pid: int) -> set[str]:
    """The states that its threads are in."""
    stats = (_read(pid, f"task/{task.name}/stat") for task in (PROC / str(pid) / "task").glob("*"))
    return {stat.rpartition(b")")[2].split()[0].decode() for stat in stats if stat}


def everyone() -> list[ProcessInfo]:
    found = (info(int(entry.name)) for entry in PROC.iterdir() if entry.name.isdigit())
    return [process for process in found if process]


def descendants(root: int) -> list[ProcessInfo]:
    """Living processes below `root`, itself not included; re-parented ones are not found."""
    children: dict[int, list[ProcessInfo]] = {}
    for process in everyone():
        children.setdefault(process.ppid, []).append(process)
    found: list[ProcessInfo] = []
    todo = [root]
    while todo:
        for child in children.get(todo.pop(), ()):
            todo.append(child.pid)
            if child.state not in "ZX":
                found.append(child)
    return found


def command_line(pid: int) -> str:
    return _read(pid, "cmdline").replace(b"\0", b" ").decode(errors="replace").strip()


def environment(pid: int) -> dict[str, str]:
    """The environment it was started with; empty when it is gone or not ours."""
    pairs = (entry.partition(b"=") for entry in _read(pid, "environ").split(b"\0") if entry)
    return {key.decode(errors="replace"): value.decode(errors="replace") for key, _, value in pairs}


def mentioning(needle: str | Path) -> list[int]:
    """Living processes whose command line, environment or working directory contains `needle`."""
    text = str(needle).encode()
    found = []
    for process in everyone():
        if process.pid == os.getpid() or process.state in "ZX":
            continue
        try:
            cwd = os.readlink(PROC / str(process.pid) / "cwd").encode()
        except OSError:
            cwd = b""
        if any(text in data for data in (_read(process.pid, "cmdline"), _read(process.pid, "environ"), cwd)):
            found.append(process.pid)
    return found


def half_closed(port: int) -> set[int]:
    """The client's ports of connections to `port` that only the client has closed."""
    found = set()
    for line in (PROC / "net" / "tcp").read_text().splitlines()[1:]:
        local, remote, state = line.split()[1:4]
        if state == CLOSE_WAIT and int(local.rpartition(":")[2], 16) == port:
            found.add(int(remote.rpartition(":")[2], 16))
    return found


def kill(pids: Iterable[int], number: int = signal.SIGKILL) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


def kill_mentioning(needle: str | Path) -> list[int]:
    """Kill whatever still mentions `needle`, typically a test's own directory; returns what was killed."""
    killed: list[int] = []
    for _ in range(10):
        left = mentioning(needle)
        if not left:
            break
        kill(left)
        killed += left
        time.sleep(0.02)
    return killed


def wait_until(condition: Callable[[], bool], timeout: float = 5.0, step: float = 0.01) -> bool:
    """Poll `condition`, blocking, for `timeout` seconds at most; says whether it came true."""
    until = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(step)
    return True


def _read(pid: int, name: str) -> bytes:
    try:
        return (PROC / str(pid) / name).read_bytes()
    except OSError:
        return b""
