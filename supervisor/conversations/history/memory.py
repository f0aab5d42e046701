"""Returns memory to the system after a flood."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable
from typing import Final, cast

import trio

from supervisor.journal.errors import JournalError
from supervisor.journal.log import Log

FLOOD_BYTES: Final = 8 * 1024 * 1024
"""Bytes in one turn from which trimming is worthwhile: less is soon reused."""


async def return_memory(log: Log) -> None:
    """Return free memory to the system once `log` is on disk: the allocator keeps fragments.

    Takes some milliseconds in a thread. Does nothing if the C library has no such call. Raises nothing.

    Cancellation waits for the thread.
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
