"""Nothing survives: one server's hold on the processes of its agents.

Each agent has a mark: its brand (brand.py), the processes that somebody waits for, and its control group
where that level is used. While the server contains, orphans below it are handed to it instead of to the
system's first process. It reaps those when they die, and ends those whose agent is no more.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Final

import attrs
import structlog
import trio

from supervisor.agents import brand, cgroup, descriptors, levels, prctl, tree
from supervisor.agents.brand import Brand
from supervisor.agents.datadir import write_private
from supervisor.agents.environment import MARKER
from supervisor.agents.levels import Level
from supervisor.agents.sweep import marker_prefix, sweep
from supervisor.agents.tree import ProcessEntry, ProcessId

__all__ = [
    "PID_FILE",
    "SCANNING",
    "Containment",
    "Mark",
    "Snapshot",
    "containment_level",
    "kill_agents",
    "new_mark",
    "open_containment",
    "take_snapshot",
]

log = structlog.get_logger("supervisor")

PID_FILE: Final = "server.pid"
"""In the state directory, while the server runs: its process id, a decimal number and a line end."""

TICK_SECONDS: Final = 5.0
"""Orphans are looked at when a child has died, and this often: being handed an orphan tells us nothing."""

COALESCE_SECONDS: Final = 0.05
"""Between two looks at orphans, when many children die at once."""

SCANNING: Final = trio.CapacityLimiter(2)
"""Threads that read /proc at a time."""

_current: trio.lowlevel.RunVar[Containment | None] = trio.lowlevel.RunVar("containment", None)


@attrs.define(eq=False)
class Mark:
    """What tells the processes of one agent from all others. `brand` is 0 where there are no brands."""

    brand: Brand = 0
    variable: str = attrs.field(factory=lambda: uuid.uuid4().hex)
    """Value of the marker variable."""
    level: Level = Level.TREE
    group: Path | None = None
    owned: set[ProcessId] = attrs.field(factory=set)
    """Children of the server that somebody waits for: they are not to be reaped behind his back."""

    @contextmanager
    def spawning(self) -> Iterator[Callable[[int], ProcessId]]:
        """What is started in the block, on the main thread and without an await, is marked as the agent's.

        The block must give the pid of each child that it will wait for to the function it is given, at once.
        """

        def own(pid: int) -> ProcessId:
            descriptors.give_back(pid)
            process = tree.identify(pid)
            self.owned.add(process)
            return process

        if not self.brand:
            yield own
            return
        with brand.branding(self.brand):
            yield own

    def command(self, argv: Sequence[str]) -> list[str]:
        """The command that runs `argv` at the level of this mark."""
        if self.group is not None:
            return levels.in_cgroup(argv, self.group)
        return levels.in_namespace(argv) if self.level is Level.PIDNS else list(argv)

    def of(self, seen: Snapshot) -> set[int]:
        """The pids of the processes seen that carry it."""
        if self.brand:
            return {pid for pid, number in seen.brands.items() if number == self.brand}
        return tree.marked(MARKER, self.variable, seen.table)


class Snapshot:
    """The processes of the machine at one moment: a hundred agents are looked for in one of these, not in a
    hundred. Made in a thread: it reads all of /proc."""

    def __init__(self) -> None:
        self.table: Mapping[int, ProcessEntry] = tree.process_table()

    @cached_property
    def brands(self) -> Mapping[int, Brand]:
        """The brands of those that have one, by pid. Reads /proc when first asked for."""
        return {pid: number for pid in self.table if (number := brand.read_brand(pid))}


async def take_snapshot() -> Snapshot:
    """Look at all processes, in a thread, which cancelling waits for (tens of microseconds per process)."""

    def take() -> Snapshot:
        seen = Snapshot()
        _ = seen.brands  # read now, with the rest
        return seen

    return await trio.to_thread.run_sync(take, limiter=SCANNING)


class Containment:
    """Made by `open_containment`."""

    def __init__(self, level: Level, house: int, *, brands: bool) -> None:
        self.level = level
        self.house = house
        self._brands = brands
        self._marked = 0
        self._live: dict[Brand, Mark] = {}
        self._empty: list[Path] = []
        """Groups to be removed; one is busy until the last process in it has quite gone."""

    def new_mark(self) -> Mark:
        """The mark of an agent that is about to be started; to be given back with `release`.

        Raises OSError when no control group can be made for it.
        """
        self._marked += 1
        number = brand.brand_of(self.house, self._marked)
        parent = cgroup.own_group() if self.level is Level.CGROUP else None
        mark = Mark(
            brand=number if self._brands else 0,
            variable=marker_prefix(self.house) + uuid.uuid4().hex,
            level=self.level,
            group=None if parent is None else cgroup.create(parent, self.house, self._marked),
        )
        if self._brands:
            self._live[number] = mark
        return mark

    def release(self, mark: Mark) -> None:
        """This agent is no more: whatever still carries its mark is a stray from now on."""
        self._live.pop(mark.brand, None)
        if mark.group is not None:
            self._empty.append(mark.group)
            self._remove_groups()

    def _remove_groups(self) -> None:
        self._empty = [group for group in self._empty if not cgroup.remove(group)]

    async def keep_orphans(self) -> None:
        """Reap adopted orphans and end those of agents that are no more, until cancelled."""
        with trio.open_signal_receiver(signal.SIGCHLD) as deaths:
            while True:
                await self._tend()
                await trio.sleep(COALESCE_SECONDS)
                with trio.move_on_after(TICK_SECONDS):
                    await anext(deaths)

    async def _tend(self) -> None:
        self._remove_groups()
        found = await trio.to_thread.run_sync(_branded_children, limiter=SCANNING)
        for entry, number in found:
            if brand.house_of_brand(number) != self.house:
                continue  # none of ours: whoever started it waits for it
            mark = self._live.get(number)
            if mark is not None and entry.id in mark.owned:
                continue
            if not entry.alive:
                tree.reap([entry.id])
            elif mark is None:
                log.warning("ending a stray process of an agent that is gone", pid=entry.id.pid)
                with suppress(ProcessLookupError, PermissionError):
                    tree.kill(entry.id, signal.SIGKILL)


def _branded_children() -> list[tuple[ProcessEntry, Brand]]:
    """Our children that carry any brand, dead ones included."""
    return [
        (entry, number)
        for pid in tree.children()
        if (number := brand.read_brand(pid)) and (entry := tree.read_entry(pid)) is not None
    ]


def new_mark() -> tuple[Mark, Callable[[], None]]:
    """A mark for an agent to be started in this run, and what to call when the agent is no more.

    Raises OSError.
    """
    containment = _current.get()
    if containment is None:
        return Mark(), lambda: None
    mark = containment.new_mark()
    return mark, lambda: containment.release(mark)


def containment_level() -> Level:
    """The level at which agents of this run are started."""
    containment = _current.get()
    return Level.TREE if containment is None else containment.level


async def kill_agents() -> None:
    """Kill all that carries a mark of this state directory, in a thread, which cancelling waits for (bounded
    by the sweep). Each agent's owner learns of its end as of any other."""
    containment = _current.get()
    if containment is not None:
        await _sweep(containment.house)


