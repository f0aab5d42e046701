"""A separate home for the agent of one conversation, filled from the real one. Blocking, except what is
async.

An agent that keeps a helper running (a hub, a tmux server) finds it by a socket, a port or a process id below
its HOME. Two agents with one HOME share the helper, and it ends with the conversation that started it. So
each conversation has its own HOME. What is worth sharing is linked into it: a login, a configuration, a cache
are the real ones. Directories in which helpers put their sockets and PID files belong to the conversation,
and files that describe a running process (sockets, pipes, process ids) are left out.

All is bounded: entries that are looked at, links, bytes that are copied, and time. Beyond that, directories
are linked as a whole.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import structlog

from supervisor.agents.homes.credential import tokens_in
from supervisor.agents.homes.data_dir import (
    DIRECTORY_MODE,
    FILE_MODE,
    make_directory,
    make_missing,
    write_private,
)
from supervisor.patience import PATH_SECONDS, KeyedLimiters, PathTimeout, in_time, read_regular

LINKS_MAX: Final = 4_000
"""Links in one home. The homes of people who work with many tools have some thousand small files in the
directories of their programs."""

LOOKS_MAX: Final = 20_000
"""Entries of the real home that are looked at: some 200 ms on a disk that answers."""

LARGE: Final = 256
"""Entries below a directory from which on it is linked as a whole: caches, tool chains, histories."""

DEPTH_ALWAYS: Final = 2
"""Down to this depth (`.config/NAME`) directories of any size belong to the conversation: helpers put their
files right there."""

WHOLE: Final = frozenset({".git"})
"""Directories that are useful only as a whole."""

PROCESS_SUFFIXES: Final = (".pid", ".sock", ".socket", ".port")
PROCESS_KEYS: Final = frozenset({"pid", "processid", "process_id"})
LOCK_SUFFIX: Final = ".lock"
"""Names and contents of files that describe a running process."""

PROCESS_BYTES: Final = 4096
"""Largest JSON file that is read to see whether it names a process; such files take some hundred bytes."""

LOCK_BYTES: Final = 128
"""Largest lock file: one is empty, or names its owner; a larger file is something else."""

LOGIN_BYTES: Final = 1 << 20
"""Bytes of a file that may hold a login."""

COPY_BYTES: Final = 64 << 20
COPY_FILES: Final = 4_000
"""Limits on what is copied into a home, in bytes and in files."""

COPY_SECONDS: Final = 20.0
"""Seconds for copying that much from a slow disk."""

WORKING: Final = KeyedLimiters(1)
"""Threads that work on one home at a time: an abandoned one may still be working."""

log = structlog.get_logger(__name__)


@attrs.frozen(kw_only=True)
class Furnishing:
    """Which parts of a real home a separate home has. Paths are relative to both.

    `private`: the directories in which the agent keeps its data, where they are known. Of these the new home
    has only what `links` and `copies` name, and everything else is linked. Where they are not known, every
    directory whose name begins with a dot is recreated, with links to its files.

    `links`: linked as they are, files or directories. `copies`: copied, once. `bare`: only `links` and
    `copies`.
    """

    private: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    bare: bool = False


@attrs.frozen
class Home:
    """A furnished home, the real one, and the names of the links from the first to the second."""

    path: Path
    real: Path | None = None
    links: tuple[str, ...] = attrs.field(default=(), repr=False)


async def copy_data(source: Path, target: Path, names: Sequence[str], leave: Collection[str] = ()) -> bool:
    """Replace `target` (0700) by copies of these files and directories of `source`, except `leave`.

    Names are relative to both; a missing one is skipped. Returns False if a file was too large, or could not
    be read.

    Raises OSError (PathTimeout is one). Cancellation waits for the copying to end, at most COPY_SECONDS.
    """
    work = partial(_copy_data, source, target, names, leave)
    limiter = WORKING.of(str(target))
    return await in_time(work, "to copy data", limiter=limiter, seconds=COPY_SECONDS, shield=True)


async def furnish_home(path: Path, real: Path | None, spec: Furnishing, *, avoid: Path) -> Home:
    """Make `path` (0700) a home, with the parts of `real` that `spec` names. Repeated at every start.

    `avoid`: a directory that is left out (the server's state).

    What does not answer in time is left out, except `path`. Raises OSError for a `path` that cannot be used.

    Cancellation waits for the writing to end, as long as its deadline allows. The caller owns the home.
    """
    what = "to make the agent's home"
    await in_time(partial(make_directory, path), what, limiter=WORKING.of(f"own {path}"), shield=True)
    links: tuple[str, ...] = ()
    if real is not None:
        seconds = COPY_SECONDS if spec.copies else PATH_SECONDS
        work = partial(_furnish, path, real, spec, avoid)
        try:
            links = await in_time(work, what, limiter=WORKING.of(str(path)), seconds=seconds, shield=True)
        except PathTimeout as error:
            message = "cannot link or copy from the real home; the agent starts without it"
            log.warning(message, home=str(path), error=str(error))
    return Home(path, real, links)


async def settle_home(home: Home) -> None:
    """After the agent's end, move logins that it replaced in its home to the real one. Raises PathTimeout."""
    if home.real is not None and home.links:
        work = partial(_settle_all, home.path, home.real, home.links)
        await in_time(work, "to look for renewed logins", limiter=WORKING.of(str(home.path)), shield=True)


def remove_tree(path: Path) -> None:
    """Remove a directory with everything in it. Blocks; follows no link; what cannot be removed stays.

    Read-only directories (some languages' caches have them) are made writable first.
    """
    if path.is_symlink():
        path.unlink(missing_ok=True)
        return
    shutil.rmtree(path, ignore_errors=True)
    if not path.exists():
        return
    with suppress(OSError):
        path.chmod(DIRECTORY_MODE)
    for directory, names, _ in os.walk(path):
        for name in names:
            below = Path(directory, name)
            with suppress(OSError):
                if not below.is_symlink():
                    below.chmod(DIRECTORY_MODE)
    shutil.rmtree(path, ignore_errors=True)


def _copy_data(source: Path, target: Path, names: Sequence[str], leave: Collection[str]) -> bool:
    remove_tree(target)  # left by an abandoned fork
    make_directory(target)
    complete = True
    for name in names:
        if (source / name).exists():
            make_missing((target / name).parent)
            left_out = frozenset(target / each for each in leave)
            complete &= _copy_tree(source / name, target / name, None, left_out)
    return complete


def _furnish(path: Path, real: Path, spec: Furnishing, avoid: Path) -> tuple[str, ...]:
    work = _Furnisher(path, Path(os.path.realpath(real)), Path(os.path.realpath(avoid)))
    for name in spec.copies:
        work.copy(name)
    for name in spec.links:
        work.link(name)
    if not spec.bare:
        work.mirror(spec)
    return tuple(work.made)


@attrs.define
class _Furnisher:
    """One furnishing, and what remains of its limits."""

    own: Path
    real: Path
    avoid: Path
    made: list[str] = attrs.field(factory=list)
    looks: int = attrs.field(factory=lambda: LOOKS_MAX)

    def copy(self, name: str) -> None:
        """Copy a file or a directory, unless the home has one of that name."""
        source, target = self.real / name, self.own / name
        with suppress(OSError):
            if not os.path.lexists(target) and source.exists() and not self._avoided(source):
                make_missing(target.parent)
                _copy_tree(source, target, self.avoid)

    def link(self, name: str) -> None:
        """Link a file or a directory. A file that the agent put there stays, except an older login."""
        target, own = self.real / name, self.own / name
        if len(self.made) >= LINKS_MAX or self._avoided(target):
            return
        with suppress(OSError):
            if own.is_symlink():
                if own.readlink() == target:
                    self.made.append(name)
                return
            if os.path.lexists(own):
                if not _settle(own, target):
                    return
                own.unlink()
            if os.path.lexists(target):
                make_missing(own.parent)
                own.symlink_to(target)
                self.made.append(name)

    def mirror(self, spec: Furnishing) -> None:
        """Link the rest level by level, so that what is near the top comes first."""
        private = frozenset(map(Path, spec.private))
        apart = private.union(map(Path, spec.copies), map(Path, spec.links))
        above = frozenset(parent for each in apart for parent in each.parents)
        below: deque[Path] = deque([Path()])
        while below:
            at = below.popleft()
            for entry in self._entries(at):
                name = at / entry.name
                if name in apart or self._avoided(self.real / name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    if name in above or (not private and self._is_recreated(name)):
                        with suppress(OSError):
                            make_directory(self.own / name)
                            below.append(name)
                    elif private or not entry.name.endswith(LOCK_SUFFIX):
                        self.link(str(name))
                elif entry.is_symlink() or (
                    entry.is_file(follow_symlinks=False) and not _tells_of_a_process(entry)
                ):
                    self.link(str(name))

    def _is_recreated(self, name: Path) -> bool:
        """Whether a directory is recreated in the home, since helpers may put their files in it."""
        if not name.parts[0].startswith(".") or name.name in WHOLE or name.name.endswith(LOCK_SUFFIX):
            return False
        own = self.own / name
        if os.path.lexists(own):
            return own.is_dir() and not own.is_symlink()
        if len(self.made) >= LINKS_MAX or self.looks <= 0:
            return False
        return len(name.parts) <= DEPTH_ALWAYS or self._is_small(self.real / name)

    def _is_small(self, directory: Path) -> bool:
        count = 0
        below = [directory]
        while below:
            for entry in _scan(below.pop()):
                count += 1
                self.looks -= 1
                if count > LARGE or self.looks <= 0:
                    return False
                if entry.is_dir(follow_symlinks=False):
                    below.append(Path(entry.path))
        return True

    def _entries(self, at: Path) -> Iterator[os.DirEntry[str]]:
        # If the home is the state directory itself, names without a dot belong to the server.
        hidden_only = at == Path() and self.real == self.avoid
        for entry in _scan(self.real / at):
            self.looks -= 1
            if not hidden_only or entry.name.startswith("."):
                yield entry

    def _avoided(self, target: Path) -> bool:
        return target.is_relative_to(self.avoid) and not self.real.is_relative_to(self.avoid)


def _scan(directory: Path) -> Sequence[os.DirEntry[str]]:
    """Return the first entries of a directory, sorted; none of one that cannot be read."""
    found: list[os.DirEntry[str]] = []
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            found.append(entry)
            if len(found) >= LINKS_MAX:
                break
    return sorted(found, key=lambda entry: entry.name)


def _tells_of_a_process(entry: os.DirEntry[str]) -> bool:
    """Whether a file describes a running process: its id, its port, its lock."""
    name = entry.name.lower()
    if name.endswith(PROCESS_SUFFIXES):
        return True
    with suppress(OSError):
        if name.endswith(LOCK_SUFFIX):
            return entry.stat(follow_symlinks=False).st_size <= LOCK_BYTES
        if name.endswith(".json") and entry.stat(follow_symlinks=False).st_size <= PROCESS_BYTES:
            return _names_a_process(Path(entry.path))
    return False


def _names_a_process(path: Path) -> bool:
    try:
        document = json.loads(read_regular(path, PROCESS_BYTES))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(document, dict) and not PROCESS_KEYS.isdisjoint(key.lower() for key in document)


def _settle_all(path: Path, real: Path, links: Sequence[str]) -> None:
    for name in links:
        with suppress(OSError):
            _settle(path / name, real / name)


def _settle(own: Path, target: Path) -> bool:
    """Copy a login that the agent put in the place of a link to the real home, if it is later. An agent that
    renews its login by a new file would otherwise leave the old one to all others. Return whether the real
    home has it now."""
    if not stat.S_ISREG(own.lstat().st_mode) or not target.is_file():
        return False
    mine, theirs = own.stat(), target.stat()
    content = _login(own)
    if content is None or _login(target) is None:
        return False
    if mine.st_mtime_ns > theirs.st_mtime_ns:
        real = Path(os.path.realpath(target))
        write_private(real, content)
        os.utime(real, ns=(mine.st_atime_ns, mine.st_mtime_ns))
    return True


def _login(path: Path) -> str | None:
    """Return the content of a file that holds a login, else None."""
    try:
        data = read_regular(path, LOGIN_BYTES + 1)
        text = data.decode()
    except (OSError, ValueError):
        return None
    return text if len(data) <= LOGIN_BYTES and tokens_in(text) else None


def _copy_tree(source: Path, target: Path, avoid: Path | None, leave: Collection[Path] = ()) -> bool:
    """Copy files, directories and links within the limits, except other kinds and the places in `leave`.
    `avoid` None: links stay as they are, relative ones included. Return whether all files were copied."""
    complete = True
    left, files = COPY_BYTES, COPY_FILES
    below: deque[tuple[Path, Path]] = deque([(Path(os.path.realpath(source)), target)])
    while below and files > 0:
        here, there = below.popleft()
        files -= 1
        if there in leave:
            continue
        try:
            status = here.lstat()
            if stat.S_ISLNK(status.st_mode):
                there.symlink_to(here.readlink() if avoid is None else here)
            elif stat.S_ISDIR(status.st_mode) and here != avoid:
                make_directory(there)
                below.extend((Path(entry.path), there / entry.name) for entry in _scan(here))
            elif stat.S_ISREG(status.st_mode):
                if status.st_size > left:
                    complete = False
                    continue
                left -= status.st_size
                there.write_bytes(read_regular(here, status.st_size))
                there.chmod(stat.S_IMODE(status.st_mode) & 0o100 | FILE_MODE)
                os.utime(there, ns=(status.st_atime_ns, status.st_mtime_ns))
        except OSError:
            complete = False
    return complete and not below
