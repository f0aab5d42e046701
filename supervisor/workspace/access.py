"""Which paths clients may use: everything, the workspaces, or nothing. One function for all rooms: `admit`.

Paths are resolved first, so that links work, and compared with the workspaces. Files are then opened step by
step from the workspace on, without following links, so that a link created meanwhile has no effect. A
workspace itself is resolved once, when it is first seen (pins.py): replacing it with a link does not move its
root, not even after a restart of the server.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Awaitable, Callable, Iterable, Set
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import attrs

from supervisor.acp.files import is_proc
from supervisor.patience import KeyedLimiters, in_time
from supervisor.workspace.pins import Pins

T = TypeVar("T")

VARIABLE: Final = "OSTLER_WORKSPACE_ACCESS"

MAX_PATH_BYTES: Final = 4096
"""Linux's limit of a path (PATH_MAX), in bytes."""

MAX_ROOTS: Final = 10_000
"""Most workspaces that a path is compared with: each is resolved once, which takes tens of microseconds."""

THREADS: Final = 8
"""The most threads that resolve and open paths of clients at a time."""

_STEP: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A named pipe must not block the opening, a lease is an error at once, and no terminal becomes the server's.
_FILE: Final = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY

_LIMITERS: Final = KeyedLimiters(THREADS)


NO_PROC: Final = "Files below /proc are not served: they tell of the server."


class Access(enum.StrEnum):
    """What clients may use besides the conversations."""

    ALL = "all"
    """Every path and every command, with the rights of the server's user."""

    WORKSPACES = "workspaces"
    """Files and git in the working directories of conversations and in registered workspaces; no commands."""

    OFF = "off"
    """Nothing: no file, no git, no command."""


def parse(text: str) -> Access:
    """The value of the variable. Raises ValueError."""
    try:
        return Access(text)
    except ValueError:
        raise ValueError(f"{text!r} is not one of {', '.join(Access)}") from None


class AccessRefused(Exception):
    """The operator has not allowed it. The message says what to change."""


Location = tuple[str | int, ...]
"""Where in a request the path is: the parts of a `loc`."""


class BadPath(ValueError):
    """A text that is not a valid path. The message says why."""

    def __init__(self, message: str, loc: Location) -> None:
        super().__init__(message)
        self.loc = loc


class OutsideWorkspace(BadPath):
    """A path below a conversation's routes that is not in the conversation's workspace."""


@attrs.frozen
class Admitted:
    """A path that may be used, resolved. Its methods block: for `in_thread`, or another worker thread.

    `root`: the resolved directory that it must not leave; None where everything may be used.
    """

    path: Path
    root: Path | None

    def open(self, flags: int, mode: int = 0o666) -> int:
        """Open it, and return the descriptor for the caller to own. No link is followed below the root.

        Raises OSError: BlockingIOError where another process holds a lease. Raises AccessRefused for files in
        which the kernel describes processes (/proc).
        """
        if not self.path.name:
            return self.open_directory()
        above = self.open_parent()
        try:
            descriptor = os.open(self.path.name, flags | _FILE, mode, dir_fd=above)
        finally:
            os.close(above)
        if is_proc(descriptor):
            os.close(descriptor)
            raise AccessRefused(NO_PROC)
        return descriptor

    def open_parent(self) -> int:
        """The descriptor (O_PATH) of the directory that it is in, for use with `dir_fd` and `path.name`.

        Raises OSError. The caller owns the descriptor.
        """
        if self.path == self.root:
            # The root's parent is out of the client's reach: the root cannot be made, removed or replaced.
            raise PermissionError(1, "The workspace itself cannot be changed", str(self.path))
        return walk(self.path.parent)

    def open_directory(self) -> int:
        """The descriptor (O_PATH) of the directory that it is. Raises OSError. The caller owns it."""
        return walk(self.path)


def walk(path: Path, *, make: bool = False) -> int:
    """Walk down from `/` without following links, and return the last descriptor (O_PATH).

    `make`: make the directories that are missing. Raises OSError. The caller owns the descriptor.
    """
    here = os.open("/", _STEP)
    try:
        for step in path.parts[1:]:
            try:
                below = os.open(step, _STEP, dir_fd=here)
            except FileNotFoundError:
                if not make:
                    raise
                with suppress(FileExistsError):  # another process made it meanwhile
                    os.mkdir(step, dir_fd=here)
                below = os.open(step, _STEP, dir_fd=here)
            os.close(here)
            here = below
    except BaseException:
        os.close(here)
        raise
    return here


