"""A mark on processes that neither a session of their own nor an emptied environment takes off.

What a process inherits, keeps over exec, does not use, and shows to everybody in /proc is little. A resource
limit is such a thing, and one limit has had no effect since Linux 2.4.25: RLIMIT_LOCKS, "Max file locks" in
/proc/PID/limits (getrlimit(2)). Its soft value carries a number here: which state directory a process belongs
to, and which agent of that server. Only a process that sets this very limit itself gets rid of it.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from supervisor.agents.tree import read_file

if sys.platform != "win32":
    import resource

__all__ = ["Brand", "brand_of", "brand_of_spawner", "branding", "house_of", "usable"]

RLIMIT_LOCKS: Final = 10
"""The number of the limit on every Linux; the standard library has no name for it."""

AGENT_BITS: Final = 22
"""Agents of one server start that can be told apart, as a power of two."""

HOUSE_BITS: Final = 40
"""Of the number of a state directory. With the agent's they make a positive signed 64-bit number."""

Brand = int
"""`house << AGENT_BITS | agent`; 0 is no brand."""


def house_of(state: Path) -> int:
    """The number of a state directory that exists: another for every directory, the same after a restart."""
    found = state.stat()
    text = f"{state.resolve()}\0{found.st_dev}\0{found.st_ino}\0{os.getuid()}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[: HOUSE_BITS // 8], "big") or 1


def brand_of(house: int, agent: int) -> Brand:
    """The brand of one agent, from 1 on; numbers begin again after 2 ** AGENT_BITS - 1 of them."""
    return house << AGENT_BITS | 1 + (agent - 1) % ((1 << AGENT_BITS) - 1)


def brand_of_spawner(house: int) -> Brand:
    """The brand of the process that starts agents (spawner.py): no agent's."""
    return house << AGENT_BITS


def house_of_brand(brand: Brand) -> int:
    """The number of the state directory in a brand."""
    return brand >> AGENT_BITS


@contextmanager
def branding(brand: Brand) -> Iterator[None]:
    """What the main thread starts inside of the block carries the brand; no await may lie in it. For trying
    brands out: agents get theirs from the spawner, since here the server carries it, too, and somebody may
    look.

    The hard limit is left alone, so that this process and others may go on to set theirs.
    """
    before, most = resource.getrlimit(RLIMIT_LOCKS)
    resource.setrlimit(RLIMIT_LOCKS, (brand, most))
    try:
        yield
    finally:
        resource.setrlimit(RLIMIT_LOCKS, (before, most))


def usable() -> bool:
    """Whether this system takes the mark and shows it."""
    if sys.platform != "linux":
        return False
    trial = brand_of((1 << HOUSE_BITS) - 1, 1)
    try:
        with branding(trial):
            return read_brand(os.getpid()) == trial
    except (OSError, ValueError):
        return False


def read_brand(pid: int) -> Brand:
    """The brand of a process, which may be a zombie; 0 when it has none or is gone."""
    for line in read_file(pid, "limits").splitlines():
        if line.startswith(b"Max file locks"):
            soft = line.split()[3]
            return int(soft) if soft.isdigit() else 0
    return 0
