"""A cgroup (version 2) per agent: its processes cannot leave it, and one write kills all of them.

Available where the kernel has cgroup.kill (5.14) and the server's own cgroup is delegated to its user
(systemd: `Delegate=yes`) or belongs to it. Everything here is a few small reads and writes.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from supervisor.agents.containment import tree
from supervisor.agents.containment.tree import Bounds

log = structlog.get_logger(__name__)

PROC: Final = Path("/proc")

KILL_FILE: Final = "cgroup.kill"
PROCESSES_FILE: Final = "cgroup.procs"
PREFIX: Final = "ostler-"


def own_group(proc: Path = PROC) -> Path | None:
    """The directory of this process's version 2 cgroup; None if there is none."""
    try:
        membership = (proc / "self/cgroup").read_text()
        mounts = (proc / "self/mountinfo").read_text()
    except OSError:
        return None
    path = next((line[3:] for line in membership.splitlines() if line.startswith("0::")), None)
    if path is None:
        return None
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        if after.split(" ", 1)[0] != "cgroup2":
            continue
        # Root of the mount within the hierarchy, and where it is mounted (proc(5)).
        root, mounted = before.split(" ")[3:5]
        if path == root or path.startswith(root.rstrip("/") + "/"):
            return Path(mounted) / path[len(root.rstrip("/")) :].lstrip("/")
    return None


def probe(group: Path) -> str | None:
    """Return why `group` cannot hold agents; None if it can. Tested by creating and removing a cgroup in
    it."""
    trial = group / f"{PREFIX}probe-{os.getpid()}"
    try:
        trial.mkdir()
    except OSError as error:
        return f"cannot create a cgroup in {group}: {error.strerror}"
    try:
        if not (trial / KILL_FILE).exists():
            return "the kernel has no cgroup.kill (it requires Linux 5.14)"
        if not os.access(group / PROCESSES_FILE, os.W_OK):
            return (
                f"cannot move processes out of {group}: it is not delegated (Delegate=yes in a systemd unit)"
            )
        return None
    finally:
        remove(trial)


def create(group: Path, instance: int, agent: int) -> Path:
    """Create an empty cgroup for one agent. Raises OSError."""
    made = group / f"{_instance_prefix(instance)}{agent}"
    made.mkdir(exist_ok=True)
    return made


def members(group: Path) -> set[int]:
    """The PIDs in the cgroup and in those below it, without zombies."""
    found: set[int] = set()
    for below, _, _ in os.walk(group):
        with suppress(OSError):
            found |= {int(pid) for pid in (Path(below) / PROCESSES_FILE).read_text().split()}
    return found


def kill(group: Path, bounds: Bounds) -> None:
    """Send SIGKILL to all processes in the cgroup, and to those that they fork meanwhile.

    A process that may create cgroups can also move other processes into them. A process beyond `bounds` is
    moved out first, to the parent cgroup; if that fails, nothing is killed.
    """
    for pid in members(group):
        reason = tree.trespass(pid, bounds)
        if reason is None:
            continue
        log.error("foreign process in the agent's cgroup", pid=pid, reason=reason)
        try:
            # Killing the group hits all in it: better an agent that survives than the server killed.
            (group.parent / PROCESSES_FILE).write_text(str(pid))
        except ProcessLookupError:
            continue
        except OSError:
            return
    with suppress(OSError):
        (group / KILL_FILE).write_text("1")


def remove(group: Path) -> bool:
    """Remove an empty cgroup with the empty ones in it. Return whether that worked."""
    for below, _, _ in os.walk(group, topdown=False):
        with suppress(OSError):
            Path(below).rmdir()
    return not group.exists()


def leftovers(group: Path, instance: int) -> list[Path]:
    """Cgroups of agents that an earlier server of this state directory left in `group`."""
    try:
        return [path for path in group.iterdir() if path.name.startswith(_instance_prefix(instance))]
    except OSError:
        return []


def _instance_prefix(instance: int) -> str:
    return f"{PREFIX}{instance:010x}-"
