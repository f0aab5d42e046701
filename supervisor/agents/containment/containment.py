"""Containment: one server's hold on the processes of its agents, so that none survives.

Each agent has a process marker (marker.py): its process tag, the processes that a task waits for, and its
cgroup where that level is used. While containment is open, the kernel reparents orphans below the server to
the server instead of PID 1. The server reaps those that die, and ends those whose agent is gone.

Before the next server of the same state directory starts, it ends what an earlier one left: there are such
processes when server and warden were killed at once, or when a server ran without a warden.
"""

from __future__ import annotations

import os
import signal
import time
import uuid
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Sequence, Set
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import structlog
import trio

from supervisor.agents.containment import cgroup, process_tag, tree
from supervisor.agents.containment.levels import Level
from supervisor.agents.containment.lifeline import WARDEN_NAME
from supervisor.agents.containment.marker import SCANNING, ProcessMarker, live_markers, owned_processes
from supervisor.agents.containment.process_tag import Tag
from supervisor.agents.containment.tree import Bounds, ProcessEntry, ProcessId
from supervisor.agents.environment import MARKER
from supervisor.agents.homes.data_dir import write_private
from supervisor.agents.spawning import prctl
from supervisor.agents.spawning.link import Spawner
from supervisor.agents.spawning.start import discard, take_ahead

log = structlog.get_logger(__name__)

PID_FILE: Final = "server.pid"
"""File in the state directory while the server runs: its process id, a decimal number and a line end."""

TICK_SECONDS: Final = 5.0
"""Seconds between two checks for orphans, besides the checks after a child's death: adoption sends no
signal."""

COALESCE_SECONDS: Final = 0.05
"""Seconds between two looks at orphans, when many children die at once."""

REAP_SECONDS: Final = 5.0
"""Seconds of repeated killing. Only what hangs in the kernel or may not be signalled is left by then."""

POLL_SECONDS: Final = 0.02
"""Seconds between two passes of killing."""

_current: trio.lowlevel.RunVar[Containment | None] = trio.lowlevel.RunVar("containment", None)


class Containment:
    """The containment of one server's agents. Made by `open_containment`."""

    def __init__(self, level: Level, instance: int, spawner: Spawner | None) -> None:
        self.level = level
        self.instance = instance
        self.spawner = spawner
        """Without one there are no tags either: the server itself would have to carry each for a moment."""
        self.can_fork = spawner is not None and level is not Level.PIDNS
        """Whether a running program may fork agents' processes. It cannot fork into another PID namespace,
        and tags are needed to tell a fork from its siblings."""
        self._numbered = 0
        self._live: dict[Tag, ProcessMarker] = {}
        self._controllers: frozenset[str] | None = None
        self._empty: list[Path] = []
        """Groups to be removed; one is busy until its last process has fully exited."""

    def new_marker(self) -> ProcessMarker:
        """Make the process marker of an agent that is about to start; the caller returns it with `release`.

        Raises OSError if its cgroup cannot be created.
        """
        self._numbered += 1
        number = process_tag.tag_of(self.instance, self._numbered)
        parent = cgroup.agents_group() if self.level is Level.CGROUP else None
        process_marker = ProcessMarker(
            tag=number if self.spawner is not None else 0,
            variable=marker_prefix(self.instance) + uuid.uuid4().hex,
            level=self.level,
            group=None if parent is None else cgroup.create(parent, self.instance, self._numbered),
            spawner=self.spawner,
        )
        if process_marker.tag:
            self._live[number] = process_marker
        return process_marker

    def controllers(self, wanted: Collection[str]) -> frozenset[str]:
        """Return the controllers that are enabled for agents' cgroups, of `wanted`. The first call enables
        them, and may move the server into a cgroup of its own: without limits everything stays as it is."""
        if self._controllers is None:
            group = cgroup.agents_group() if self.level is Level.CGROUP else None
            self._controllers = frozenset()
            if group is not None:
                below = tree.descendants([os.getpid()], tree.process_table())
                self._controllers = cgroup.enable(group, wanted, {os.getpid(), *below, *_warden()})
        return self._controllers

    def release(self, process_marker: ProcessMarker) -> None:
        """Release the process marker of an agent that is gone; a process that still carries it is an
        orphan."""
        self._live.pop(process_marker.tag, None)
        if process_marker.group is not None:
            self._empty.append(process_marker.group)
            self._remove_groups()

    def _remove_groups(self) -> None:
        self._empty = [group for group in self._empty if not cgroup.remove(group)]

    async def keep_orphans(self) -> None:
        """Reap adopted orphans, and end those whose agent is gone, until cancelled."""
        with trio.open_signal_receiver(signal.SIGCHLD) as deaths:
            while True:
                await self._tend()
                await trio.sleep(COALESCE_SECONDS)
                with trio.move_on_after(TICK_SECONDS):
                    await anext(deaths)

    async def _tend(self) -> None:
        self._remove_groups()
        # Most children are waited for by a task, which reaps them: skip those.
        waited_for = {process.pid for process in owned_processes()}
        found = await trio.to_thread.run_sync(_tagged_children, waited_for, limiter=SCANNING)
        # Read after the children were listed: any child started meanwhile is owned, or starting, by now.
        owned = owned_processes()
        spawners = self.spawner.pids() if self.spawner is not None else ()
        dead, strays = list[ProcessId](), list[ProcessId]()
        for entry, number in found:
            if process_tag.instance_of_tag(number) != self.instance:
                continue  # of another server: its starter waits for it
            # Checked regardless of its tag: a process can set its tag to another agent's.
            if entry.id in owned or entry.id.pid in spawners:
                continue
            process_marker = self._live.get(number)
            if process_marker is not None and process_marker.starting:
                continue  # perhaps about to be owned; if not, the next check finds it
            if not entry.alive:
                dead.append(entry.id)
            elif process_marker is None and number != process_tag.tag_of_spawner(self.instance):
                log.warning("ending an orphaned process of an agent", pid=entry.id.pid)
                strays.append(entry.id)
        if dead or strays:
            await trio.to_thread.run_sync(_put_away, dead, strays, limiter=SCANNING)


