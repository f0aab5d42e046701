"""Private files that the programs of one user share: replaced as a whole, under a lock."""

from __future__ import annotations

import fcntl
import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PRIVATE_FILE: Final = 0o600
PRIVATE_DIRECTORY: Final = 0o700

LOCK_SECONDS: Final = 10.0
"""Seconds to wait for another writer: each needs milliseconds."""

LOCK_LOOK_SECONDS: Final = 0.01


class UnusableError(Exception):
    """The file cannot be used; one line says why."""


def read_regular(path: Path, limit: int) -> tuple[bytes, os.stat_result]:
    """The content of a file of at most `limit` bytes, and what it was. Raises UnusableError and OSError."""
    # A pipe must not be waited for.
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        info = os.fstat(file.fileno())
        if not stat.S_ISREG(info.st_mode):
            raise UnusableError("it is not a regular file")
        data = file.read(limit + 1)
    if len(data) > limit:
        raise UnusableError(f"it has more than {limit} bytes")
    return data, info


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file's writers; its directory is created if necessary.

    The lock is a separate file, since the other one is replaced. Raises UnusableError after `LOCK_SECONDS`,
    and OSError.
    """
    path.parent.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(path.with_name(f"{path.name}.lock"), flags, PRIVATE_FILE)
    try:
        until = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    reason = f"another program has been changing it for {LOCK_SECONDS:g} s; try again"
                    raise UnusableError(reason) from None
                time.sleep(LOCK_LOOK_SECONDS)
        yield
    finally:
        os.close(descriptor)


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


def replace(path: Path, data: bytes) -> None:
    """Write the file durably, readable for its owner alone. OSError leaves the old content."""
    # A link stays a link: people keep such files somewhere else.
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, PRIVATE_FILE), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    descriptor = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)  # the rename is durable only with its directory
    finally:
        os.close(descriptor)
