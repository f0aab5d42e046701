"""What identifies the processes of one agent, and which processes it can never own."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final

import attrs
import trio

from supervisor.agents import levels, process_tag, tree
from supervisor.agents.environment import MARKER
from supervisor.agents.levels import Level
from supervisor.agents.process_tag import Tag
from supervisor.agents.spawner_link import Spawner
from supervisor.agents.tree import Bounds, ProcessEntry, ProcessId

SCANNING: Final = trio.CapacityLimiter(2)
"""Threads that read /proc at a time."""

STARTS_AT_ONCE: Final = 4
"""Processes that are started for one agent at the same time: starts that hang hold up its own alone."""

_live: trio.lowlevel.RunVar[set[Mark]] = trio.lowlevel.RunVar("marks")


def live_marks() -> set[Mark]:
    """The marks of the agents of this run that live or start."""
    try:
        return _live.get()
    except LookupError:
        marks: set[Mark] = set()
        _live.set(marks)
        return marks


@attrs.define(eq=False)
class Mark:
    """Identifies the processes of one agent. `tag` is 0 where there are no tags."""

    tag: Tag = 0
    variable: str = attrs.field(factory=lambda: uuid.uuid4().hex)
    """Value of the marker variable."""
    level: Level = Level.TREE
    group: Path | None = None
    spawner: Spawner | None = None
    """Starts its processes; None where threads of the server do."""
    owned: set[ProcessId] = attrs.field(factory=set)
    """Children of the server that a task waits for, including the leader.

    Nobody else may reap them, and no other agent's tree contains them.
    """
    starting: int = 0
    """Starts under way: a child that carries the mark may be one that is about to be owned."""
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
        """The command that runs `argv` at the level of this mark."""
        if self.group is not None and self.spawner is None:
            return levels.in_cgroup(argv, self.group)
        return levels.in_namespace(argv) if self.level is Level.PIDNS else list(argv)

    def of(self, seen: Snapshot) -> set[int]:
        """The PIDs of the processes in the snapshot that carry the mark."""
        if self.tag:
            return {pid for pid, number in seen.tags.items() if number == self.tag}
        return tree.marked(MARKER, self.variable, seen.table)

    def bounds(self) -> Bounds:
        """The bounds of this agent's tree, without the server and its ancestors (`rooted`)."""
        trunk = self.spawner.pids() if self.spawner is not None else ()
        others = (mark.owned for mark in live_marks() if mark is not self)
        return Bounds(
            trunk=frozenset(trunk), own=frozenset(self.owned), others=frozenset[ProcessId]().union(*others)
        )


class Snapshot:
    """The processes of the machine at one moment.

    One snapshot serves for a hundred agents. Made in a thread: it reads all of /proc.
    """

    def __init__(self) -> None:
        self.table: Mapping[int, ProcessEntry] = tree.process_table()

    @cached_property
    def tags(self) -> Mapping[int, Tag]:
        """The tags by PID. Reads /proc on first use."""
        return {pid: number for pid in self.table if (number := process_tag.read_tag(pid))}


async def take_snapshot() -> Snapshot:
    """Take a snapshot in a thread (tens of microseconds per process); cancellation waits for it."""

    def take() -> Snapshot:
        seen = Snapshot()
        _ = seen.tags  # read now, with the rest
        return seen

    return await trio.to_thread.run_sync(take, limiter=SCANNING)
