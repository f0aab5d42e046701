"""Reads and writes files below one directory only. Blocking: for worker threads.

The agent supplies the paths. Each path is resolved first, so that symlinks within the workspace work, and
then opened component by component without following symlinks, so that one created in between has no effect.
The root is resolved once, when the jail is made: an agent that replaces its workspace with a symlink does not
move the root.

Known limit: a hard link within the root gives access to the outside file that it names.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import io
import os
import secrets
import stat
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Final

from supervisor.acp.errors import INTERNAL_ERROR, RESOURCE_NOT_FOUND, RpcError

MAX_READ_BYTES: Final = 10 * 1024 * 1024
"""The most bytes of text in one read. Larger files are read in pieces, with `line` and `limit`."""

MAX_SKIP_BYTES: Final = 1024 * 1024 * 1024
"""The most bytes skipped to find the first line of a read: seconds of work.

A sparse file may appear larger than any disk and contain no line feed at all.
"""

MAX_PATH_BYTES: Final = 4096
"""Linux's limit of a path (PATH_MAX), in bytes. A longer path is invalid, and every step costs a system
call."""

_PIECE: Final = 64 * 1024  # bytes of a file held at once while line ends are counted

_STEP: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Opening a named pipe must not block, and no tty may become the server's controlling terminal.
_FILE: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY

_IRREPLACEABLE: Final = frozenset({errno.EPERM, errno.EACCES, errno.EBUSY, errno.EXDEV})
"""Errors for a writable file that cannot be replaced: a sticky directory, or a mount point."""

_PROC_MAGIC: Final = 0x9FA0  # f_type of procfs, from linux/magic.h


class Jail:
    """A directory that the agent's paths cannot leave. Resolves `root` once."""

    def __init__(self, root: Path) -> None:
        self._root = Path(os.path.realpath(root))

    def locate(self, path: str) -> tuple[str, ...]:
        """Resolve `path`, which need not exist; return its components below the root.

        Raises RpcError: -32602 for a path that is relative, too long, or outside the root, -32603 for one
        that changes while it is resolved.
        """
        if len(path) > MAX_PATH_BYTES:  # before any error repeats it
            raise RpcError.invalid_params("The path is too long", {"maxBytes": MAX_PATH_BYTES})
        if not path.startswith("/") or "\0" in path:
            raise RpcError.invalid_params("The path must be absolute", {"path": path})
        try:
            length = len(os.fsencode(path))
        except UnicodeEncodeError:
            raise RpcError.invalid_params("The path is not valid Unicode") from None
        if length > MAX_PATH_BYTES:
            raise RpcError.invalid_params("The path is too long", {"maxBytes": MAX_PATH_BYTES})
        try:
            # It applies `..` after following links, as the kernel does, and stops at link loops.
            target = Path(os.path.realpath(path))
        except OSError:  # A symlink changed while it was resolved.
            raise RpcError(
                INTERNAL_ERROR, "The path changed while Ostler resolved it; try again", {"path": path}
            ) from None
        if not target.is_relative_to(self._root):
            raise RpcError.invalid_params("The path is outside the workspace", {"path": path})
        return target.relative_to(self._root).parts

    def open_directory(self, path: str | None) -> int:
        """Open a directory within the root (None: the root itself) and return its descriptor (O_PATH), which
        the caller owns.

        Raises RpcError as `locate`, and -32002 if there is no such directory.
        """
        steps = () if path is None else self.locate(path)
        try:
            return self._walk(steps)
        except OSError:
            raise RpcError(RESOURCE_NOT_FOUND, "No such directory", {"path": path}) from None

    def read_text(
        self,
        path: str,
        first_line: int = 1,
        line_count: int | None = None,
        *,
        check: Callable[[], object] = lambda: None,
    ) -> str:
        """Read the text of a file, or `line_count` of its lines beginning with `first_line` (from 1).

        Invalid UTF-8 becomes replacement characters. `check` is called between pieces and may raise to end a
        long search.

        Raises RpcError: -32002 if there is no such file; -32602 outside the root, for anything but a regular
        file, for more than MAX_READ_BYTES, and for a first line beyond MAX_SKIP_BYTES.
        """
        with _errors(path), os.fdopen(self._open(path, os.O_RDONLY), "rb") as file:
            start, missing = _measure(file, first_line - 1, MAX_SKIP_BYTES, check)
            if start > MAX_SKIP_BYTES:
                raise RpcError.invalid_params(
                    f"The line is more than {MAX_SKIP_BYTES} bytes into the file",
                    {"path": path, "maxBytes": MAX_SKIP_BYTES},
                )
            if missing:
                return ""
            room = MAX_READ_BYTES + 1
            if line_count is not None:
                file.seek(start)
                room = min(room, _measure(file, line_count, MAX_READ_BYTES, check)[0])
            file.seek(start)
            data = file.read(room)
        if len(data) > MAX_READ_BYTES:
            raise RpcError.invalid_params(
                f"More than {MAX_READ_BYTES} bytes; read it in pieces with line and limit",
                {"path": path, "maxBytes": MAX_READ_BYTES},
            )
        return data.decode("utf-8", "replace")

    def write_text(self, path: str, content: str) -> None:
        """Write a file; create it and its parent directories if missing. Raises RpcError as `read_text`.

        An existing file is replaced atomically and keeps its mode and owner; if that fails, as on a full
        disk, it stays unchanged. A file that cannot be replaced is written in place: it has other hard links,
        which must see the new content, too, or its directory is not writable.
        """
        data = content.encode("utf-8", "replace")
        with _errors(path):
            steps = self.locate(path)
            if not steps:
                raise IsADirectoryError
            above = self._walk(steps[:-1], make=True)
            try:
                _write_at(above, steps[-1], data, path)
            finally:
                os.close(above)

    def _open(self, path: str, flags: int) -> int:
        """Open a regular file below the root; the descriptor is the caller's."""
        steps = self.locate(path)
        if not steps:
            raise IsADirectoryError
        above = self._walk(steps[:-1])
        try:
            return _checked(os.open(steps[-1], flags | _FILE, 0o666, dir_fd=above), path)
        finally:
            os.close(above)

    def _walk(self, steps: Sequence[str], *, make: bool = False) -> int:
        """Open the directory with these components below the root. Follows no symlink, from `/` on."""
        here = os.open("/", _STEP)
        try:
            for step in self._root.parts[1:]:
                here = _into(here, step)
            for step in steps:
                if make:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(step, dir_fd=here)
                here = _into(here, step)
        except BaseException:
            os.close(here)
            raise
        return here


