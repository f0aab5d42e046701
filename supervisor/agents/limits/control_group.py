"""The limits of an agent's control group (version 2), and what its counters tell. Small reads and writes.

The kernel's description: Documentation/admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import attrs

from supervisor.agents.limits.mechanisms import Holding, Mechanism
from supervisor.agents.limits.values import Limit

PERIOD_MICROSECONDS: Final = 100_000
"""Over which a share of processors is measured: the kernel's default."""

LEAST_QUOTA_MICROSECONDS: Final = 1000
"""The smallest share of a period that the kernel takes."""


@attrs.frozen(kw_only=True)
class Counters:
    """What a group's files say. `killed`: processes that were ended for lack of memory. `refused`: how often
    a process could not be started. The others: bytes, and processes with threads; None if unknown."""

    killed: int = 0
    refused: int = 0
    memory: int | None = None
    tasks: int | None = None


def settings(holding: Holding) -> dict[str, str]:
    """The content of a group's files, by name, for the limits that it holds."""
    found: dict[str, str] = {}
    memory = holding.most(Limit.MEMORY, Mechanism.CGROUP)
    if memory is not None:
        # Only the process that takes too much is ended: it is mostly a tool's, and the agent reads of it.
        found |= {"memory.max": f"{memory:.0f}", "memory.oom.group": "0", "memory.swap.max": "0"}
    processes = holding.most(Limit.PROCESSES, Mechanism.CGROUP)
    if processes is not None:
        found["pids.max"] = f"{processes:.0f}"
    cpus = holding.most(Limit.CPUS, Mechanism.CGROUP)
    if cpus is not None:
        quota = max(LEAST_QUOTA_MICROSECONDS, round(cpus * PERIOD_MICROSECONDS))
        found["cpu.max"] = f"{quota} {PERIOD_MICROSECONDS}"
    return found


OPTIONAL: Final = frozenset({"memory.swap.max", "memory.oom.group"})
"""Files that a kernel may lack: without swap, or older than 4.19."""


def limit(group: Path, holding: Holding) -> None:
    """Set the limits that the group holds. Raises OSError."""
    for name, content in settings(holding).items():
        try:
            # Not created: in a group that lacks a controller there is no such file.
            descriptor = os.open(group / name, os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
            try:
                os.write(descriptor, content.encode())
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            if name not in OPTIONAL:
                raise


def read(group: Path) -> Counters:
    """Read the group's counters. What cannot be read counts as nothing."""
    return Counters(
        killed=_field(group / "memory.events", "oom_kill"),
        refused=_field(group / "pids.events", "max"),
        memory=_number(group / "memory.peak") or _number(group / "memory.current"),
        tasks=_number(group / "pids.peak") or _number(group / "pids.current"),
    )


def _field(path: Path, name: str) -> int:
    with suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            key, _, value = line.partition(" ")
            if key == name:
                return int(value)
    return 0


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
