"""A user id for each agent, where root runs Ostler. It looks at the machine: call it in a thread.

Root owns the machine's files and devices, so mounts alone are no wall for it. The agent runs as a user that
nothing on the machine belongs to, and sees its own files, its workspace and, behind `guard`, the home of root
as its own (idmapped mounts). On the disk they stay what they are.
"""

from __future__ import annotations

import stat
import zlib
from pathlib import Path
from typing import Final

from supervisor.agents.spawning.confinement import Ownership
from supervisor.agents.walls import bubblewrap
from supervisor.agents.walls.mounts import Needs, Outside, seen_servers
from supervisor.agents.walls.wall import Wall

FIRST_USER: Final = 0x7000_0000
USER_BITS: Final = 28
"""User ids that no distribution gives to users, services or containers (systemd's table of user ids)."""

NAME: Final = "agent"

ACCOUNTS_BYTES: Final = 32 * 1024
"""Bytes of the machine's accounts that an agent sees: they may have to pass through a command line."""


def ownership(wall: Wall, outside: Outside, needs: Needs) -> Ownership:
    """What belongs to the agent's user inside. Raises OSError."""
    servers = [each.source for each in seen_servers(outside, needs) if each.source is not None]
    given = {needs.workspace, *needs.own, *needs.programs, *servers, *needs.reads, *needs.writes}
    if wall is Wall.GUARD:
        # The rest is seen where it is, so its user has to get through to it.
        masked = (*outside.hidden, *needs.hidden)
        given = {
            path if any(path.is_relative_to(each) for each in masked) else _closed(path) for path in given
        }
        if outside.home is not None:
            given.add(outside.home)
    user = user_of(needs)
    return Ownership(
        user=user,
        paths=tuple(sorted(given)),
        handed=((bubblewrap.ACCOUNTS_DESCRIPTOR, _accounts(user, outside.home)),),
    )


def user_of(needs: Needs) -> int:
    """The user id of an agent: the same with each start, so that what it left in a shared `/tmp` stays its
    own. That two of a hundred agents have the same has a probability of one in 54,000."""
    text = "\0".join(map(str, needs.own))
    return FIRST_USER + (zlib.crc32(text.encode(errors="surrogateescape")) >> (32 - USER_BITS))


def _closed(path: Path) -> Path:
    """The outermost directory above a path that other users do not get through; else the path."""
    for above in reversed(path.parents):
        if not above.stat().st_mode & stat.S_IXOTH:
            return above
    return path


def _accounts(user: int, home: Path | None) -> bytes:
    """One for the agent's user, since programs ask who they are, and the machine's accounts."""
    try:
        with bubblewrap.ACCOUNTS.open("rb") as file:
            known = file.read(ACCOUNTS_BYTES + 1)
    except FileNotFoundError:
        known = b""
    if len(known) > ACCOUNTS_BYTES:
        known = known[: known.rfind(b"\n", 0, ACCOUNTS_BYTES) + 1]
    return f"{NAME}:x:{user}:{user}::{home or '/'}:/bin/sh\n".encode() + known
