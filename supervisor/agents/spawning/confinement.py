"""Confines programs: limits on memory, file size, open files and processes, and the paths they can open.

The limits are resource limits (setrlimit). Those of memory and files apply to each process that the
program starts, not to all together; that of processes counts all of the user's, and does not bind the
superuser. Control groups, which hold an agent's processes together (`limits/`), have to be delegated. Paths
are confined by Landlock (Linux 5.13), which needs no privilege. The spawner applies both between fork and
exec.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import resource
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import attrs

from supervisor.agents.spawning import spawner

MB: Final = 1024 * 1024

MORE_PROCESSES: Final = 4096
"""Processes and threads. Starting a hundred agents next to such a program takes some 2,000, so this leaves
room for others. A fork bomb stops at an eighth of the 32,768 PIDs that a kernel allows by default."""

_INTERPRETER: Final = sys.executable


@attrs.frozen(kw_only=True)
class Reach:
    """The paths that a confined program can use; it cannot open, list or change anything else.

    It can still look at a name's owner, size and times anywhere, and connect to sockets.
    """

    runs: tuple[Path, ...] = ()
    """Files and directories that it may execute and read. Symbolic links are followed."""
    reads: tuple[Path, ...] = ()
    """Resolved paths: a symbolic link that replaces one before the start gives access to nothing."""
    lists: tuple[Path, ...] = ()
    """Resolved directories whose names, and those of all directories below, it may read."""
    writes: tuple[Path, ...] = ()
    """Resolved paths, as for `reads`."""
    owns: tuple[Path, ...] = ()
    """The same, in which it may also execute."""


@attrs.frozen(kw_only=True)
class Ownership:
    """Files that belong to another user within the confinement (idmapped mounts, Linux 5.12). For root."""

    user: int
    """User and group to whom what belongs to the owner of a path, with all below, belongs inside."""
    paths: tuple[Path, ...]
    """Resolved, outer ones first."""
    handed: tuple[tuple[int, bytes], ...] = attrs.field(default=(), repr=False)
    """Descriptors that the program inherits, with their content."""


@attrs.frozen(kw_only=True)
class Confinement:
    """What each process of a program may use. None sets no limit."""

    memory_bytes: int | None = None
    """Private memory that can be written, reserved or used (RLIMIT_DATA). Mapped files do not count. The
    address space (RLIMIT_AS), in which they count, is not a usable measure: Node.js reserves gigabytes at its
    start."""
    file_bytes: int | None = None
    """Size of a file that it writes; the kernel kills it beyond that (SIGXFSZ)."""
    open_files: int | None = None
    """Files that it may have open at a time (RLIMIT_NOFILE). Below that, a program may still raise its soft
    limit, as Node.js does."""
    more_processes: int | None = None
    """Processes and threads that its user may have in addition to the number that the whole machine has at
    the start (RLIMIT_NPROC). The kernel counts all processes of the user, so with a lower limit the program
    would fail because of others."""
    reach: Reach | None = None
    scoped: bool = False
    """Whether it reaches no abstract socket and signals no process outside of the confinement (Landlock,
    Linux 6.12)."""
    system_calls: bytes | None = attrs.field(default=None, repr=False)
    """A filter of its system calls, as `struct sock_filter`s (seccomp(2))."""
    ownership: Ownership | None = None
    unprivileged: bool = False
    """Whether it gives up all capabilities, which only root has."""

    def encoded(self) -> dict[str, Any]:
        """Encode it for the spawner."""
        limits = (
            (resource.RLIMIT_DATA, self.memory_bytes),
            (resource.RLIMIT_FSIZE, self.file_bytes),
            (resource.RLIMIT_NOFILE, self.open_files),
        )
        reach = self.reach and [
            (os.fsencode(path), rights)
            for paths, rights in (
                (self.reach.runs, spawner.RUN),
                (self.reach.reads, spawner.READ),
                (self.reach.lists, spawner.LIST),
                (self.reach.writes, spawner.WRITE),
                (self.reach.owns, spawner.OWN),
            )
            for path in paths
        ]
        return {
            "limits": [(number, most) for number, most in limits if most is not None],
            "more_processes": self.more_processes,
            "reach": reach,
            "scoped": self.scoped,
            "system_calls": self.system_calls,
            "ownership": self.ownership
            and (
                self.ownership.user,
                [os.fsencode(path) for path in self.ownership.paths],
                list(self.ownership.handed),
            ),
            "unprivileged": self.unprivileged,
        }

    def command(self, argv: Sequence[str]) -> list[str]:
        """Return a command that confines itself and becomes `argv`, for starts without the spawner."""
        wanted = marshal.dumps(self.encoded()).hex()
        return [_INTERPRETER, "-I", "-S", spawner.__file__, "confine", wanted, *argv]


@cache
def can_wall() -> bool:
    """Whether this kernel can confine programs to a `Reach`."""
    return _landlock() > 0


@cache
def can_scope() -> bool:
    """Whether this kernel can confine programs to their own sockets and processes (`scoped`)."""
    return _landlock() >= spawner.LANDLOCK_SCOPES


def _landlock() -> int:
    """The version of Landlock's interface; 0 where there is none."""
    if sys.platform != "linux":
        return 0
    wanted = (spawner.LANDLOCK_CREATE_RULESET, 0, 0, spawner.LANDLOCK_VERSION)
    try:
        return max(0, int(ctypes.CDLL(None).syscall(*map(ctypes.c_long, wanted))))
    except (OSError, AttributeError):
        return 0


def memory_limit(root: Path = Path("/")) -> int | None:
    """Return the smallest memory limit of this process, in bytes; None if neither source is readable.

    Reads /proc/meminfo and the cgroup's limits (version 2, then 1). Blocks.
    """
    found: list[int] = []
    for name in ("sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            text = (root / name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            found.append(int(text))
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemTotal:")]
    except OSError:
        pass
    return min(found, default=None)


def memory_share(most: int, part: float = 0.5, root: Path = Path("/")) -> int:
    """Return `most` bytes, or `part` of `memory_limit` where that is less."""
    limit = memory_limit(root)
    return most if limit is None else min(most, int(limit * part))
