"""Directories of a client: listed page by page, created with what is missing above. Blocking."""

from __future__ import annotations

import heapq
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import attrs

from supervisor.acp.files import is_proc
from supervisor.workspace.access import NO_PROC, AccessRefused, Admitted, walk
from supervisor.workspace.problems import Unfit, translated

NOT_FOUND: Final = "Directory not found"
NOT_A_DIRECTORY: Final = "Path is not a directory"
OCCUPIED: Final = "Path exists and is not a directory"

LISTING_SECONDS: Final = 4.0
"""Seconds for one listing: about a million entries. Less than a visit to a path may take (patience.py)."""

_CLOCK_ENTRIES: Final = 1024  # entries between two looks at the clock
_LIST: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@attrs.frozen
class Names:
    """A page of names, and the first name of the next page."""

    names: tuple[str, ...]
    following: str | None


@contextmanager
def opened(directory: Admitted) -> Iterator[int]:
    """A descriptor with which the directory can be listed.

    Raises WorkspaceProblem, and AccessRefused for directories in which the kernel describes processes.
    """
    with translated(NOT_FOUND, NOT_A_DIRECTORY):
        above = directory.open_directory()
        try:
            descriptor = os.open(".", _LIST, dir_fd=above)
        finally:
            os.close(above)
    if is_proc(descriptor):
        os.close(descriptor)
        raise AccessRefused(NO_PROC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def subdirectories(directory: Admitted, *, page: str | None, limit: int, hidden: bool) -> Names:
    """A page of the directories in a directory, by name in any case; `page` is the name that it begins with.

    Links are left out, and names that are not UTF-8, which no request can name. The memory that it takes does
    not depend on the size of the directory.

    Raises WorkspaceProblem: Unfit for a directory with too many entries to be read in LISTING_SECONDS.
    """
    with (
        opened(directory) as descriptor,
        translated(NOT_FOUND, NOT_A_DIRECTORY),
        os.scandir(descriptor) as entries,
    ):
        first = _key(page) if page else None
        found = heapq.nsmallest(limit + 1, _names(entries, first, hidden), key=_key)
    following = found[limit] if len(found) > limit else None
    return Names(tuple(found[:limit]), following)


def _names(entries: Iterator[os.DirEntry[str]], first: tuple[str, str] | None, hidden: bool) -> Iterator[str]:
    until = time.monotonic() + LISTING_SECONDS
    for number, entry in enumerate(entries, 1):
        if number % _CLOCK_ENTRIES == 0 and time.monotonic() > until:
            raise Unfit("The directory has too many entries to be listed.")
        name = entry.name
        if (name.startswith(".") and not hidden) or (first is not None and _key(name) < first):
            continue
        try:
            name.encode()
            if entry.is_dir(follow_symlinks=False):
                yield name
        except (UnicodeEncodeError, OSError):
            continue


def _key(name: str) -> tuple[str, str]:
    return name.lower(), name


def create(directory: Admitted) -> None:
    """Make a directory and its missing parents. An existing one stays as it is.

    Raises WorkspaceProblem.
    """
    with translated(NOT_FOUND, OCCUPIED):
        os.close(walk(directory.path, make=True))
