"""The walls around agents, from none to the strongest, and the order between them. Pure."""

from __future__ import annotations

import enum
from typing import Final

VARIABLE: Final = "OSTLER_WALLS"

AUTO: Final = "auto"
"""`guard` where this machine can do it, else `off`."""


class Wall(enum.StrEnum):
    """What an agent can reach."""

    OFF = "off"
    """Everything that the user who runs Ostler can reach."""

    GUARD = "guard"
    """The same, without what is Ostler's, other conversations' or other agents', and without the processes of
    others."""

    STRICT = "strict"
    """The system, read-only; its workspace and its own home; nothing else."""

    @property
    def strength(self) -> int:
        """Its place in the order."""
        return list(Wall).index(self)


class Mechanism(enum.StrEnum):
    """What a wall is made of."""

    NAMESPACES = "namespaces"
    """Mounts, processes and a user namespace of its own, by bubblewrap."""

    USER_ID = "user-id"
    """The same with a user id of its own in place of the user namespace, where root runs Ostler."""

    LANDLOCK = "landlock"
    """Rules of the kernel about paths, signals and abstract sockets, which need no privilege."""


class WallUnavailable(Exception):
    """A wall that was asked for by name cannot be made here. The message is one line: the reason, and what to
    do."""


def parse(text: str | None) -> Wall | None:
    """Return the wall that is asked for; None for `auto` or nothing. Raises ValueError."""
    if not text or text == AUTO:
        return None
    try:
        return Wall(text)
    except ValueError:
        raise ValueError(f"{text!r} is not one of {', '.join([AUTO, *Wall])}") from None
