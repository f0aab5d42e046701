"""A client's regular file, open for reading, with its size fixed at the opening. Blocking."""

from __future__ import annotations

import os
import stat
import threading
from typing import Final

import attrs

from supervisor.workspace.access import Admitted
from supervisor.workspace.problems import Missing, Unfit, told

NOT_FOUND: Final = "File not found"
NOT_A_FILE: Final = "Path is not a file"

PIECE_BYTES: Final = 256 * 1024
"""Bytes that are read, and held in memory, at a time."""


class Changed(Exception):
    """The file shrank while it was read, so the announced size cannot be delivered."""


@attrs.define(eq=False)
class OpenFile:
    """A regular file. Yields exactly `size` bytes, the size at the opening, or raises Changed.

    `modified`: time of the last change in nanoseconds since the epoch; None for a generated file."""

    descriptor: int
    size: int
    modified: int | None = None
    left: int = attrs.field(init=False)
    _lock: threading.Lock = attrs.field(init=False, factory=threading.Lock)
    _closed: bool = attrs.field(init=False, default=False)

    def __attrs_post_init__(self) -> None:
        self.left = self.size

    def skip(self, offset: int, length: int) -> None:
        """Select a range: `length` bytes from `offset` on."""
        os.lseek(self.descriptor, offset, os.SEEK_SET)
        self.left = length

    def read(self) -> bytes:
        """The next piece; empty at the end, and once it is closed. Raises Changed, OSError."""
        try:
            with self._lock:
                if self._closed or not self.left:
                    return b""
                piece = os.read(self.descriptor, min(PIECE_BYTES, self.left))
        finally:
            if self._closed:
                self._release()
        if not piece:
            raise Changed("the file became shorter while it was read")
        self.left -= len(piece)
        return piece

    def write(self, data: bytes) -> None:
        """Add a piece at the end; nothing once it is closed. Raises OSError."""
        view = memoryview(data)
        try:
            with self._lock:
                while view and not self._closed:
                    view = view[os.write(self.descriptor, view) :]
        finally:
            if self._closed:
                self._release()

    def __del__(self) -> None:
        # An answer that is cancelled before its body is asked for closes nothing.
        self.close()

    def close(self) -> None:
        """Close it, or have the thread that reads meanwhile do so. Waits for nothing; idempotent."""
        self._closed = True
        self._release()

    def _release(self) -> None:
        # Never while a thread reads: the number could be another file's by then.
        if self._lock.acquire(blocking=False):
            if self.descriptor >= 0:
                os.close(self.descriptor)
                self.descriptor = -1
            self._lock.release()


def open_file(file: Admitted) -> OpenFile:
    """Open a regular file; pipes, devices and files that only look like files are refused.

    Raises WorkspaceProblem, AccessRefused. The caller closes it.
    """
    if not file.path.name:
        raise Unfit(NOT_A_FILE)
    with told(NOT_FOUND, NOT_A_FILE):
        try:
            descriptor = file.open(os.O_RDONLY)
        except NotADirectoryError:
            raise Missing(NOT_FOUND) from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise Unfit(NOT_A_FILE)
    return OpenFile(descriptor, found.st_size, found.st_mtime_ns)
