"""Gives memory back to the system that a burst of work has left behind.

What a relay of many events needs for moments is freed again, but the C library keeps it for the next one: an
idle server would hold the most that it ever needed.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog
import trio

log = structlog.get_logger(__name__)

LOOK_SECONDS: Final = 2.0
"""Seconds between two looks at the size of the process."""

WORTH_BYTES: Final = 2 * 1024 * 1024
"""Growth since the last time that makes giving back worth its milliseconds."""

AGAIN_SECONDS: Final = 10.0
"""Seconds until the next try after one that freed little. Memory in use may have been freed since; the
process's size does not show that."""

STATM: Final = Path("/proc/self/statm")


async def release_freed(busy: Callable[[], bool]) -> None:
    """Return memory to the system whenever the process has grown and is idle, until cancelled.

    `busy`: whether work is under way, which a trim would delay by some milliseconds.

    Returns at once if the C library cannot do it (it is not glibc), or the size cannot be read.
    """
    trim, least = _trim(), _resident()
    if trim is None or least is None:
        return
    lowest, again_at = least, 0.0
    while True:
        await trio.sleep(LOOK_SECONDS)
        size = _resident()
        if size is None:
            return
        least, lowest = min(least, size), min(lowest, size)
        now = trio.current_time()
        worth = size - least >= WORTH_BYTES or (size - lowest >= WORTH_BYTES and now >= again_at)
        if worth and not busy():
            again_at = now + AGAIN_SECONDS
            try:
                # In a thread, without the interpreter's lock: only who allocates in C at that moment waits.
                await trio.to_thread.run_sync(trim, 0)
            except Exception:
                log.exception("memory not given back")  # no thread can start, say; the next look tries again
                continue
            least = _resident() or size


def _trim() -> Callable[[int], object] | None:
    try:
        return getattr(ctypes.CDLL(None), "malloc_trim", None)
    except OSError:
        return None


def _resident() -> int | None:
    """The size of the process in memory, in bytes."""
    try:
        return int(STATM.read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None
