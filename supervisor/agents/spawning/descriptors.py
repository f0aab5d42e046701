"""File descriptors: the limit of this process, its division into shares, and the limit of its children.

Each agent, terminal and client holds some, so each kind gets a share of the limit. The rest is a reserve for
short uses (files, /proc, starts of processes) and for operators.

The soft limit is raised to the hard one. Children get the old one back: select(2) cannot use more.
"""

from __future__ import annotations

import os
import resource
from typing import Final

import attrs

FIXED: Final = 40
"""Descriptors that the server always has open.

22 are measured (journal, its readers, event loop, standard streams, listening sockets); the rest is margin.
"""

RESERVED: Final = 16
"""Held for operators, and released when one connects: a few connections, and what their requests open."""

REFUSALS: Final = 16
"""Clients that can be refused for lack of room at the same time."""

TRANSIENT: Final = 24
"""Descriptors for short uses: the start of a process takes ten, a file four, a look at /proc two."""

PER_AGENT: Final = 6
"""An agent holds four (three pipes and a pidfd, measured); two more for the files that it has the server
read."""

PER_TERMINAL: Final = 2
"""Its output and its pidfd."""

DOOR_LISTENERS: Final = 2
"""What an agent, and each of its terminals, holds more behind a network door (`walls.door`)."""

DOOR_WATCH: Final = 1
"""What the door of a terminal holds besides: a pidfd."""

PER_DOOR_CONNECTION: Final = 2
"""The agent's connection, and that to where it leads."""

DOOR_CONNECTIONS: Final = 128
"""Most connections of one agent through its door. npm opens fifteen, an agent with helpers some dozens."""

DOOR_CONNECTIONS_FEWEST: Final = 8
DOOR_AGENTS: Final = 32
"""With few descriptors an agent has fewer connections, so that as many agents have theirs."""

PER_DOWNLOAD: Final = 4
"""An archive holds its root directory, the directory being read, its listing and a file; a file holds one."""

MOST_DOWNLOADS: Final = 64
"""Answers that are streamed while they are made, at a time. Each takes some hundred KB of memory."""

DOWNLOADS_PART: Final = 1 / 4
"""Part of what agents and connections leave; terminals get the rest."""

OPERATORS: Final = 16
"""Connections on the control socket: a few people, each with a command or two."""

MOST_CONNECTIONS: Final = 4096
"""Most connections at a time, however many descriptors there are. Each costs some 50 KB."""

CONNECTIONS_PART: Final = 3 / 8
AGENTS_PART: Final = 1 / 2
"""Parts of the descriptors that are not fixed."""

FEWEST: Final = 8
"""The fewest connections of a usable server. With a very small limit the shares therefore exceed it."""

UNLIMITED: Final = 65536
"""The limit assumed where the system sets none."""


@attrs.frozen
class Shares:
    """The share of each kind. `limit` and `reserve` are in descriptors, `door_connections` is of each
    agent."""

    limit: int
    agents: int
    door_connections: int
    terminals: int
    downloads: int
    connections: int
    operators: int
    reserve: int


def shares(limit: int, connections: int | None = None, *, doors: bool = False) -> Shares:
    """Divide a limit into shares. `connections` is the operator's setting, granted as far as the other kinds
    leave room. `doors`: whether each agent has a network door; without it `door_connections` is 0."""
    reserve = RESERVED + REFUSALS + TRANSIENT
    rest = max(0, limit - FIXED - reserve - OPERATORS)
    per_agent, per_terminal, through_door = PER_AGENT, PER_TERMINAL, 0
    if doors:
        through_door = DOOR_CONNECTIONS_FEWEST
        per_agent += DOOR_LISTENERS
        per_terminal += DOOR_LISTENERS + DOOR_WATCH
    fewest = per_agent + through_door * PER_DOOR_CONNECTION + per_terminal
    if connections is None:
        for_connections = max(FEWEST, min(int(rest * CONNECTIONS_PART), MOST_CONNECTIONS))
    else:
        for_connections = min(connections, max(FEWEST, rest - fewest))
    rest = max(0, rest - for_connections)
    for_agents = int(rest * AGENTS_PART / (1 - CONNECTIONS_PART))
    rest -= for_agents
    if doors:
        affordable = (for_agents // DOOR_AGENTS - per_agent) // PER_DOOR_CONNECTION
        through_door = max(DOOR_CONNECTIONS_FEWEST, min(affordable, DOOR_CONNECTIONS))
        per_agent += through_door * PER_DOOR_CONNECTION
    for_downloads = int(rest * DOWNLOADS_PART)
    return Shares(
        limit=limit,
        agents=max(1, for_agents // per_agent),
        door_connections=through_door,
        terminals=max(1, (rest - for_downloads) // per_terminal),
        downloads=max(1, min(for_downloads // PER_DOWNLOAD, MOST_DOWNLOADS)),
        connections=for_connections,
        operators=OPERATORS,
        reserve=reserve,
    )


def limit() -> int:
    """Return the soft limit of this process."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else soft


def used() -> int | None:
    """Return the number of open descriptors, from /proc; None without /proc, or without a free descriptor to
    read it."""
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # noqa: PTH208 - names alone; one is the listing's own
    except OSError:
        return None


_before: tuple[int, int] | None = None


def raise_limit() -> None:
    """Raise this process's soft limit to its hard one, if its children can get the old limit back.

    Programs that use select(2) must not get descriptors above 1023, and some close every possible one.
    """
    global _before
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not hasattr(resource, "prlimit") or soft == hard:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        return
    _before = _before or (soft, hard)


def restore_limit(pid: int) -> None:
    """Give a new child the limits from before `raise_limit`; its own children inherit them.

    Before this call it has the limits of this process. The spawner (spawning.py) gets them before it starts
    anything, so agents have them from the beginning.
    """
    if _before is not None:
        try:
            resource.prlimit(pid, resource.RLIMIT_NOFILE, _before)
        except (OSError, ValueError):
            return  # it has ended, or its PID belongs to another user's process by now
