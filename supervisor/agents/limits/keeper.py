"""Keeps the limits of one agent process: sets them before its start, and finds out which it hits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs

from supervisor.agents.endings import ExitStatus, TreeUsage
from supervisor.agents.limits import control_group
from supervisor.agents.limits.control_group import Counters
from supervisor.agents.limits.hits import LimitHit, by_output, by_signal, hit_of, suspicion
from supervisor.agents.limits.mechanisms import Available, Holding, Mechanism, hold, namespace_prefix
from supervisor.agents.limits.values import AgentLimits, Limit
from supervisor.agents.spawning.confinement import Confinement

AROUND: Final = 8
"""Processes that make an agent's namespace, and count for the agent although they are not in it: one or two,
and as many for each command of a terminal. An agent that fills its namespace is not ended for them."""


@attrs.define(eq=False)
class Keeper:
    """The limits of one agent process. `group`: its control group, where one holds any of them."""

    holding: Holding
    group: Path | None = None
    hit: LimitHit | None = None
    """The limit whose hit ended it, or ends it now."""
    _reported: set[tuple[Limit, bool]] = attrs.field(factory=set)
    """Limits whose hits were reported, and whether they ended the agent: each once for a process, which may
    hit one all the time."""
    _counted: Counters = attrs.field(factory=Counters)

    def set_up(self) -> None:
        """Set the limits of the control group. Raises OSError."""
        if self.group is not None:
            control_group.limit(self.group, self.holding)

    @property
    def prefix(self) -> list[str]:
        """The words before its command inside its user namespace (`namespace_prefix`)."""
        return namespace_prefix(self.holding)

    def confinement(self, other: Confinement | None = None) -> Confinement | None:
        """The resource limits for the spawner, in addition to `other`, which has none of these."""
        memory, file, files = (
            self.holding.most(limit, Mechanism.RLIMIT)
            for limit in (Limit.MEMORY, Limit.FILE_SIZE, Limit.OPEN_FILES)
        )
        if memory is None and file is None and files is None:
            return other
        return attrs.evolve(
            other or Confinement(),
            memory_bytes=_whole(memory),
            file_bytes=_whole(file),
            open_files=_whole(files),
        )

    def look(self, usage: TreeUsage) -> list[LimitHit]:
        """Find the limits that its tree hits, each reported once. What Ostler ends it for becomes `hit`."""
        found = (*self._polled(usage), *self._counters())
        return [self._note(each) for each in found if (each.limit, each.ended) not in self._reported]

    def look_at_disk(self, used: int) -> list[LimitHit]:
        """The same for bytes on the disk."""
        most = self.holding.most(Limit.DISK, Mechanism.POLLING)
        if most is None or used <= most or (Limit.DISK, True) in self._reported:
            return []
        return [self._note(hit_of(self.holding.limits, Limit.DISK, used, Mechanism.POLLING))]

    def _note(self, found: LimitHit) -> LimitHit:
        self._reported.add((found.limit, found.ended))
        if found.ended and self.hit is None:
            self.hit = found
        return found

    def _polled(self, usage: TreeUsage) -> Iterator[LimitHit]:
        limits = self.holding.limits
        memory = self.holding.most(Limit.MEMORY, Mechanism.POLLING)
        if memory is not None and usage.rss_bytes > memory:
            yield hit_of(limits, Limit.MEMORY, usage.rss_bytes, Mechanism.POLLING)
        processes = self.holding.most(Limit.PROCESSES, Mechanism.POLLING)
        if processes is None:
            return
        inside = self.holding.holds(Limit.PROCESSES, Mechanism.NAMESPACE)
        if usage.threads > processes + (AROUND if inside else 0):
            yield hit_of(limits, Limit.PROCESSES, usage.threads, Mechanism.POLLING)
        elif inside and usage.threads >= processes:
            # It may be one below, since what makes the namespace counts here: this errs towards a report.
            yield hit_of(limits, Limit.PROCESSES, usage.threads, Mechanism.NAMESPACE, ended=False)

    def _counters(self, *, ended: bool = False) -> Iterator[LimitHit]:
        """The limits that the control group's counters tell of since they were read last."""
        if self.group is None:
            return
        before, now = self._counted, control_group.read(self.group)
        self._counted = now
        for limit, grown, used in (
            (Limit.MEMORY, now.killed > before.killed, now.memory),
            (Limit.PROCESSES, now.refused > before.refused, now.tasks),
        ):
            if grown and self.holding.holds(limit, Mechanism.CGROUP):
                yield hit_of(self.holding.limits, limit, used, Mechanism.CGROUP, ended=ended)

    def ended(self, status: ExitStatus) -> None:
        """Note its exit, and find out whether a limit was the reason. Call it while the group exists."""
        if self.hit is None and (status.code != 0 or status.signal is not None):
            # A process that could not be started leads to no signal from outside.
            counted = (
                each
                for each in self._counters(ended=True)
                if each.limit is Limit.MEMORY or not status.from_outside
            )
            self.hit = by_signal(self.holding, status) or next(counted, None)

    def explain(self, status: ExitStatus, lines: Sequence[str]) -> LimitHit | None:
        """The limit that ended it, by what is known or else by its last output; None if no limit did."""
        if self.hit is None:
            self.hit = by_output(self.holding, status, lines)
        return self.hit

    def suspicion(self, status: ExitStatus) -> str | None:
        """What may have been the reason of an end that no known hit explains (`hits.suspicion`)."""
        return suspicion(self.holding, status) if self.hit is None else None


def _whole(value: float | None) -> int | None:
    return None if value is None else int(value)


def keep(limits: AgentLimits, available: Available, group: Path | None) -> Keeper:
    """The keeper of a process that is about to start. `group`: its control group, if it has one."""
    holding = hold(limits, available)
    grouped = any(Mechanism.CGROUP in mechanisms for mechanisms in holding.by.values())
    return Keeper(holding, group if grouped else None)
