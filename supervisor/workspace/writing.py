"""An uploaded file: written to a temporary file in the same directory, and renamed when complete.
Blocking."""

from __future__ import annotations

import os
import secrets
import stat
import threading
from contextlib import suppress
from typing import Final

from supervisor.workspace.access import Admitted
from supervisor.workspace.directories import make
from supervisor.workspace.problems import Denied, Unfit, told

IS_DIRECTORY: Final = "Path is a directory"
NOT_A_FILE: Final = "Path is not a file"
NO_PARENT: Final = "A parent of the path is not a directory"
GONE: Final = "The directory of the file was removed meanwhile"

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


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
        self._beside = f".{secrets.token_hex(8)}.ostler"
        if not self._name or place.path == place.root:
            raise Unfit(IS_DIRECTORY)
        with told(GONE, NO_PARENT):
            self._above = make(place.path.parts[1:-1])
        try:
            with told(GONE, NO_PARENT):
                mode = self._mode()
                self._descriptor = os.open(self._beside, _NEW, 0o666, dir_fd=self._above)
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
        with self._lock, told(GONE, NOT_A_FILE):
            if not self._open:
                return
            while view:
                written = os.write(self._descriptor, view)
                self.size += written
                view = view[written:]

    def keep(self) -> None:
        """Rename the temporary file to its final name, atomically."""
        with self._lock, told(GONE, IS_DIRECTORY):
            os.rename(self._beside, self._name, src_dir_fd=self._above, dst_dir_fd=self._above)
            self._close()

    def discard(self) -> None:
        """Remove the temporary file, unless it was kept. Waits for a thread that is writing. Idempotent."""
        with self._lock:
            if self._open:
                with suppress(OSError):
                    os.unlink(self._beside, dir_fd=self._above)
                self._close()

    def _close(self) -> None:
        self._open = False
        os.close(self._descriptor)
        os.close(self._above)
