"""The state directory: made private, or refused where it cannot be. Blocks: call it in a thread."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path
from typing import Final

import structlog

log = structlog.get_logger(__name__)

STATE_MODE: Final = 0o700

TEMPORARY_DIR: Final = "tmp"
"""Subdirectory of temporary files. The next start removes those of `TEMPORARY_PREFIX` that a killed server
left."""

TEMPORARY_PREFIX: Final = "ostler-git-"
"""Prefix of the names that servers use there."""

OTHERS: Final = 0o077
"""Permission bits of the group and of others."""


class StateRefused(Exception):
    """The directory cannot hold private files. The message is one line for the terminal."""


def make_private(state: Path) -> None:
    """Make the directory private, regardless of the umask; create it, and missing directories above it.

    Logs a warning if a directory above it is writable by all users without the sticky bit, since any user
    could then replace it. For root, a directory of another user is only a warning, since volumes of
    containers often belong to another user.

    Raises StateRefused if the directory cannot be used, or if it or a link in its place belongs to another
    user; OSError.
    """
    try:
        _make(state)
        descriptor = os.open(state, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise StateRefused(f"{_named(state)} cannot be used: {error.strerror or error}; {_ELSE}") from error
    try:
        link = state.lstat()
        if stat.S_ISLNK(link.st_mode) and link.st_uid not in (os.geteuid(), 0):
            raise StateRefused(
                f"{_named(state)} is a symbolic link of another user (uid {link.st_uid}); {_ELSE}"
            )
        found = os.fstat(descriptor)
        if found.st_uid != os.geteuid():
            if os.geteuid() != 0:
                raise StateRefused(f"{_named(state)} belongs to another user (uid {found.st_uid}); {_ELSE}")
            log.warning(
                "state directory belongs to another user, who can read it",
                directory=str(state),
                uid=found.st_uid,
            )
        for above in sorted({*state.parents, *state.resolve().parents}):
            mode = above.stat().st_mode
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                log.warning(
                    "everybody can replace the state directory; run chmod o-w on the directory above",
                    directory=str(state),
                    above=str(above),
                )
        if found.st_mode & OTHERS:
            os.fchmod(descriptor, STATE_MODE)
            if os.fstat(descriptor).st_mode & OTHERS:  # a file system without modes
                raise StateRefused(f"{_named(state)} cannot be closed to others; {_ELSE}")
            log.warning(
                "closed the state directory to other users",
                directory=str(state),
                mode=f"{stat.S_IMODE(found.st_mode):04o}",
            )
    finally:
        os.close(descriptor)


def remove_temporary(state: Path) -> None:
    """Remove what killed servers left in `TEMPORARY_DIR`. The caller holds the state's lock.

    Everything else there stays, and a link in the place of the directory is not followed. What cannot be
    removed is logged and otherwise ignored.
    """
    place = state / TEMPORARY_DIR
    try:
        directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as error:
        log.warning("not a directory; what servers left is not removed", path=str(place), reason=str(error))
        return
    try:
        with os.scandir(directory) as entries:
            names = sorted(each.name for each in entries)
        for name in names:
            if not name.startswith(TEMPORARY_PREFIX):
                continue
            try:
                shutil.rmtree(name, dir_fd=directory)
            except OSError as error:
                log.warning("cannot remove what a server left", path=str(place / name), reason=str(error))
    finally:
        os.close(directory)


_ELSE: Final = "name another one with --state"


def _named(state: Path) -> str:
    return f"the state directory {state}"


def _make(directory: Path) -> None:
    missing = [each for each in (directory, *directory.parents) if not os.path.lexists(each)]
    for each in reversed(missing):
        try:
            each.mkdir(mode=STATE_MODE)
        except FileExistsError:
            continue
        each.chmod(STATE_MODE)  # regardless of the umask
