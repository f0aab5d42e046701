"""Worker threads for large messages, shared by all connections."""

from __future__ import annotations

from typing import Final

import attrs
import trio

LARGE_AT_ONCE: Final = 1
"""How many large frames of all agents are parsed at a time: each of these threads competes with the Trio
thread for the GIL."""


@attrs.frozen
class Work:
    """The queue and the threads for large frames, shared by all connections of a Trio run."""

    turns: trio.Lock = attrs.field(factory=trio.Lock)
    threads: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(LARGE_AT_ONCE))


_shared: trio.lowlevel.RunVar[Work] = trio.lowlevel.RunVar("large frames")


def work() -> Work:
    """Return the `Work` of this Trio run; create it on first use."""
    try:
        return _shared.get()
    except LookupError:
        made = Work()
        _shared.set(made)
        return made
