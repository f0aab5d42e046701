"""What a program may use that works on what others have made: memory, file size, processes, and which paths.

Limits are the kernel's limits of resources. Those of memory and file size hold for each process that the
program starts, not for all together; that of processes counts the user's, and binds all but the superuser.
A control group gives none: the kernel lets a group limit the groups in it only while it holds no process
itself, and the server is in its own. The paths are a wall of Landlock's (Linux 5.13), which needs no
privilege. The spawner puts up both between fork and exec.
"""

from __future__ import annotations

import ctypes
import marshal
import os
import sys
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import attrs

from supervisor.agents.spawning import spawner

if sys.platform != "win32":
    import resource

MB: Final = 1024 * 1024

MORE_PROCESSES: Final = 4096
"""Processes and threads. A hundred agents that start beside a program have some 2,000: what others start
meanwhile leaves it enough. One that forks without end stops at an eighth of the 32,768 that a kernel numbers
by default."""

_INTERPRETER: Final = sys.executable


@attrs.frozen(kw_only=True)
class Reach:
    """The paths that a program is left with; nothing else can be opened, listed or changed.

    What it may still do everywhere: look at a name's owner, size and times, and connect to sockets.
    """

    runs: tuple[Path, ...] = ()
    """Files and directories from which it may execute and read. Links are followed."""
    reads: tuple[Path, ...] = ()
    """Resolved: a link that stands there by the start leads nowhere."""
    writes: tuple[Path, ...] = ()
    """Resolved."""


@attrs.frozen(kw_only=True)
class Confinement:
    """What each process of a program may use. None leaves it as it is."""

    memory_bytes: int | None = None
    """Private memory that can be written, reserved or used (RLIMIT_DATA). Mapped files do not count. The
    address space (RLIMIT_AS), in which they do, is not a measure: Node.js reserves gigabytes at its start."""
    file_bytes: int | None = None
    """Size of a file that it writes; beyond, the kernel ends it (SIGXFSZ)."""
    more_processes: int | None = None
    """Processes and threads that its user may have beyond as many as the whole machine has at the start
    (RLIMIT_NPROC). The kernel counts all of the user's: a limit below that would fail programs for what
    others do."""
    reach: Reach | None = None

    def encoded(self) -> dict[str, Any]:
        """As the spawner reads it."""
        limits = ((resource.RLIMIT_DATA, self.memory_bytes), (resource.RLIMIT_FSIZE, self.file_bytes))
        reach = self.reach and [
            (os.fsencode(path), rights)
            for paths, rights in (
                (self.reach.runs, spawner.RUN),
                (self.reach.reads, spawner.READ),
                (self.reach.writes, spawner.WRITE),
            )
            for path in paths
        ]
        return {
            "limits": [(number, most) for number, most in limits if most is not None],
            "more_processes": self.more_processes,
            "reach": reach,
        }

    def command(self, argv: Sequence[str]) -> list[str]:
        """The command that becomes `argv`, confined: where no spawner can do it."""
        wanted = marshal.dumps(self.encoded()).hex()
        return [_INTERPRETER, "-I", "-S", spawner.__file__, "confine", wanted, *argv]


@cache
def can_wall() -> bool:
    """Whether this kernel can confine programs to a `Reach`."""
    if sys.platform != "linux":
        return False
    try:
        create = ctypes.CDLL(None).syscall
    except (OSError, AttributeError):
        return False
    zero = ctypes.c_long(0)
    version = ctypes.c_long(spawner.LANDLOCK_VERSION)
    return bool(create(ctypes.c_long(spawner.LANDLOCK_CREATE_RULESET), zero, zero, version) > 0)


def memory_limit(root: Path = Path("/")) -> int | None:
    """The smallest limit of memory that holds for this process, in bytes.

    Reads /proc/meminfo and the cgroup's limits (version 2, then 1). None where neither is known. Blocks.
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
    """`most` bytes, or that part of `memory_limit` where it is less."""
    limit = memory_limit(root)
    return most if limit is None else min(most, int(limit * part))