def _put_away(dead: Sequence[ProcessId], strays: Sequence[ProcessId]) -> None:
    """Reap the dead and kill the strays. In a thread: there may be thousands, each with a read of /proc."""
    tree.reap(dead)
    for process in strays:
        with suppress(ProcessLookupError, PermissionError):
            tree.kill(process, signal.SIGKILL)


def _tagged_children(without: Set[int]) -> list[tuple[ProcessEntry, Tag]]:
    """Return this process's children that carry any tag, including dead ones."""
    return [
        (entry, number)
        for pid in tree.children()
        if pid not in without
        and (number := process_tag.read_tag(pid))
        and (entry := tree.read_entry(pid)) is not None
    ]


@contextmanager
def process_marking() -> Iterator[ProcessMarker]:
    """Give a process marker to a new agent of this run, which is gone when the block is left. Raises
    OSError."""
    containment, process_markers = _current.get(), live_markers()
    process_marker = ProcessMarker() if containment is None else containment.new_marker()
    process_markers.add(process_marker)
    try:
        yield process_marker
    finally:
        process_markers.discard(process_marker)
        if containment is not None:
            containment.release(process_marker)


def containment_level() -> Level:
    """The containment level of this run's agents."""
    containment = _current.get()
    return Level.TREE if containment is None else containment.level


def agents_controllers(wanted: Collection[str]) -> frozenset[str]:
    """Return the controllers of this run's agents' cgroups, of `wanted` (`Containment.controllers`)."""
    containment = _current.get()
    return frozenset() if containment is None else containment.controllers(wanted)


def _warden() -> list[int]:
    """The PID of this server's warden, if it has one."""
    parent = os.getppid()
    return [parent] if tree.read_file(parent, "comm").strip() == WARDEN_NAME.encode() else []


def can_fork() -> bool:
    """Whether a running program may fork agents' processes here."""
    containment = _current.get()
    return containment is not None and containment.can_fork


async def kill_agents() -> None:
    """Kill all processes that carry a process marker of this state directory, for at most REAP_SECONDS, in a
    thread; cancellation waits for it. Each agent's owner sees an ordinary exit."""
    containment = _current.get()
    if containment is not None:
        await _reap_orphans(containment.instance)


