"""Private files, mode 0600, written durably, and as a whole or not at all. Blocking: call it in a thread."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Final

#: Readable and writable for the owner alone.
PRIVATE_FILE: Final = 0o600

#: The directory that holds such files.
PRIVATE_DIRECTORY: Final = 0o700


def replace_private(path: Path, data: bytes) -> None:
    """Write `data` to `path`; after a crash the file has the old content or the new, never a part."""
    temporary = _write_next_to(path, data)
    try:
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def create_private(path: Path, data: bytes) -> bool:
    """Write `data` to `path` unless it exists. Returns whether it was created.

    A hard link is exclusive and never exposes a half-written file, as O_EXCL alone would.
    """
    temporary = _write_next_to(path, data)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    _sync_directory(path.parent)
    return True


def _write_next_to(path: Path, data: bytes) -> Path:
    path.parent.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE_FILE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, PRIVATE_FILE)  # overrides the umask
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _sync_directory(directory: Path) -> None:
    # A rename is durable only with its directory.
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
