"""What the kernel knows of a server's processes: their memory and the processor time that they have used."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

PROC = Path("/proc")
TICKS = os.sysconf("SC_CLK_TCK")


def memory_mb(pids: Iterable[int]) -> float:
    """Their memory together, in MB: what several share counts once (PSS).

    Of a process that the kernel does not show to us, its resident size is taken.
    """
    return sum(map(_memory_kb, pids)) / 1024


def own_mb(pids: Iterable[int]) -> float:
    """Their memory together, in MB, without what comes from files.

    What several processes share of programs and libraries becomes less in each with every further one that
    runs the same, such as an agent in the same interpreter: that would be counted as given back. Of a process
    that the kernel does not show to us, its resident size is taken.
    """
    return sum(map(_own_kb, pids)) / 1024


def cpu_seconds(pids: Iterable[int]) -> float:
    """Their processor time so far, in steps of 10 ms."""
    total = 0.0
    for pid in pids:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / TICKS
    return total


def _memory_kb(pid: int) -> int:
    try:
        return field((PROC / str(pid) / "smaps_rollup").read_text(), "Pss")
    except PermissionError:
        return field((PROC / str(pid) / "status").read_text(), "VmRSS")


def _own_kb(pid: int) -> int:
    try:
        return field((PROC / str(pid) / "smaps_rollup").read_text(), "Pss_Anon")
    except (PermissionError, ValueError):
        return _memory_kb(pid)


def field(text: str, name: str) -> int:
    """The number in the line of this name."""
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key == name:
            return int(value.split()[0])
    raise ValueError(f"no line {name}")


def children(pid: int) -> list[int]:
    """Its living children."""
    found: list[int] = []
    for task in (PROC / str(pid) / "task").glob("*/children"):
        found += map(int, task.read_text().split())
    return found
