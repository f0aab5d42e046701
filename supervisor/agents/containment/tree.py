"""Finds the processes that belong to an agent, and ends them.

A process group is not enough: agents put their shells and tool servers into separate sessions. A process
belongs to an agent when it descends from the agent, was seen to descend from it earlier, is in its session or
process group, or carries its tag (see process_tag.py) or, where tags are unavailable, its marker variable.

Tags and markers can be forged, and reads of /proc race. So the processes that a tree can never hold are a
separate value (`Bounds`), checked where trees are made and once more before a signal is sent: the server with
all its ancestors, the spawner, and other agents' leaders with all their descendants.

Everything here is synchronous and reads all of /proc (tens of microseconds per process): callers on the event
loop use a thread. Without /proc only the process group is known.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping, Set
from contextlib import suppress
from functools import cached_property
from pathlib import Path

import attrs
import structlog

log = structlog.get_logger(__name__)

PROC = Path("/proc")

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

DEAD_STATES = frozenset("ZXx")


@attrs.frozen
class ProcessId:
    """A process, identified by its PID and its start time (clock ticks since boot), since PIDs are reused."""

    pid: int
    started: int


@attrs.frozen
class ProcessEntry:
    """One line of the process table."""

    id: ProcessId
    parent: int
    group: int
    session: int
    alive: bool
    """False for a zombie."""
    cpu_seconds: float
    rss_bytes: int
    threads: int = 1


@attrs.frozen
class Bounds:
    """The processes that one agent's tree cannot contain.

    A process belongs to its nearest leader ancestor, regardless of the tag or marker it carries.
    """

    trunk: frozenset[int] = frozenset()
    """PIDs of the server, its ancestors, and the spawner: no tree contains them or goes through them."""

    own: frozenset[ProcessId] = frozenset()
    """The agent's leader, and the other processes that the server has started for it."""

    others: frozenset[ProcessId] = frozenset()
    """The same for all other agents: neither they nor their descendants belong to this agent."""

    def joined(self, later: Bounds) -> Bounds:
        """Combine the bounds of two moments: between them other agents may have come or gone."""
        return Bounds(
            trunk=self.trunk | later.trunk,
            own=self.own | later.own,
            others=(self.others | later.others) - self.own - later.own,
        )

    def rooted(self, table: Mapping[int, ProcessEntry] | None = None) -> Bounds:
        """Add this process and its ancestors to the trunk: from the table, or, without one, as of now."""
        pid = os.getpid()
        return attrs.evolve(self, trunk=self.trunk.union((pid, *ancestors(pid, table))))


class ProcessTable(dict[int, ProcessEntry]):
    """Processes by PID, with indexes that a hundred agents can share."""

    @cached_property
    def below(self) -> Mapping[int, list[int]]:
        """The PIDs of the children of each process."""
        found: dict[int, list[int]] = {}
        for pid, entry in self.items():
            found.setdefault(entry.parent, []).append(pid)
        return found

    @cached_property
    def companions(self) -> Mapping[int, set[int]]:
        """The PIDs of the processes in each session, and in each process group."""
        found: dict[int, set[int]] = {}
        for pid, entry in self.items():
            for leader in (entry.session, entry.group):
                found.setdefault(leader, set()).add(pid)
        return found


def process_table() -> ProcessTable:
    """Return all processes by PID, including zombies; empty without /proc."""
    table = ProcessTable()
    try:
        names = os.listdir(PROC)  # noqa: PTH208 - names only: a Path per process costs more than the rest
    except OSError:
        return table
    for name in names:
        if name.isdigit() and (entry := read_entry(int(name))) is not None:
            table[entry.id.pid] = entry
    return table


def read_entry(pid: int) -> ProcessEntry | None:
    """Return one line of the process table; None if there is no such process."""
    text = read_file(pid, "stat")
    # The command name, in parentheses, may hold anything, so fields count from the last closing one
    # (proc(5)).
    fields = text[text.rfind(b")") + 2 :].split()
    if len(fields) < 22:
        return None
    return ProcessEntry(
        id=ProcessId(pid, int(fields[19])),
        parent=int(fields[1]),
        group=int(fields[2]),
        session=int(fields[3]),
        alive=fields[0].decode() not in DEAD_STATES,
        cpu_seconds=(int(fields[11]) + int(fields[12])) / CLOCK_TICKS,
        rss_bytes=int(fields[21]) * PAGE_BYTES,
        threads=int(fields[17]),
    )


