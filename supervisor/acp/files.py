"""Reading and writing files below one directory, and nowhere else. Blocking: for worker threads.

Paths come from the agent. They are resolved first, so that a link within the workspace works, and then opened
step by step without following any link, so that one put there in between leads nowhere either.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Final

from .errors import INTERNAL_ERROR, RESOURCE_NOT_FOUND, RpcError

MAX_READ_BYTES: Final = 10 * 1024 * 1024
"""Most text given out by one read, bytes. Larger files are read in pieces, with `line` and `limit`."""

_PIECE: Final = 64 * 1024  # bytes of a skipped line held at once

_DIRECTORY: Final = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A named pipe must not block the opening.
_FILE: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class Jail:
    """A directory that paths of the agent must not lead out of."""

    def __init__(self, root: Path) -> None:
        self._given = root

    def locate(self, path: str) -> tuple[Path, tuple[str, ...]]:
        """The resolved root, and the steps below it that `path` leads to (which need not exist).

        Raises RpcError (-32602) for a path that is relative or leads out of the root.
        """
        if not path.startswith("/") or "\0" in path:
            raise RpcError.invalid_params("The path must be absolute", {"path": path})
        root = self._given.resolve()
        # realpath goes through `..` after links, as the system does, and stops at links to themselves.
        target = Path(os.path.realpath(path))
        if not target.is_relative_to(root):
            raise RpcError.invalid_params("The path is outside the workspace", {"path": path})
        return root, target.relative_to(root).parts

    def directory(self, path: str) -> Path:
        """A directory within the root. Raises RpcError as `locate`, and -32002 when there is none."""
        root, steps = self.locate(path)
        target = root.joinpath(*steps)
        if not target.is_dir():
            raise RpcError(RESOURCE_NOT_FOUND, "No such directory", {"path": path})
        return target

    def read_text(self, path: str, first_line: int = 1, line_count: int | None = None) -> str:
        """The text of a file, or `line_count` of its lines beginning with `first_line` (from 1).

        Bytes that are not UTF-8 are shown as replacement characters. Raises RpcError: -32002 when there is
        no such file, -32602 outside the root, for what is no file, and for more than MAX_READ_BYTES.
        """
        with _errors(path), os.fdopen(self._open(path, os.O_RDONLY), "rb") as file:
            for _ in range(first_line - 1):
                if not _skip_line(file):
                    return ""
            if line_count is None:
                data = file.read(MAX_READ_BYTES + 1)
            else:
                lines: list[bytes] = []
                room = MAX_READ_BYTES + 1
                while len(lines) < line_count and room > 0 and (line := file.readline(room)):
                    lines.append(line)
                    room -= len(line)
                data = b"".join(lines)
        if len(data) > MAX_READ_BYTES:
            raise RpcError.invalid_params(
                f"More than {MAX_READ_BYTES} bytes; read it in pieces with line and limit",
                {"path": path, "maxBytes": MAX_READ_BYTES},
            )
        return data.decode("utf-8", "replace")

    def write_text(self, path: str, content: str) -> None:
        """Write a file, made if missing, with the directories above it. Raises RpcError as `read_text`."""
        data = content.encode("utf-8", "replace")
        flags = os.O_WRONLY | os.O_CREAT
        with _errors(path), os.fdopen(self._open(path, flags, make_parents=True), "wb") as file:
            file.truncate(0)
            file.write(data)

    def _open(self, path: str, flags: int, *, make_parents: bool = False) -> int:
        """Open a regular file below the root; the descriptor is the caller's."""
        root, steps = self.locate(path)
        if not steps:
            raise IsADirectoryError
        here = os.open(root, _DIRECTORY)
        try:
            for step in steps[:-1]:
                if make_parents:
                    with contextlib.suppress(FileExistsError):
                        os.mkdir(step, dir_fd=here)
                below = os.open(step, _DIRECTORY, dir_fd=here)
                os.close(here)
                here = below
            descriptor = os.open(steps[-1], flags | _FILE, 0o666, dir_fd=here)
        finally:
            os.close(here)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise RpcError.invalid_params("Not a regular file", {"path": path})
        return descriptor


def _skip_line(file: BinaryIO) -> bool:
    while piece := file.readline(_PIECE):
        if piece.endswith(b"\n"):
            return True
    return False


@contextlib.contextmanager
def _errors(path: str) -> Iterator[None]:
    """What the system says, as errors of the protocol."""
    try:
        yield
    except FileNotFoundError:
        raise RpcError(RESOURCE_NOT_FOUND, "No such file", {"path": path}) from None
    except (IsADirectoryError, NotADirectoryError):
        raise RpcError.invalid_params("Not a regular file", {"path": path}) from None
    except OSError as error:
        raise RpcError(INTERNAL_ERROR, error.strerror or "The file cannot be used", {"path": path}) from None
