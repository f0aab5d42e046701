"""Disk space reserved next to the journal, so that conversations can be deleted on a full disk.

Deleting writes: changed pages go to the write-ahead log, and the log is emptied into the database only if the
database can take all of it. Measured on a full disk, deleting needs up to as much as the log then holds: 1.6
MB with events of 1 kB, 9 MB with events of 3 MB. A file next to the journal reserves that much, and is
truncated when a conversation is deleted on a full disk.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

RESERVE_BYTES = 16 * 1024 * 1024
"""Bytes of the reserve: twice the size at which the writer copies the write-ahead log (1,000 pages of 8 kB,
`checkpointer.WRITER_PAGES`)."""

RESERVE_PART = 4
"""The reserve takes at most this part (1/4) of the free space, so that it does not fill a small disk."""

_LEAST_BYTES = 64 * 1024


class Reserve:
    """The reserve's file. Synchronous. Its methods raise nothing: if the disk has no room, the reserve stays
    empty."""

    def __init__(self, path: Path, most: int = RESERVE_BYTES) -> None:
        self._path = path
        self._most = most
        self.held = 0
        """Bytes reserved."""

    def fill(self) -> None:
        """Reserve the space, unless that is done."""
        if self.held or not hasattr(os, "posix_fallocate"):
            return
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError:
            return
        try:
            os.fchmod(descriptor, 0o600)  # regardless of the umask
            there = os.fstat(descriptor).st_blocks * 512
            found = os.fstatvfs(descriptor)
            free = found.f_bavail * found.f_frsize + there
            size = min(self._most, free // RESERVE_PART)
            if size >= _LEAST_BYTES:
                os.ftruncate(descriptor, size)
                os.posix_fallocate(descriptor, 0, size)
                self.held = size
            else:
                os.ftruncate(descriptor, 0)
        except OSError:
            with suppress(OSError):
                os.ftruncate(descriptor, 0)
        finally:
            os.close(descriptor)

    def release(self) -> bool:
        """Free the reserved space. Return whether there was any."""
        try:
            found = self._path.stat().st_blocks > 0
            if found:
                os.truncate(self._path, 0)
        except OSError:
            return False
        self.held = 0
        return found

    def remove(self) -> None:
        """Delete the file."""
        with suppress(OSError):
            self._path.unlink()
        self.held = 0
