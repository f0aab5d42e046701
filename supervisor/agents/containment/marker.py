"""What identifies the processes of one agent (its process marker), and which processes it can never own."""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

import attrs
import trio

from supervisor.agents.containment import levels, process_tag, tree
from supervisor.agents.containment.levels import Level
from supervisor.agents.containment.process_tag import Tag
from supervisor.agents.containment.tree import Bounds, ProcessId
from supervisor.agents.environment import MARKER
from supervisor.agents.spawning.confinement import Confinement
from supervisor.agents.spawning.link import Spawner

SCANNING: Final = trio.CapacityLimiter(2)
"""Threads at a time that search a snapshot of /proc for a tree, or signal its processes."""

MOST_PAUSE_SECONDS: Final = 0.1
"""Longest pause in seconds between two reads of all of /proc. Stopping an agent looks again after each."""

_ONE: Final = trio.CapacityLimiter(1)

STARTS_AT_ONCE: Final = 4
"""Processes that are started for one agent at the same time: starts that hang delay only this agent's."""

_live: trio.lowlevel.RunVar[set[ProcessMarker]] = trio.lowlevel.RunVar("process_markers")


def live_markers() -> set[ProcessMarker]:
    """Return the process_markers of the agents of this run that live or start."""
    try:
        return _live.get()
    except LookupError:
        process_markers: set[ProcessMarker] = set()
        _live.set(process_markers)
        return process_markers


def owned_processes() -> set[ProcessId]:
    """Return the children of the server that tasks wait for: only those tasks may reap them."""
    return {process for process_marker in live_markers() for process in process_marker.owned}


@attrs.define(eq=False)
class ProcessMarker:
    """Identifies the processes of one agent. `tag` is 0 where there are no tags."""

    tag: Tag = 0
    variable: str = attrs.field(factory=lambda: uuid.uuid4().hex)
    """Value of the marker variable."""
    level: Level = Level.TREE
    group: Path | None = None
    spawner: Spawner | None = None
    """Starts its processes; None where the server's threads do."""
    owned: set[ProcessId] = attrs.field(factory=set)
    """Children of the server that a task waits for, including the leader. Only that task may reap them, and
    no other agent's tree contains them."""
    starting: int = 0
    """Starts under way: a child that carries the process marker may be one that is about to be owned."""
    starts: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(STARTS_AT_ONCE))

    def own(self, pid: int) -> ProcessId:
        """Note that a task waits for this child of the server."""
        process = tree.identify(pid)
        self.owned.add(process)
        return process

    def disown(self, process: ProcessId) -> None:
        """Note that it has been reaped, or that no task waits for it any more."""
        self.owned.discard(process)

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return the command that runs `argv` at the level of this process marker."""
        if self.group is not None and self.spawner is None:
            return levels.in_cgroup(argv, self.group)
        return levels.in_namespace(argv) if self.level is Level.PIDNS else list(argv)

    def confined(
        self, argv: Sequence[str], confinement: Confinement | None
    ) -> tuple[Sequence[str], Confinement | None]:
        """Return a command that confines itself, where the spawner cannot; and the confinement that is left
        for the spawner.

        The namespace is made before the confinement, within which nothing can be mounted.
        """
        if confinement is None or (self.spawner is not None and self.level is not Level.PIDNS):
            return argv, confinement
        return confinement.command(argv), None

    def of(self, seen: Snapshot) -> set[int]:
        """Return the PIDs of the processes in the snapshot that carry the process marker."""
        if self.tag:
            return seen.tags.get(self.tag, set())
        return seen.markers.get(self.variable, set())

    def bounds(self) -> Bounds:
        """Return the bounds of this agent's tree, without the server and its ancestors (`rooted`)."""
        trunk = self.spawner.pids() if self.spawner is not None else ()
        others = (process_marker.owned for process_marker in live_markers() if process_marker is not self)
        return Bounds(
            trunk=frozenset(trunk), own=frozenset(self.owned), others=frozenset[ProcessId]().union(*others)
        )


class Snapshot:
    """The processes of the machine at one moment, which a hundred agents can share. Made in a thread: it
    reads all of /proc."""

    def __init__(self) -> None:
        self.table: Final = tree.process_table()

    @cached_property
    def tags(self) -> Mapping[Tag, set[int]]:
        """The PIDs of the living processes by their tags. Reads /proc on first use."""
        found: dict[Tag, set[int]] = {}
        for pid, entry in self.table.items():
            if entry.alive and (number := process_tag.read_tag(pid)):
                found.setdefault(number, set()).add(pid)
        return found

    @cached_property
    def markers(self) -> Mapping[str, set[int]]:
        """The PIDs by the values of the marker variable, where there are no tags."""
        return tree.marked(MARKER, self.table)


class _Scans:
    """The reads of all of /proc in this run: one at a time, shared by all tasks that wait for it."""

    def __init__(self) -> None:
        self.lock = trio.Lock()
        self.begun = 0
        self.latest: Snapshot | None = None
        self.ended_at = self.seconds = 0.0

    def take(self, tagged: bool, marked: bool) -> None:
        """Read everything that the waiting tasks need. In a thread."""
        # Pause as long as the last read took: while a thousand processes end one by one, a task always waits.
        time.sleep(max(0.0, min(self.seconds, MOST_PAUSE_SECONDS) - (time.monotonic() - self.ended_at)))
        began = time.monotonic()
        self.begun += 1
        seen = Snapshot()
        _ = tagged and seen.tags, marked and seen.markers, seen.table.below, seen.table.companions
        self.latest = seen
        self.ended_at = time.monotonic()
        self.seconds = self.ended_at - began


_scans: trio.lowlevel.RunVar[_Scans] = trio.lowlevel.RunVar("scans")


async def take_snapshot() -> Snapshot:
    """Return the processes of the machine at a moment after this call, read in a thread (tens of microseconds
    per process). All tasks that wait at the same time share one read.

    Cancellation waits for a read that has begun for the caller.
    """
    try:
        scans = _scans.get()
    except LookupError:
        scans = _Scans()
        _scans.set(scans)
    wanted = scans.begun + 1
    async with scans.lock:
        if scans.begun < wanted or scans.latest is None:
            scans.latest = None
            tags = {bool(process_marker.tag) for process_marker in live_markers()}
            await trio.to_thread.run_sync(scans.take, True in tags, False in tags, limiter=_ONE)
        assert scans.latest is not None
        return scans.latest