def killing_agents() -> Callable[[], object]:
    """Return a blocking function that does the same, callable in any thread."""
    containment = _current.get()
    return (lambda: None) if containment is None else partial(reap_orphans, containment.instance)


@asynccontextmanager
async def open_containment(state: Path, level: Level) -> AsyncIterator[Containment]:
    """Contain the processes that are spawned inside the block.

    The caller runs on the main thread and holds the lock of the state directory. First, the processes that
    earlier servers of this state directory left are ended.

    Raises OSError.

    Leaving the block, in any way, ends every process that still carries a process marker of this server; that
    is shielded, and bounded by REAP_SECONDS.
    """
    instance = await trio.to_thread.run_sync(process_tag.instance_id, state)
    # First: what an earlier server left works in the same directories, with the same sessions.
    await _reap_orphans(instance)
    # Without tags the server could not tell orphans from other children, so the warden reaps them then.
    adopted_before = prctl.is_subreaper()
    adopting = process_tag.usable() and hasattr(os, "memfd_create") and prctl.be_subreaper()
    spawner: Spawner | None = None
    try:
        if adopting:
            spawner = Spawner(process_tag.tag_of_spawner(instance))
            await spawner.open()
        elif (unused := take_ahead()) is not None:
            discard(unused)
        if not adopting and level is Level.PIDNS:
            raise OSError("containment 'pidns' is unavailable: this system has no subreaper or no memfd")
        pid_file = state / PID_FILE
        await trio.to_thread.run_sync(write_private, pid_file, f"{os.getpid()}\n")
        containment = Containment(level, instance, spawner)
        _current.set(containment)
        log.info("containing agents", containment=level.value, tags=adopting)
        try:
            async with trio.open_nursery() as nursery:
                if adopting:
                    nursery.start_soon(containment.keep_orphans)
                try:
                    yield containment
                finally:
                    with trio.CancelScope(shield=True):
                        if spawner is not None:
                            spawner.close()
                        await _reap_orphans(instance)
                        if adopting:
                            await containment._tend()
                nursery.cancel_scope.cancel()
        finally:
            _current.set(None)
            with suppress(OSError):
                pid_file.unlink()
    finally:
        if spawner is not None:
            spawner.close()
        if adopting:
            prctl.be_subreaper(adopted_before)


async def _reap_orphans(instance: int) -> None:
    ended, left = await trio.to_thread.run_sync(reap_orphans, instance)
    if ended:
        log.warning("ended orphaned processes of agents", ended=ended - len(left), left=left)


def marker_prefix(instance: int) -> str:
    """Return the prefix of the marker variable of every agent of this state directory."""
    return f"{instance:010x}-"


def members(instance: int) -> dict[int, ProcessEntry]:
    """Return the living processes of agents of this state directory, with their descendants, by PID.

    Without this process and its ancestors.
    """
    table = tree.process_table()
    wanted = f"{MARKER}={marker_prefix(instance)}".encode()
    kept = Bounds().rooted(table).trunk
    roots = {
        pid
        for pid, entry in table.items()
        if entry.alive
        and pid not in kept
        and (
            process_tag.instance_of_tag(process_tag.read_tag(pid)) == instance
            or any(text.startswith(wanted) for text in tree.read_file(pid, "environ").split(b"\0"))
        )
    }
    pids = (roots | tree.descendants(roots, table)) - kept
    return {pid: table[pid] for pid in pids if table[pid].alive}


def reap_orphans(instance: int) -> tuple[int, list[int]]:
    """Kill them until none is left. Return their number, and the PIDs that could not be killed.

    The caller holds the lock of the state directory, so that no other server uses it.
    """
    bounds = Bounds().rooted()
    group = cgroup.agents_group()
    groups = cgroup.leftovers(group, instance) if group is not None else []
    for left in groups:
        cgroup.kill(left, bounds)
    until = time.monotonic() + REAP_SECONDS
    seen = set()
    while found := members(instance):
        seen |= {entry.id for entry in found.values()}
        if time.monotonic() > until:
            break
        for entry in found.values():
            if tree.trespass(entry.id.pid, bounds) is None:
                with suppress(ProcessLookupError, PermissionError):
                    tree.kill(entry.id, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    # A group stays busy until the last killed process has fully exited.
    while not all(cgroup.remove(left) for left in groups) and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    return len(seen), sorted(found)
