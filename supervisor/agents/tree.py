"""Which processes belong to an agent, and how they are ended.

A process group is not enough: agents put their shells and tool servers into sessions of their own. A process
counts as an agent's when it descends from the agent, was seen to descend from it earlier, is in its session
or process group, or carries its brand (see brand.py) or, where brands cannot be had, its marker variable.

Everything here is synchronous and reads all of /proc (tens of microseconds per process): callers on the event
loop use a thread. Where there is no /proc only the process group is known.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import attrs

__all__ = [
    "ProcessEntry",
    "ProcessId",
    "belonging",
    "children",
    "descendants",
    "identify",
    "kill",
    "kill_tree",
    "living",
    "marked",
    "process_table",
    "read_entry",
    "read_file",
    "reap",
]

PROC = Path("/proc")

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

DEAD_STATES = frozenset("ZXx")


@attrs.frozen
class ProcessId:
    """A process for good: its number, and when it started (clock ticks since boot), as numbers are used
    again."""

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


def process_table() -> dict[int, ProcessEntry]:
    """All processes by pid, zombies included; empty where there is no /proc."""
    table: dict[int, ProcessEntry] = {}
    try:
        names = os.listdir(PROC)  # noqa: PTH208 - names only: a Path per process costs more than the rest
    except OSError:
        return table
    for name in names:
        if name.isdigit() and (entry := read_entry(int(name))) is not None:
            table[entry.id.pid] = entry
    return table


def read_entry(pid: int) -> ProcessEntry | None:
    """One line of the process table; None when there is no such process."""
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
    )


def read_file(pid: int, name: str) -> bytes:
    """A file of the process; empty when it is gone or is not ours to look at."""
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
    """The pids of our children that the main thread started or that were handed to us, zombies included."""
    try:
        return [int(pid) for pid in (PROC / f"self/task/{os.getpid()}/children").read_bytes().split()]
    except OSError:  # a kernel without this file
        return [pid for pid, entry in process_table().items() if entry.parent == os.getpid()]


def descendants(roots: Iterable[int], table: Mapping[int, ProcessEntry]) -> set[int]:
    """The pids below ``roots``, without these themselves."""
    children: dict[int, list[int]] = {}
    for pid, entry in table.items():
        children.setdefault(entry.parent, []).append(pid)
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found:
                found.add(child)
                waiting.append(child)
    return found


def marked(variable: str, value: str, table: Mapping[int, ProcessEntry]) -> set[int]:
    """The pids whose environment, as they were executed, holds ``variable=value``."""
    wanted = f"{variable}={value}".encode()
    return {
        pid
        for pid, entry in table.items()
        if entry.alive and wanted in read_file(pid, "environ").split(b"\0")
    }


def belonging(
    leader: ProcessId,
    known: Iterable[ProcessId],
    marked: Iterable[int],
    table: Mapping[int, ProcessEntry],
) -> dict[int, ProcessEntry]:
    """The living processes in the table of the agent that ``leader`` is or was, by pid, the leader included.

    ``known`` are processes seen in earlier looks: they count while they live, and so does what is below them.
    ``marked`` are the pids of those in the table that carry the agent's mark.
    The leader must not have been reaped: a zombie keeps its number, so that its session and group can be told
    from those of strangers.
    """
    roots = {
        process.pid
        for process in (leader, *known)
        if (entry := table.get(process.pid)) is not None and entry.id == process
    }
    roots |= {pid for pid, entry in table.items() if leader.pid in (entry.session, entry.group)}
    roots.update(marked)
    pids = roots | descendants(roots, table)
    pids.discard(os.getpid())
    return {pid: table[pid] for pid in pids if table[pid].alive}


def living(processes: Iterable[ProcessId]) -> set[ProcessId]:
    """Those of ``processes`` that have not ended; one small read each."""
    return {
        process
        for process in processes
        if (entry := read_entry(process.pid)) is not None and entry.id == process and entry.alive
    }


def kill_tree(leader: ProcessId, processes: Iterable[ProcessId], number: signal.Signals) -> None:
    """Send the signal to the group of ``leader`` (not reaped yet) and to each of ``processes`` that still is.

    One that we may not signal, or that is gone, is passed over: what is left shows in the next look.
    """
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader.pid, number)
    for process in processes:
        with suppress(ProcessLookupError, PermissionError):
            kill(process, number)


def kill(process: ProcessId, number: signal.Signals) -> None:
    """Send the signal to this process and to no other that has got its number since.

    Raises ProcessLookupError or PermissionError.
    """
    if not hasattr(os, "pidfd_open"):
        os.kill(process.pid, number)
        return
    # The descriptor holds on to the process, so that after the comparison nobody else can be hit.
    descriptor = os.pidfd_open(process.pid)
    try:
        entry = read_entry(process.pid)
        if entry is not None and entry.id == process:
            signal.pidfd_send_signal(descriptor, number)
    finally:
        os.close(descriptor)


def reap(processes: Iterable[ProcessId]) -> None:
    """Collect those of the dead that were handed to us as their new parent; never one that a Popen owns."""
    for process in processes:
        with suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)


def identify(pid: int) -> ProcessId:
    """The identity of a child of ours that has not been reaped yet."""
    entry = read_entry(pid)
    return ProcessId(pid, 0) if entry is None else entry.id