def shared_bytes(pid: int) -> int:
    """Return the bytes of a process's memory that are not charged to it (RSS minus PSS, in which a shared
    page counts in part). 0 where the kernel does not report it. Takes milliseconds for each 100 MB."""
    found = {
        words[0]: int(words[1]) * 1024
        for line in read_file(pid, "smaps_rollup").splitlines()
        if len(words := line.split()) == 3 and words[0] in (b"Rss:", b"Pss:")
    }
    return max(0, found.get(b"Rss:", 0) - found.get(b"Pss:", 0))


def read_file(pid: int, name: str) -> bytes:
    """Return the content of a file of the process in /proc; empty if the process is gone or not readable."""
    try:
        descriptor = os.open(f"{PROC}/{pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    chunks = []
    try:
        while chunk := os.read(descriptor, 65536):
            chunks.append(chunk)
    except OSError:
        return b""
    finally:
        os.close(descriptor)
    return b"".join(chunks)


def children() -> list[int]:
    """The PIDs of this process's children, started by the main thread or adopted, including zombies."""
    try:
        return [int(pid) for pid in (PROC / f"self/task/{os.getpid()}/children").read_bytes().split()]
    except OSError:  # a kernel without this file
        return [pid for pid, entry in process_table().items() if entry.parent == os.getpid()]


def descendants(roots: Iterable[int], table: ProcessTable) -> set[int]:
    """The PIDs below `roots`, without `roots`."""
    children = table.below
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def marked(variable: str, table: Mapping[int, ProcessEntry]) -> dict[str, set[int]]:
    """Return the PIDs of the living by their values of `variable` in the environment, as of their exec."""
    beginning = f"{variable}=".encode()
    found: dict[str, set[int]] = {}
    for pid, entry in table.items():
        for text in read_file(pid, "environ").split(b"\0") if entry.alive else ():
            if text.startswith(beginning):
                found.setdefault(os.fsdecode(text[len(beginning) :]), set()).add(pid)
    return found


def ancestors(pid: int, table: Mapping[int, ProcessEntry] | None = None) -> list[int]:
    """Return the ancestors of a process, the nearest first: from the table, or, without one, as of now."""
    found: list[int] = []
    while True:
        entry = read_entry(pid) if table is None else table.get(pid)
        # A table is not a snapshot of one moment: where PIDs were reused it may hold a cycle.
        if entry is None or entry.parent <= 0 or entry.parent in found:
            return found
        pid = entry.parent
        found.append(pid)


def belonging(
    leader: ProcessId,
    known: Iterable[ProcessId],
    marked: Iterable[int],
    table: ProcessTable,
    bounds: Bounds,
) -> dict[int, ProcessEntry]:
    """Return the living processes of one agent in the table, by PID, including the leader.

    `leader`: the agent's own process. It must not have been reaped: a zombie keeps its PID, so that its
    session and group cannot be those of foreign processes.

    `known`: processes seen earlier. They count while they live, and so do their descendants.

    `marked`: the PIDs in the table that carry the agent's tag or marker.

    The result contains nothing beyond `bounds`, and nothing reached through it.
    """
    # Compared with the start time: a PID of an earlier moment may be another process by now.
    own, others = _present({leader, *bounds.own}, table), _present(bounds.others, table)
    others -= own
    roots = own | _present(known, table)
    roots |= table.companions.get(leader.pid, set())
    roots.update(pid for pid in marked if pid in table)
    # Tags and markers can be forged: what is closed is not entered, not even on the way to something else.
    closed = others | bounds.trunk
    pids: set[int] = set()
    # A root that was found by its mark or session alone may be another agent's child.
    waiting = [pid for pid in roots - closed if not _elsewhere(pid, own, others, bounds.trunk, table)]
    while waiting:
        pid = waiting.pop()
        if pid not in pids:
            pids.add(pid)
            waiting += [child for child in table.below.get(pid, ()) if child not in closed]
    return {pid: table[pid] for pid in pids if table[pid].alive}


def _present(processes: Iterable[ProcessId], table: Mapping[int, ProcessEntry]) -> set[int]:
    return {
        process.pid
        for process in processes
        if (entry := table.get(process.pid)) is not None and entry.id == process
    }


def _elsewhere(
    pid: int,
    own: Set[int],
    others: Set[int],
    trunk: Set[int],
    table: Mapping[int, ProcessEntry],
) -> bool:
    """Whether a process belongs to another agent, in spite of its tag or marker.

    Its nearest leader ancestor decides, else its session, which a process can only be born into.
    """
    if pid in own:
        return False
    for above in ancestors(pid, table):
        if above in own:
            return False
        if above in others:
            return True
        # Above the server, descent says nothing about agents.
        if above in trunk:
            break
    return table[pid].session in others


def living(processes: Iterable[ProcessId]) -> set[ProcessId]:
    """Return the processes that have not ended; one small read each, so callers on the loop use a thread."""
    return {
        process
        for process in processes
        if (entry := read_entry(process.pid)) is not None and entry.id == process and entry.alive
    }


def kill_tree(
    leader: ProcessId | None, processes: Iterable[ProcessId], number: signal.Signals, bounds: Bounds
) -> None:
    """Send the signal to the process group of `leader` (not reaped yet), if given, and to each of
    `processes`.

    A process that may not be signalled, or is gone, is skipped: the next check shows what is left. A process
    beyond `bounds` is never signalled; its presence among the processes is logged as an error. Reads /proc a
    few times for each: callers on the event loop use a thread.
    """
    if leader is not None and not _group_is_foreign(leader, bounds):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader.pid, number)
    for process in processes:
        # Checked again right before the signal: processes come and go while /proc is read.
        reason = trespass(process.pid, bounds)
        if reason is not None:
            agent = None if leader is None else leader.pid
            log.error("not signalling a process", pid=process.pid, agent=agent, reason=reason)
            continue
        with suppress(ProcessLookupError, PermissionError):
            kill(process, number)