def _into(here: int, step: str) -> int:
    """Open the child `step` of the directory `here`. Closes `here`, unless it raises OSError."""
    below = os.open(step, _STEP, dir_fd=here)
    os.close(here)
    return below


def _checked(descriptor: int, path: str) -> int:
    """Return the descriptor if it is a regular file's; else close it and raise RpcError."""
    reason = None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        reason = "Not a regular file"
    elif is_proc(descriptor):
        # They look like regular files, but show and change the state of the process that opens them: the
        # server.
        reason = "Files below /proc are not served"
    if reason is not None:
        os.close(descriptor)
        raise RpcError.invalid_params(reason, {"path": path})
    return descriptor


def _write_at(above: int, name: str, data: bytes, path: str) -> None:
    try:
        # Without O_CREAT and O_TRUNC: the permissions of the old file decide whether it may be written.
        old = _checked(os.open(name, os.O_WRONLY | _FILE, dir_fd=above), path)
    except FileNotFoundError:
        _put_next_to(above, name, data, None)
        return
    with io.FileIO(old, "w") as file:
        if not _put_next_to(above, name, data, os.fstat(old)):
            _overwrite(file, data)


def _put_next_to(above: int, name: str, data: bytes, old: os.stat_result | None) -> bool:
    """Write a temporary file next to `name`, and rename it to `name`, keeping the owner and mode of `old`.

    Returns False if that is not possible. Raises OSError. Leaves no temporary file in either case.
    """
    if old is not None and old.st_nlink > 1:
        return False
    temporary = f".{secrets.token_hex(8)}.ostler"
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _FILE, 0o666, dir_fd=above)
    except PermissionError:
        if old is None:
            raise
        return False
    try:
        with io.FileIO(descriptor, "w") as file:
            if old is not None and not _take_after(descriptor, old):
                os.unlink(temporary, dir_fd=above)
                return False
            _write_all(file, data)
        os.rename(temporary, name, src_dir_fd=above, dst_dir_fd=above)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=above)
        if old is not None and isinstance(error, OSError) and error.errno in _IRREPLACEABLE:
            return False
        raise
    return True


