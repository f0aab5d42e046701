"""Returns memory to the system after a flood."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from typing import Final, cast

import trio

from supervisor.journal import JournalError, Log

FLOOD_BYTES: Final = 8 * 1024 * 1024
"""From how much on, in one turn, it is worth it: less is used again before long."""


async def give_back(log: Log) -> None:
    """Return what is free to the system once `log` is on disk: the allocator keeps it in pieces between what
    is still in use.

    Takes some milliseconds, in a thread. Cancelling it waits for that thread. Does nothing where the C
    library has no such call. Raises nothing.
    """
    trim = _trim()
    if trim is not None:
        with contextlib.suppress(JournalError):
            await log.flushed()
        await trio.to_thread.run_sync(trim, 0)


def _trim() -> Callable[[int], int] | None:
    try:
        return cast(Callable[[int], int], ctypes.CDLL(None).malloc_trim)
    except (OSError, AttributeError):
        return None
