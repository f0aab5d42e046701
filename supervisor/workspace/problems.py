"""What keeps a client's file or git request from being done. Each message is one line for the client."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final


class WorkspaceProblem(Exception):
    """The request cannot be done. The message says why."""


class Missing(WorkspaceProblem):
    """The file or directory is not there."""


class Unfit(WorkspaceProblem):
    """What is there, or what was asked, does not fit the request."""


class Denied(WorkspaceProblem):
    """The operating system does not permit it."""


class NoRoom(WorkspaceProblem):
    """The disk, or the user's share of it, is full."""


_DENIED: Final = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_UNFIT: Final = frozenset(
    {errno.ENOTDIR, errno.ELOOP, errno.EISDIR, errno.EEXIST, errno.ENXIO, errno.ENODEV, errno.ENAMETOOLONG}
)


@contextmanager
def translated(missing: str, unfit: str) -> Iterator[None]:
    """Convert errors of the operating system. `missing` and `unfit` are the messages for the client.

    Raises Missing, Unfit, Denied, NoRoom. Other errors of the system become Denied with the system's message.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, TimeoutError):
            raise
        word = error.strerror or type(error).__name__
        if isinstance(error, BlockingIOError):
            raise Denied("Another process holds a lease on the file. Try again.") from None
        if error.errno == errno.ENOENT:
            raise Missing(missing) from None
        if error.errno in _FULL:
            raise NoRoom(f"There is no room on the disk: {word}.") from None
        if error.errno == errno.ENAMETOOLONG:
            raise Unfit(word) from None
        if error.errno in _UNFIT:
            raise Unfit(unfit) from None
        if error.errno in _DENIED:
            raise Denied(f"Permission denied: {word}.") from None
        raise Denied(f"The file system refused: {word}.") from None