def _take_after(descriptor: int, old: os.stat_result) -> bool:
    """Give a new file the owner and mode of the old one. Returns False if that is not permitted."""
    found = os.fstat(descriptor)
    if (found.st_uid, found.st_gid) != (old.st_uid, old.st_gid):
        try:
            os.fchown(descriptor, old.st_uid, old.st_gid)
        except PermissionError:
            return False
    os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
    return True


def _overwrite(file: io.FileIO, data: bytes) -> None:
    """Write a file in place. Allocates the space before it overwrites anything."""
    size = os.fstat(file.fileno()).st_size
    if len(data) > size and hasattr(os, "posix_fallocate"):
        try:
            os.posix_fallocate(file.fileno(), 0, len(data))
        except OSError:
            with contextlib.suppress(OSError):
                file.truncate(size)
            raise
    _write_all(file, data)
    file.truncate(len(data))


def _write_all(file: io.FileIO, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[file.write(view) :]


def is_proc(descriptor: int) -> bool:
    """Whether an open file belongs to procfs, or its file system cannot be determined."""
    if sys.platform != "linux":
        return False
    # `struct statfs` begins with `f_type`, a long, and is shorter than this buffer.
    found = (ctypes.c_long * 64)()
    libc = ctypes.CDLL(None, use_errno=True)
    return bool(libc.fstatfs(descriptor, ctypes.byref(found)) != 0 or found[0] == _PROC_MAGIC)


def _measure(file: BinaryIO, lines: int, most: int, check: Callable[[], object]) -> tuple[int, int]:
    """The bytes of the next `lines` lines, and how many of these lines the file does not have.

    Gives up after more than `most` bytes. Counts in pieces, since a loop over short lines would hold the GIL
    for a long time.
    """
    length = 0
    while lines and length <= most:
        check()
        piece = file.read(_PIECE)
        if not piece:
            break
        found = piece.count(b"\n")
        if found >= lines:
            end = 0
            for _ in range(lines):
                end = piece.index(b"\n", end) + 1
            return length + end, 0
        lines -= found
        length += len(piece)
    return length, lines


@contextlib.contextmanager
def _errors(path: str) -> Iterator[None]:
    """Raise OSError as RpcError."""
    try:
        yield
    except FileNotFoundError:
        raise RpcError(RESOURCE_NOT_FOUND, "No such file", {"path": path}) from None
    except (IsADirectoryError, NotADirectoryError):
        raise RpcError.invalid_params("Not a regular file", {"path": path}) from None
    except (
        BlockingIOError
    ):  # O_NONBLOCK reports a file lease at once; waiting for it could take most of a minute
        raise RpcError(
            INTERNAL_ERROR, "Another process holds a lease on the file; try again", {"path": path}
        ) from None
    except OSError as error:
        raise RpcError(
            INTERNAL_ERROR, error.strerror or "The file cannot be opened", {"path": path}
        ) from None
