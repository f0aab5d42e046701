"""A tag on processes that survives setsid(2) and an emptied environment.

Few attributes are inherited, kept over exec, unused by programs, and visible in /proc. A resource limit is
one, and one limit has had no effect since Linux 2.4.25: RLIMIT_LOCKS, "Max file locks" in /proc/PID/limits
(getrlimit(2)). Its soft value carries a number: which state directory a process belongs to, and which agent
of that server. Only a process that sets this very limit itself loses the tag.
"""

from __future__ import annotations

import hashlib
import os
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from supervisor.agents.containment.tree import read_file

RLIMIT_LOCKS: Final = 10
"""The number of the limit on every Linux; the standard library has no name for it."""

AGENT_BITS: Final = 22
"""The number of distinct agents of one server start, as a power of two."""

INSTANCE_BITS: Final = 40
"""Bits of the number of a state directory. With the agent's they make a positive signed 64-bit number."""

Tag = int
"""`instance << AGENT_BITS | agent`; 0 means no tag."""


def instance_id(state: Path) -> int:
    """The number of an existing state directory: unique for each directory, the same after a restart."""
    found = state.stat()
    text = f"{state.resolve()}\0{found.st_dev}\0{found.st_ino}\0{os.getuid()}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[: INSTANCE_BITS // 8], "big") or 1


def tag_of(instance: int, agent: int) -> Tag:
    """The tag of one agent, from 1 on; numbers repeat after 2 ** AGENT_BITS - 1 agents."""
    return instance << AGENT_BITS | 1 + (agent - 1) % ((1 << AGENT_BITS) - 1)


def tag_of_spawner(instance: int) -> Tag:
    """The tag of the spawner (spawner.py), which belongs to no agent."""
    return instance << AGENT_BITS


def instance_of_tag(tag: Tag) -> int:
    """The number of the state directory in a tag."""
    return tag >> AGENT_BITS


@contextmanager
def tagged(tag: Tag) -> Iterator[None]:
    """Tag the processes that the main thread starts inside the block; the block must not await.

    For testing tags only: the server carries the tag meanwhile, and agents get theirs from the spawner. The
    hard limit is unchanged, so that this process and others can still set their tags.
    """
    before, most = resource.getrlimit(RLIMIT_LOCKS)
    resource.setrlimit(RLIMIT_LOCKS, (tag, most))
    try:
        yield
    finally:
        resource.setrlimit(RLIMIT_LOCKS, (before, most))


def usable() -> bool:
    """Whether this system supports the tag."""
    if sys.platform != "linux":
        return False
    trial = tag_of((1 << INSTANCE_BITS) - 1, 1)
    try:
        with tagged(trial):
            return read_tag(os.getpid()) == trial
    except (OSError, ValueError):
        return False


def read_tag(pid: int) -> Tag:
    """The tag of a process, which may be a zombie; 0 if it has none or is gone."""
    for line in read_file(pid, "limits").splitlines():
        if line.startswith(b"Max file locks"):
            soft = line.split()[3]
            return int(soft) if soft.isdigit() else 0
    return 0
