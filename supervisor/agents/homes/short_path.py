"""Short names for directories in which agents make Unix sockets, whose paths take at most 107 bytes."""

from __future__ import annotations

import hashlib
import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

ROOM: Final = 48
"""Bytes left for the path that an agent appends to its directory (`/.cline/data/hub/hub.sock`)."""

LONGEST: Final = 107 - ROOM
"""Bytes of the longest path that needs no short name. `sockaddr_un` takes 107 without its NUL."""

DIGITS: Final = 12
"""Hexadecimal digits of a digest in a name."""

PLACE_DIGITS: Final = 8

TRIES: Final = 20
"""Attempts to make a link in a place that the end of another conversation may remove meanwhile."""

PLACE: Final = "ostler-"
"""Beginning of the directory of links, in the directory of temporary files."""

REMEMBERED: Final = ".short"
"""A link next to the directory that leads to its directory of links, where that has not the usual name."""

log = structlog.get_logger(__name__)


def short_path(directory: Path) -> Path:
    """Return `directory`, or a stable short link to it where its path is too long.

    The links of one place are in a private directory; `remove_short_path` removes one. Another user can
    predict that directory's usual name and make it first: then it gets an unpredictable name. If no link can
    be made, this returns the long path. Blocks; raises nothing.
    """
    if len(os.fsencode(directory)) <= LONGEST:
        return directory
    for left in reversed(range(TRIES)):
        try:
            link = _private_place(directory) / _digest(directory)
            if not link.is_symlink() or link.readlink() != directory:
                link.unlink(missing_ok=True)
                link.symlink_to(directory)
        except OSError as error:
            if left and isinstance(error, FileNotFoundError | FileExistsError):
                continue  # another conversation has just removed the empty place, or has just made one
            log.warning("no short name for a directory", directory=str(directory), error=str(error))
            break
        else:
            return link
    return directory


def short_place(directory: Path) -> Path:
    """Return `directory`, or another short path where its own is too long: some programs (tmux) resolve links
    before they make their socket. Neither is created here. Blocks; raises nothing."""
    if len(os.fsencode(directory)) <= LONGEST:
        return directory
    with suppress(OSError):
        place = _private_place(directory) / _digest(directory)
        if not place.is_symlink():
            return place
    return directory


def remove_short_path(directory: Path) -> None:
    """Remove the short name, and the directory of such names with its last one. Blocks."""
    for place in short_places(directory):
        link = place / _digest(directory)
        with suppress(OSError):
            if link.is_symlink() and link.readlink() == directory:
                link.unlink()
                place.rmdir()


def _private_place(directory: Path) -> Path:
    """Return the directory for the short name, made if necessary. Raises OSError."""
    for place in short_places(directory):
        with suppress(FileExistsError):  # a file, or a link to nothing
            place.mkdir(mode=0o700, exist_ok=True)
        status = place.lstat()
        if stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077:
            return place
        log.warning("another user made the directory of short names; taking another", place=str(place))
    fresh = Path(tempfile.mkdtemp(prefix=f"{PLACE}{os.getuid()}-"))
    remembered = directory.with_name(REMEMBERED)
    try:
        remembered.unlink(missing_ok=True)
        remembered.symlink_to(fresh)
    except OSError:
        fresh.rmdir()
        raise
    return fresh


def short_places(directory: Path) -> list[Path]:
    """Return where its short name may be: a place that was remembered, and the usual one."""
    name = f"{PLACE}{os.getuid()}-{_digest(directory.parent)[:PLACE_DIGITS]}"
    usual = Path(tempfile.gettempdir(), name)
    try:
        return [directory.with_name(REMEMBERED).readlink(), usual]
    except OSError:
        return [usual]


def _digest(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()[:DIGITS]
