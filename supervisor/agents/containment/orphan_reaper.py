"""Ends the processes that an earlier server of the same state directory left, before the next one starts.

There are such processes when server and warden were killed at once, or when a server ran without a warden.
The caller must hold the lock of the state directory, so that no other server uses it.
"""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from typing import Final

from supervisor.agents.containment import cgroup, process_tag, tree
from supervisor.agents.containment.tree import Bounds, ProcessEntry
from supervisor.agents.environment import MARKER

REAP_SECONDS: Final = 5.0
"""Seconds of repeated killing. Only what hangs in the kernel or may not be signalled is left by then."""

POLL_SECONDS: Final = 0.02
"""Seconds between two passes."""


def marker_prefix(instance: int) -> str:
    """Return the prefix of the marker variable of every agent of this state directory."""
    return f"{instance:010x}-"


def members(instance: int) -> dict[int, ProcessEntry]:
    """Return the living processes of agents of this state directory, with their descendants, by PID.

    Without this process and its ancestors.
    """
    table = tree.process_table()
    wanted = f"{MARKER}={marker_prefix(instance)}".encode()
    kept = Bounds().rooted(table).trunk
    roots = {
        pid
        for pid, entry in table.items()
        if entry.alive
        and pid not in kept
        and (
            process_tag.instance_of_tag(process_tag.read_tag(pid)) == instance
            or any(text.startswith(wanted) for text in tree.read_file(pid, "environ").split(b"\0"))
        )
    }
    pids = (roots | tree.descendants(roots, table)) - kept
    return {pid: table[pid] for pid in pids if table[pid].alive}


def reap_orphans(instance: int) -> tuple[int, list[int]]:
    """Kill them until none is left. Return their number, and the PIDs that could not be killed."""
    bounds = Bounds().rooted()
    group = cgroup.own_group()
    groups = cgroup.leftovers(group, instance) if group is not None else []
    for left in groups:
        cgroup.kill(left, bounds)
    until = time.monotonic() + REAP_SECONDS
    seen = set()
    while found := members(instance):
        seen |= {entry.id for entry in found.values()}
        if time.monotonic() > until:
            break
        for entry in found.values():
            if tree.trespass(entry.id.pid, bounds) is None:
                with suppress(ProcessLookupError, PermissionError):
                    tree.kill(entry.id, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    # A group stays busy until the last killed process has fully exited.
    while not all(cgroup.remove(left) for left in groups) and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    return len(seen), sorted(found)