def trespass(pid: int, bounds: Bounds) -> str | None:
    """Return why this agent's signals may not reach a process now; None if they may."""
    if pid <= 1 or pid in bounds.trunk or pid == os.getpid():
        return "it belongs to the server"
    passed: set[int] = set()
    while pid > 1 and pid not in passed and pid not in bounds.trunk:
        passed.add(pid)
        entry = read_entry(pid)
        if entry is None or entry.id in bounds.own:
            break
        if entry.id in bounds.others:
            return "it belongs to another agent"
        pid = entry.parent
    return None


def _group_is_foreign(leader: ProcessId, bounds: Bounds) -> bool:
    """Whether a process beyond the bounds is in the leader's group, or is mistaken for its leader."""
    if leader.pid <= 1 or leader.pid in bounds.trunk:
        log.error("not signalling a process group", group=leader.pid, reason="it belongs to the server")
        return True
    # A process of the same session can join the group, and killpg would end it, too.
    for pid in (os.getpid(), *bounds.trunk, *(each.pid for each in bounds.others)):
        with suppress(ProcessLookupError, PermissionError):
            if os.getpgid(pid) == leader.pid:
                log.error(
                    "not signalling a process group",
                    group=leader.pid,
                    reason="it contains processes of others",
                    pid=pid,
                )
                return True
    return False


def kill(process: ProcessId, number: signal.Signals) -> None:
    """Send the signal to this process, and never to another one that reuses its PID.

    Raises ProcessLookupError or PermissionError.
    """
    if not hasattr(os, "pidfd_open"):
        # Before Linux 5.3 nothing closes the race between check and signal.
        os.kill(process.pid, number)
        return
    # The pidfd pins the process, so its PID cannot be reused between check and signal.
    descriptor = os.pidfd_open(process.pid)
    try:
        entry = read_entry(process.pid)
        if entry is not None and entry.id == process:
            signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


def reap(processes: Iterable[ProcessId]) -> None:
    """Reap those of the dead that were reparented to this process. A process whose PID is reused is skipped;
    the caller leaves out those that another task waits for. One small read each, so callers on the event loop
    use a thread."""
    for process in processes:
        entry = read_entry(process.pid)
        if entry is not None and entry.id == process and not entry.alive:
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)


def identify(pid: int) -> ProcessId:
    """Return the identity of a child of this process that has not been reaped yet."""
    entry = read_entry(pid)
    return ProcessId(pid, 0) if entry is None else entry.id
