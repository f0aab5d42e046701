"""The control socket: a Unix socket in the state directory, by which operators always get in.

Who can open it is decided by the file system: the directory is the user's alone, and so is the file. The
standard library alone, so that commands are quick.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

CONTROL_FILE: Final = "control.sock"

URL_FILE: Final = "server.url"
"""File in the state directory while the server runs: its address, and a line end."""

CONTROL_MODE: Final = 0o600

ADDRESS_BYTES: Final = 107
"""Longest path in the address of a Unix socket on Linux, without the zero at its end (unix(7))."""

CONNECT_SECONDS: Final = 5.0
"""Seconds for a connection: the kernel makes it at once, unless BACKLOG others wait for a busy server."""

BACKLOG: Final = 16


@contextlib.contextmanager
def short_name(path: Path) -> Iterator[str]:
    """Yield a name of the path that fits into a socket address. Raises OSError.

    A long path goes by the descriptor of its directory, as Linux allows. The name is valid in the block.
    """
    if len(os.fsencode(path)) <= ADDRESS_BYTES:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


class ControlSocket:
    """The listening socket and its file. The caller that made it closes it."""

    def __init__(self, state: Path) -> None:
        """Listen, and replace what an earlier server left. Raises OSError.

        The caller makes sure that one server at a time uses the state directory.
        """
        self.path = state / CONTROL_FILE
        with contextlib.suppress(FileNotFoundError):
            if not stat.S_ISSOCK(self.path.lstat().st_mode):
                raise FileExistsError(f"{self.path} is not a socket; remove it")
            self.path.unlink()
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Before the file is there, which gets the mode of the socket; the directory is private anyway.
            with contextlib.suppress(OSError):  # not everywhere
                os.fchmod(self.socket.fileno(), CONTROL_MODE)
            with short_name(self.path) as name:
                self.socket.bind(name)
            self.path.chmod(CONTROL_MODE)
            self._identity = _identity(self.path)
            self.socket.listen(BACKLOG)
            self.socket.setblocking(False)
        except BaseException:
            self.socket.close()
            raise

    def close(self) -> None:
        """Close the socket and remove its file, unless another server has put its own there."""
        self.socket.close()
        with contextlib.suppress(OSError):
            if _identity(self.path) == self._identity:
                self.path.unlink()


def connect(path: Path, timeout: float) -> socket.socket:
    """Connect to the server that listens there. Raises OSError if there is none."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout)
        with short_name(path) as name:
            sock.connect(name)
    except BaseException:
        sock.close()
        raise
    return sock


def answers(state: Path) -> bool:
    """Whether a server listens at the control socket of this state directory."""
    try:
        connect(state / CONTROL_FILE, CONNECT_SECONDS).close()
    except OSError:
        return False
    return True


def _identity(path: Path) -> tuple[int, int]:
    found = path.lstat()
    return found.st_dev, found.st_ino