@asynccontextmanager
async def open_containment(state: Path, level: Level) -> AsyncIterator[Containment]:
    """Contain what is spawned inside of the block; on the main thread, by who holds the state's lock.

    Ends first what earlier servers of this state directory left. Leaving the block, however it is left, ends
    what then still carries a mark of this server, shielded and bounded by the sweep. Raises OSError.
    """
    house = await trio.to_thread.run_sync(brand.house_of, state)
    await _sweep(house)
    brands = brand.usable()
    # Without brands orphans could not be told from others' children; the warden reaps them then.
    adopted_before = prctl.is_subreaper()
    adopting = brands and prctl.be_subreaper()
    pid_file = state / PID_FILE
    await trio.to_thread.run_sync(write_private, pid_file, f"{os.getpid()}\n")
    containment = Containment(level, house, brands=brands)
    _current.set(containment)
    log.info("containing agents", containment=level.value, brands=brands)
    try:
        async with trio.open_nursery() as nursery:
            if adopting:
                nursery.start_soon(containment.keep_orphans)
            try:
                yield containment
            finally:
                with trio.CancelScope(shield=True):
                    await _sweep(house)
                    if adopting:
                        await containment._tend()
            nursery.cancel_scope.cancel()
    finally:
        _current.set(None)
        if adopting:
            prctl.be_subreaper(adopted_before)
        with suppress(OSError):
            pid_file.unlink()


async def _sweep(house: int) -> None:
    ended, left = await trio.to_thread.run_sync(sweep, house)
    if ended:
        log.warning("ended processes that agents had left", ended=ended - len(left), left=left)
