"""How much of the disk directories take. Blocking: callers use a thread that can be abandoned."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import attrs

MOST_ENTRIES: Final = 200_000
"""Files and directories that one walk looks at: about a second on a disk that answers."""

WALK_SECONDS: Final = 4.0
"""Seconds that one walk may take: less than its thread is waited for (`patience.PATH_SECONDS`)."""

BLOCK_BYTES: Final = 512
"""Of `st_blocks` (stat(2))."""


@attrs.frozen
class DiskUse:
    """What directories take. `whole`: whether everything was counted; else they take that much at least."""

    bytes: int
    whole: bool


def disk_use(
    directories: Iterable[Path],
    enough: float,
    *,
    most_entries: int = MOST_ENTRIES,
    seconds: float = WALK_SECONDS,
) -> DiskUse:
    """Count the blocks of everything below the directories, until it is more than `enough` bytes.

    Symbolic links count themselves, a file with several names once, and other file systems not at all. Raises
    nothing: what cannot be read is left out, and the result is not whole.
    """
    until = time.monotonic() + seconds
    used = looked = 0
    whole = True
    seen: set[tuple[int, int]] = set()
    # With the device that a directory must be on, so that a mount below it is left out.
    waiting: list[tuple[Path | str, int | None]] = [(path, None) for path in directories]
    while waiting:
        directory, device = waiting.pop()
        try:
            found = os.lstat(directory)
            if not stat.S_ISDIR(found.st_mode) or (device is not None and found.st_dev != device):
                continue
            if (found.st_dev, found.st_ino) in seen:
                continue
            seen.add((found.st_dev, found.st_ino))
            used += found.st_blocks * BLOCK_BYTES
            with os.scandir(directory) as entries:
                for entry in entries:
                    looked += 1
                    if used > enough:
                        return DiskUse(used, whole=False)
                    if looked > most_entries or time.monotonic() > until:
                        return DiskUse(used, whole=False)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append((entry.path, found.st_dev))
                        continue
                    each = entry.stat(follow_symlinks=False)
                    if each.st_nlink > 1:
                        if (each.st_dev, each.st_ino) in seen:
                            continue
                        seen.add((each.st_dev, each.st_ino))
                    used += each.st_blocks * BLOCK_BYTES
        except FileNotFoundError:
            continue  # removed meanwhile, or not made yet
        except OSError:
            whole = False
    return DiskUse(used, whole)
