"""A directory as a compressed tar archive, made piece by piece. Blocking, and never in memory as a whole."""

from __future__ import annotations

import os
import stat
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import attrs
import orjson

from supervisor.acp.files import is_proc
from supervisor.workspace.access import Admitted
from supervisor.workspace.directories import opened
from supervisor.workspace.exclusion import is_excluded, may_hold_credentials
from supervisor.workspace.problems import Unfit, WorkspaceProblem

MANIFEST: Final = "archive_manifest.json"
"""The last member: what the archive has. A file of the workspace with this name goes before it."""

READ_BYTES: Final = 256 * 1024
"""Bytes of a file that are read and compressed at a time."""

STEP_ENTRIES: Final = 256
"""Entries after which the caller has its turn, also where nothing is ready to be sent."""

MAX_DEPTH: Final = 200
"""Directories above a file, below the archive's root. Each is opened step by step."""

MAX_WAITING: Final = 200_000
"""Directories that were found and not looked at yet: some tens of megabytes."""

GIT: Final = ".git"
MARKS: Final = ("HEAD", "objects")
"""Entries that identify a git directory, also a bare one of any name."""

_GZIP: Final = 31  # zlib's word for gzip with the largest window
_LEVEL: Final = 6
_INTO: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_ENCODING: Final = ("utf-8", "surrogateescape")


@attrs.define
class _Count:
    files: int = 0
    bytes: int = 0
    manifest_taken: bool = False


def tar_gz(directory: Admitted, excludes: Sequence[str]) -> Iterator[bytes]:
    """Yield the archive. Each piece takes little work; some pieces are empty.

    It holds regular files and directories. It omits links and anything else, files in which the kernel
    describes processes, and parts of a git directory that may hold the token of a remote. No link is
    followed. A file that grows meanwhile is cut, one that shrinks is padded with zero bytes, and a removed
    one is left out: the archive stays valid under concurrent changes. Names that are not UTF-8 keep their
    bytes.

    Raises WorkspaceProblem at the first step where the directory cannot be opened, and Unfit later for one
    with more than MAX_WAITING directories side by side.
    """
    packed = zlib.compressobj(_LEVEL, zlib.DEFLATED, _GZIP)
    count = _Count()
    with opened(directory) as root:
        inside = in_git_directory(directory.path)
        for plain in _members(root, directory.path.name or "root", excludes, count, inside=inside):
            yield packed.compress(plain)
        if not count.manifest_taken:
            yield packed.compress(_manifest(directory.path.name or "root", excludes, count))
    yield packed.compress(bytes(2 * tarfile.BLOCKSIZE))
    yield packed.flush()


def _members(
    root: int, name: str, excludes: Sequence[str], count: _Count, *, inside: bool
) -> Iterator[bytes]:
    """`inside`: whether the root is a git directory, or in one."""
    waiting: list[tuple[tuple[str, ...], bool]] = [((), inside)]
    while waiting:
        parts, in_git = waiting.pop()
        try:
            here = _descend(root, parts)
        except OSError:
            continue  # It is gone, or not readable.
        try:
            if is_proc(here):
                continue
            in_git = in_git or _is_git_directory(here, parts)
            yield _header(name, parts, os.fstat(here))
            with os.scandir(here) as entries:
                for number, entry in enumerate(entries, 1):
                    if number % STEP_ENTRIES == 0:
                        yield b""
                    below = (*parts, entry.name)
                    try:
                        directory = entry.is_dir(follow_symlinks=False)
                        regular = entry.is_file(follow_symlinks=False)
                    except OSError:
                        continue
                    if is_excluded(below, excludes, directory=directory):
                        continue
                    if in_git and may_hold_credentials(entry.name):
                        continue
                    if directory and len(below) <= MAX_DEPTH:
                        waiting.append((below, in_git))
                        if len(waiting) > MAX_WAITING:
                            raise Unfit(
                                "The directory holds too many directories to be archived. Archive its parts."
                            )
                    elif regular:
                        yield from _file(here, name, below, count)
        except WorkspaceProblem:
            raise
        except OSError:
            continue
        finally:
            os.close(here)


def in_git_directory(path: Path) -> bool:
    """Whether a resolved directory is a git directory, or in one, of any name.

    Raises Unfit for a part of one that may hold credentials.
    """
    for each in (path, *path.parents):
        if each.name == GIT or all(os.path.lexists(each / name) for name in MARKS):
            if any(map(may_hold_credentials, path.relative_to(each).parts)):
                raise Unfit("This part of a git directory may hold credentials, and is not archived.")
            return True
    return False


def _is_git_directory(here: int, parts: Sequence[str]) -> bool:
    """The same of an open directory, whose parents have been looked at."""
    if parts and parts[-1] == GIT:
        return True
    try:
        for name in MARKS:
            os.stat(name, dir_fd=here, follow_symlinks=False)
    except OSError:
        return False
    return True


def _descend(root: int, parts: Sequence[str]) -> int:
    here = os.open(".", _INTO, dir_fd=root)
    for part in parts:
        try:
            below = os.open(part, _INTO, dir_fd=here)
        finally:
            os.close(here)
        here = below
    return here


def _file(here: int, name: str, parts: tuple[str, ...], count: _Count) -> Iterator[bytes]:
    try:
        descriptor = os.open(parts[-1], _FILE, dir_fd=here)
    except OSError:
        return
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return
        yield _header(name, parts, found)
        left = found.st_size
        while left:
            try:
                data = os.read(descriptor, min(READ_BYTES, left))
            except OSError:
                data = b""
            # Its size is written already. What is missing must not shift the members behind it.
            data = data or bytes(min(READ_BYTES, left))
            left -= len(data)
            yield data
        yield bytes(-found.st_size % tarfile.BLOCKSIZE)
        count.files += 1
        count.bytes += found.st_size
        count.manifest_taken |= parts == (MANIFEST,)
    finally:
        os.close(descriptor)


def _header(name: str, parts: Sequence[str], found: os.stat_result) -> bytes:
    member = tarfile.TarInfo("/".join((name, *parts)))
    member.mode = stat.S_IMODE(found.st_mode)
    member.uid, member.gid = found.st_uid, found.st_gid
    member.mtime = int(found.st_mtime)
    if stat.S_ISDIR(found.st_mode):
        member.type = tarfile.DIRTYPE
    else:
        member.size = found.st_size
    return member.tobuf(tarfile.PAX_FORMAT, *_ENCODING)


def _manifest(name: str, excludes: Sequence[str], count: _Count) -> bytes:
    content = orjson.dumps(
        {
            "format": "tar.gz",
            "source": os.fsencode(name).decode("utf-8", "replace"),
            "file_count": count.files,
            "total_bytes": count.bytes,
            "excludes": list(excludes),
        },
        option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS,
    )
    member = tarfile.TarInfo(f"{name}/{MANIFEST}")
    member.size = len(content)
    padding = bytes(-len(content) % tarfile.BLOCKSIZE)
    return member.tobuf(tarfile.PAX_FORMAT, *_ENCODING) + content + padding
