"""Private files that the programs of one user share: read within a bound, and changed under a lock."""

from __future__ import annotations

import fcntl
import os
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from supervisor.private_files import PRIVATE_DIRECTORY, PRIVATE_FILE

LOCK_SECONDS: Final = 10.0
"""Seconds to wait for another writer: each needs milliseconds."""

LOCK_LOOK_SECONDS: Final = 0.01


class UnusableError(Exception):
    """The file cannot be used; one line says why."""


def read_regular(path: Path, limit: int) -> tuple[bytes, os.stat_result]:
    """The content of a file of at most `limit` bytes, and what it was. Raises UnusableError and OSError."""
    data, info = read_shared(path, limit + 1)
    refuse_more(data, limit)
    return data, info


def refuse_more(data: bytes, limit: int) -> None:
    """Raise UnusableError for more than `limit` bytes."""
    if len(data) > limit:
        raise UnusableError(f"it has more than {limit} bytes")


def read_shared(path: Path, most: int) -> tuple[bytes, os.stat_result]:
    """The first `most` bytes of a file, and what it was. Raises UnusableError and OSError."""
    # A pipe must not be waited for.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode):
            raise UnusableError("it is not a regular file")
        return file.read(most), info


@contextmanager
def locked(take: Callable[[], Callable[[], None] | None]) -> Iterator[None]:
    """Hold the lock that `take` tries to take, and that what it returns releases.

    Raises UnusableError after `LOCK_SECONDS`, and what `take` raises.
    """
    until = time.monotonic() + LOCK_SECONDS
    while (release := take()) is None:
        if time.monotonic() > until:
            raise UnusableError(f"another program has been changing it for {LOCK_SECONDS:g} s; try again")
        time.sleep(LOCK_LOOK_SECONDS)
    try:
        yield
    finally:
        release()


def try_lock(path: Path) -> int | None:
    """Try to take a lock on a lock file, held until the returned descriptor is closed. None if it is taken.

    Raises OSError.
    """
    path.parent.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, PRIVATE_FILE)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
