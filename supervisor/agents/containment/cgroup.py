"""A cgroup (version 2) per agent: its processes cannot leave it, and one write kills all of them.

Available where the kernel has cgroup.kill (5.14) and the server's own cgroup is delegated to its user
(systemd: `Delegate=yes`) or belongs to it. Everything here is a few small reads and writes.

Limits on agents' cgroups require controllers. The kernel enables these for the cgroups below another one only
while that holds no process itself, so the server then moves into one of its own (`enable`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator
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

OFFERED_FILE: Final = "cgroup.controllers"
ENABLED_FILE: Final = "cgroup.subtree_control"

TYPE_FILE: Final = "cgroup.type"
"""Among others `domain invalid`: no process may enter it, since one above it holds processes and has
controllers enabled that the kernel allows there (those of threads, such as `pids`)."""

SERVER_GROUP: Final = "ostler-server"
"""The cgroup into which the server moves with its warden and its spawner, next to those of the agents. No
agent has this name (`create`)."""

MOVES: Final = 10
"""Passes of moving processes out of a cgroup, since one of them may start another one meanwhile."""


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
    for root, place in mounted(mounts, "cgroup2"):
        if path == root or path.startswith(root.rstrip("/") + "/"):
            return place / path[len(root.rstrip("/")) :].lstrip("/")
    return None


def mounted(mounts: str, *kinds: str) -> Iterator[tuple[str, Path]]:
    """The mounts of these file systems in a `mountinfo` (proc(5)): the root of each within its hierarchy, and
    where it is mounted."""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        if after.split(" ", 1)[0] in kinds:
            root, place = (
                re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), each)
                for each in before.split(" ")[3:5]
            )
            yield root, Path(place)


def agents_group(proc: Path = PROC) -> Path | None:
    """The directory below which the agents' cgroups are: this process's own, or the one that it has moved
    out of. None if there is none."""
    group = own_group(proc)
    return group.parent if group is not None and group.name == SERVER_GROUP else group


def offered(group: Path) -> frozenset[str]:
    """The controllers that can be enabled for the cgroups in `group`."""
    return frozenset(_words(group / OFFERED_FILE))


def enable(group: Path, wanted: Collection[str], ours: Collection[int]) -> frozenset[str]:
    """Enable controllers for the cgroups in `group`, and return those of `wanted` that are enabled.

    `ours`: the PIDs of the server and of its own processes, which are moved out of `group` if necessary. If
    it holds others, nothing is changed: they are not Ostler's to move.
    """
    missing = (set(wanted) - _words(group / ENABLED_FILE)) & offered(group)
    if missing and _vacate(group, ours):
        for controller in sorted(missing):
            # One at a time: the kernel refuses all of a write for the sake of one.
            try:
                _write(group / ENABLED_FILE, f"+{controller}")
            except OSError as error:
                log.warning(
                    "cannot enable a controller for agents' cgroups",
                    controller=controller,
                    reason=error.strerror,
                )
    return frozenset(wanted) & _words(group / ENABLED_FILE)


def _vacate(group: Path, ours: Collection[int]) -> bool:
    """Move the server's processes from `group` into one below it. Return whether none is left in `group`."""
    for _ in range(MOVES):
        inside = _pids(group)
        if not inside:
            return True
        if strangers := inside - set(ours):
            log.warning(
                "agents' cgroups cannot have limits: the server's own holds other processes; start the "
                "server in one of its own, as a systemd unit has it",
                group=str(group),
                others=sorted(strangers),
            )
            return False
        try:
            (group / SERVER_GROUP).mkdir(exist_ok=True)
            for pid in sorted(inside):
                with suppress(ProcessLookupError):
                    _write(group / SERVER_GROUP / PROCESSES_FILE, str(pid))
        except OSError as error:
            log.warning("cannot move the server into a cgroup of its own", reason=error.strerror)
            return False
    return not _pids(group)


def _write(path: Path, text: str) -> None:
    path.write_text(text)


def _words(path: Path) -> set[str]:
    try:
        return set(path.read_text().split())
    except OSError:
        return set()


def _pids(group: Path) -> set[int]:
    """The PIDs in the cgroup itself."""
    return {int(pid) for pid in _words(group / PROCESSES_FILE)}


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
        if "invalid" in _words(trial / TYPE_FILE):
            enabled = " ".join(sorted(_words(group / ENABLED_FILE))) or "none"
            return (
                f"no process may enter a cgroup in {group}: it or one above it holds processes while it "
                f"has controllers enabled (here: {enabled}); disable them, the server enables what it needs"
            )
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
        found |= _pids(Path(below))
    return found


def kill(group: Path, bounds: Bounds) -> None:
    """Send SIGKILL to all processes in the cgroup, and to those that they fork meanwhile.

    A process that may create cgroups can also move other processes into them. A process beyond `bounds` is
    moved out first, to the server's cgroup; if that fails, nothing is killed.
    """
    home = group.parent / SERVER_GROUP
    home = home if home.is_dir() else group.parent
    for pid in members(group):
        reason = tree.trespass(pid, bounds)
        if reason is None:
            continue
        log.error("foreign process in the agent's cgroup", pid=pid, reason=reason)
        try:
            # Killing the group hits all in it: better an agent that survives than the server killed.
            _write(home / PROCESSES_FILE, str(pid))
        except ProcessLookupError:
            continue
        except OSError:
            return
    with suppress(OSError):
        _write(group / KILL_FILE, "1")


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
