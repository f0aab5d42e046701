"""A client's regular file: open for reading, or received into its place. Blocking."""

from __future__ import annotations

import os
import secrets
import stat
import threading
from contextlib import suppress
from typing import Final

import attrs

from supervisor.workspace.access import Admitted, walk
from supervisor.workspace.problems import Denied, Missing, Unfit, translated

NOT_FOUND: Final = "File not found"
NOT_A_FILE: Final = "Path is not a file"
IS_DIRECTORY: Final = "Path is a directory"
NO_PARENT: Final = "A parent of the path is not a directory"
GONE: Final = "The directory of the file was removed meanwhile"

PIECE_BYTES: Final = 256 * 1024
"""Bytes that are read, and held in memory, at a time."""

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


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
    with translated(NOT_FOUND, NOT_A_FILE):
        try:
            descriptor = file.open(os.O_RDONLY)
        except NotADirectoryError:
            raise Missing(NOT_FOUND) from None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise Unfit(NOT_A_FILE)
    return OpenFile(descriptor, found.st_size, found.st_mtime_ns)


class Receiver:
    """Receives the bytes of one file. The owner must call `keep` or `discard`; `discard` after `keep` is a
    no-op.

    Creates missing parent directories. An existing file stays as it is until `keep`, and then passes its mode
    on to the new one. All methods but `discard` raise WorkspaceProblem.
    """

    def __init__(self, place: Admitted) -> None:
        self.size = 0
        self._lock = threading.Lock()
        self._name = place.path.name
        self._temporary = f".{secrets.token_hex(8)}.ostler"
        if not self._name or place.path == place.root:
            raise Unfit(IS_DIRECTORY)
        with translated(GONE, NO_PARENT):
            self._above = walk(place.path.parent, make=True)
        try:
            with translated(GONE, NO_PARENT):
                mode = self._mode()
                self._descriptor = os.open(self._temporary, _NEW, 0o666, dir_fd=self._above)
                if mode is not None:
                    os.fchmod(self._descriptor, mode)
        except BaseException:
            os.close(self._above)
            raise
        self._open = True

    def _mode(self) -> int | None:
        """The mode of the file that is there; None where there is none."""
        try:
            found = os.stat(self._name, dir_fd=self._above, follow_symlinks=False)
        except FileNotFoundError:
            return None
        if stat.S_ISDIR(found.st_mode):
            raise Unfit(IS_DIRECTORY)
        if not stat.S_ISREG(found.st_mode):
            raise Unfit(NOT_A_FILE)
        if not os.access(self._name, os.W_OK, dir_fd=self._above):
            raise Denied("Permission denied: the file is read-only.")
        return stat.S_IMODE(found.st_mode)

    def write(self, data: bytes) -> None:
        """Append bytes."""
        view = memoryview(data)
        with self._lock, translated(GONE, NOT_A_FILE):
            if not self._open:
                return
            while view:
                written = os.write(self._descriptor, view)
                self.size += written
                view = view[written:]

    def keep(self) -> None:
        """Rename the temporary file to its final name, atomically."""
        with self._lock, translated(GONE, IS_DIRECTORY):
            os.rename(self._temporary, self._name, src_dir_fd=self._above, dst_dir_fd=self._above)
            self._close()

    def discard(self) -> None:
        """Remove the temporary file, unless it was kept. Waits for a thread that is writing. Idempotent."""
        with self._lock:
            if self._open:
                with suppress(OSError):
                    os.unlink(self._temporary, dir_fd=self._above)
                self._close()

    def _close(self) -> None:
        self._open = False
        os.close(self._descriptor)
        os.close(self._above)