Directories = Callable[[], Awaitable[Iterable[str]]]
"""Returns the working directories of the known conversations, and the registered workspaces."""


async def _none() -> Iterable[str]:
    return ()


class PathAccess:
    """Decides which paths may be used, as the operator has set it."""

    def __init__(
        self, access: Access = Access.ALL, directories: Directories = _none, pins: Pins | None = None
    ) -> None:
        self.access = access
        self._directories = directories
        self._pins = Pins() if pins is None else pins
        """What each workspace was resolved to when it was first seen."""

    def require(self) -> None:
        """Raise AccessRefused where files and git are switched off."""
        if self.access is Access.OFF:
            raise AccessRefused(
                f"Workspace routes are switched off on this server. Set {VARIABLE} to all or workspaces."
            )

    def require_commands(self) -> None:
        """Raise AccessRefused where commands are switched off."""
        self.require()
        if self.access is Access.WORKSPACES:
            raise AccessRefused(
                "Commands are switched off on this server, since they could reach beyond the workspaces. "
                f"Set {VARIABLE} to all."
            )

    async def admit(
        self, path: str, *, within: str | None = None, loc: Location = ("query", "path")
    ) -> Admitted:
        """May this path be used? Returns it resolved; it need not exist.

        `within`: the working directory of the conversation that the request is about; the path must be in it.

        `loc`: where in the request it is, for messages.

        Raises AccessRefused, OutsideWorkspace, BadPath, and PathTimeout (patience.py) where the file system
        does not answer.

        Cancellation abandons a thread that ends by itself.
        """
        self.require()
        _check(path, loc)
        name = loc[-1]
        roots = [] if within is None else [within]
        confined = self.access is Access.WORKSPACES
        known = []
        if confined:
            await self._pins.open()
            known = list(await self._directories())[:MAX_ROOTS]
        # Requests overlap, so this one works on a snapshot.
        seen = self._pins.snapshot() if confined else {}
        wanted = {*roots, *known}
        fresh = list(wanted.difference(seen))
        resolve = partial(_resolve, path, fresh, loc)
        found, resolved = await self.in_thread(resolve, "to resolve a path")
        targets = {**seen, **resolved}
        root: Path | None = None
        if confined:
            # The first resolution wins. Pins of deleted conversations are dropped.
            gone = list(seen.keys() - wanted)
            targets |= await self._pins.keep(resolved, gone)
            root = _innermost(found, set(map(targets.__getitem__, known)))
            if root is None:
                raise AccessRefused(
                    f"{name} is outside of the workspaces, and this server serves nothing else. "
                    f"Use a path in a conversation's working directory, or set {VARIABLE} to all."
                )
        if within is not None:
            own = Path(targets[within])
            if not found.is_relative_to(own):
                raise OutsideWorkspace(f"{name} must be inside the conversation workspace", loc)
            root = own if root is None or own.is_relative_to(root) else root
        return Admitted(found, root)

    async def in_thread(
        self, work: Callable[[], T], what: str, *, wasted: Callable[[T], object] = lambda result: None
    ) -> T:
        """Run work on paths in a thread that can be abandoned. Raises PathTimeout (patience.py)."""
        return await in_time(work, what, limiter=_LIMITERS.of("workspaces"), wasted=wasted)


def _check(path: str, loc: Location) -> None:
    name = loc[-1]
    if "\0" in path:
        raise BadPath(f"{name} must not contain a NUL character", loc)
    try:
        length = len(os.fsencode(path))
    except UnicodeEncodeError:
        raise BadPath(f"{name} is not valid Unicode", loc) from None
    if length > MAX_PATH_BYTES:
        raise BadPath(f"{name} is longer than {MAX_PATH_BYTES} bytes", loc)
    if not path.startswith("/"):
        raise BadPath(f"{name} must be absolute", loc)


def _resolve(path: str, roots: Iterable[str], loc: Location) -> tuple[Path, dict[str, str]]:
    """Blocks as long as the file system does."""
    try:
        return Path(os.path.realpath(path)), {root: os.path.realpath(root) for root in roots}
    except (OSError, RecursionError):
        raise BadPath("The path has too many links, or they change all the time", loc) from None


def _innermost(path: Path, roots: Set[str]) -> Path | None:
    """The innermost of the roots that contains the path. The time depends on the path's depth, not on the
    number of roots."""
    return next((each for each in (path, *path.parents) if str(each) in roots), None)
