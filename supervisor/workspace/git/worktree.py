"""A git worktree for a conversation that works isolated from its parent.

Like the git routes, it ignores the repository's configuration, so that none of its filters, hooks and
transports runs. Files that a filter would generate (Git LFS) stay as committed.
"""

from __future__ import annotations

import os
import shutil
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import structlog

from supervisor.agents.spawning.confinement import MB
from supervisor.patience import PathTimeout, read_regular
from supervisor.workspace.access import Admitted, walk
from supervisor.workspace.git.base import HEAD
from supervisor.workspace.git.command import Git, GitProblem, GitTooLarge, Session, removed, visit
from supervisor.workspace.git.delta import KEPT_FREE_BYTES
from supervisor.workspace.git.repository import NotARepository
from supervisor.workspace.problems import NoRoom, WorkspaceProblem

log = structlog.get_logger(__name__)

WORKTREES_DIR: Final = "worktrees"
"""Directory name, in the state directory and in a repository's `.git`; it has a directory for each
worktree."""

BRANCH: Final = "refs/heads/openhands/"
"""Prefix of the branch, as other servers of this wire have it."""

SECONDS: Final = 120.0
"""Seconds for one worktree: a checkout of some hundred thousand files takes a quarter of it."""

MAX_FILES: Final = 500_000
MAX_BYTES: Final = 16 * 1024 * MB
"""Limits of a worktree. A few objects can describe any number of files."""

BLOCK: Final = 4096
"""Least bytes that a file takes on disk."""

MAX_ENTRY_BYTES: Final = 64 * 1024
"""Longest entry of git's listing for one file: a path that Linux can open has 4 KiB."""

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_STEP: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


async def make_worktree(git: Git, place: Admitted, root: Path, name: str) -> Path | None:
    """Make a worktree of the repository that holds `place`, on a new branch, and return the directory in it
    that corresponds to `place`.

    It is below `root`; `name` is new there and among the repository's branches.

    Returns None if it cannot be made: without git, a repository, a commit or room, or on an error; all but a
    missing repository or commit are logged.

    Cancellation ends git, and removes a partial worktree.
    """
    try:
        async with git.opened(place, SECONDS) as session:
            real = partial(os.path.realpath, root.parent)
            state = await visit(session.repository.root, real, "to look for a directory")
            return await _make(session, place.path, Path(state, root.name, name), name)
    except NotARepository:
        return None
    except (WorkspaceProblem, PathTimeout, OSError) as error:
        log.warning("cannot make a worktree", conversation_id=name, reason=str(error))
        return None


async def drop_worktree(git: Git, place: Admitted, root: Path, name: str) -> None:
    """Remove an unused worktree that `make_worktree` has just made, and its branch.

    Failures are logged. Cancellation waits for a removal that has begun.
    """
    try:
        async with git.opened(place, SECONDS) as session:
            repository, branch = session.repository, f"{BRANCH}{name}"
            head = await session.commit(branch)
            admin, ref = repository.common / WORKTREES_DIR / name, repository.common / branch
            await removed(repository.root, partial(_remove, root / name, admin, ref, head or ""))
    except (NotARepository, WorkspaceProblem, PathTimeout, OSError) as error:
        log.warning("cannot remove a worktree", conversation_id=name, reason=str(error))


async def _make(session: Session, workspace: Path, own: Path, name: str) -> Path | None:
    repository = session.repository
    head = await session.commit(HEAD)
    if head is None:
        return None
    await _require_room(session, head, own.parent)
    top, admin = own / (repository.root.name or "repository"), repository.common / WORKTREES_DIR / name
    branch = f"{BRANCH}{name}"
    reach = session.confinement.reach
    if reach is not None:
        refs = (repository.common / each for each in ("refs", "reftable"))
        reach = attrs.evolve(reach, writes=(*reach.writes, top, admin, *refs))
    may_write = attrs.evolve(session.confinement, file_bytes=MAX_BYTES, reach=reach)
    writing = attrs.evolve(session, confinement=may_write)
    env = {**session.env, "GIT_WORK_TREE": str(top), "GIT_INDEX_FILE": str(admin / "index")}
    try:
        await visit(repository.root, partial(_prepare, repository.common, top, name), "to make a worktree")
        await attrs.evolve(writing, directory=top, env=env).output("read-tree", "--reset", "-u", head)
        found = await visit(
            repository.root, partial(_same, repository.root, workspace, top), "to look at a worktree"
        )
        # Last, so that an earlier failure leaves no branch, however the repository stores refs.
        await writing.output("-c", "core.logAllRefUpdates=false", "update-ref", branch, head, "")
    except BaseException:
        await removed(repository.root, partial(_remove, own, admin, repository.common / branch, head))
        raise
    return found


async def _require_room(session: Session, head: str, root: Path) -> None:
    """Raise GitTooLarge or NoRoom if a commit's files exceed the limits or the free space."""
    files = taken = 0
    rest = b""
    async with session.running("ls-tree", "-r", "-l", "-z", head) as process:
        while piece := await process.stdout.receive_some():
            *entries, rest = (rest + bytes(piece)).split(b"\0")
            if len(rest) > MAX_ENTRY_BYTES:
                raise GitTooLarge("The commit has a path that is too long for a file.")
            for entry in entries:
                size = entry.split(b"\t", 1)[0].rsplit(b" ", 1)[-1]  # "-" for a submodule
                taken += -(-int(size) // BLOCK) * BLOCK if size.isdigit() else BLOCK
            files += len(entries)
            if files > MAX_FILES or taken > MAX_BYTES:
                raise GitTooLarge(
                    f"The commit has more than {MAX_FILES} files, or {MAX_BYTES // MB} MB, which is the "
                    "limit of a worktree. Share the workspace (isolation=shared)."
                )
        status = await process.wait()
    session.require_enough(status, process)
    if status.code != 0:
        raise GitProblem("Git cannot list the files of the commit.")
    free = await visit(
        session.repository.root,
        lambda: shutil.disk_usage(root.parent).free,
        "to look at the room on the disk",
    )
    if taken + KEPT_FREE_BYTES > free:
        raise NoRoom(
            f"There is no room on the disk: a worktree of {taken // MB} MB leaves less than "
            f"{KEPT_FREE_BYTES // MB} MB. Make room, or share the workspace (isolation=shared)."
        )


def _prepare(common: Path, top: Path, name: str) -> None:
    """Make the directory, and its entry in the repository (gitrepository-layout(5)). Raises OSError."""
    with ExitStack() as stack:

        def opened(path: str | Path, above: int | None = None) -> int:
            descriptor = os.open(path, _STEP, dir_fd=above)
            stack.callback(os.close, descriptor)
            return descriptor

        # A link that has been put there leads nowhere, wherever in the path it is.
        repository = walk(common)
        stack.callback(os.close, repository)
        with suppress(FileExistsError):
            os.mkdir(WORKTREES_DIR, dir_fd=repository)
        all_of_them = opened(WORKTREES_DIR, repository)
        os.mkdir(name, dir_fd=all_of_them)
        admin = opened(name, all_of_them)
        top.mkdir(mode=0o700, parents=True)
        for directory, file, text in (
            (admin, "HEAD", f"ref: {BRANCH}{name}"),
            (admin, "commondir", "../.."),
            (admin, "gitdir", f"{top}/.git"),
            (opened(top), ".git", f"gitdir: {common}/{WORKTREES_DIR}/{name}"),
        ):
            descriptor = os.open(file, _NEW, 0o666, dir_fd=directory)
            with os.fdopen(descriptor, "wb") as written:
                written.write(os.fsencode(f"{text}\n"))


def _same(root: Path, workspace: Path, top: Path) -> Path:
    """The worktree's directory that corresponds to the workspace; the worktree's top if there is no such
    directory, or a link in its place."""
    found = top / workspace.relative_to(root)
    return found if found.is_dir() and Path(os.path.realpath(found)) == found else top


def _remove(own: Path, admin: Path, ref: Path, head: str) -> None:
    """Remove all of it, the largest part last. The branch is removed as a file, as git creates a new one: git
    itself would also write `packed-refs`, which it is not permitted to."""
    with suppress(OSError):
        if read_regular(ref, len(head)) == head.encode():
            ref.unlink()
    with suppress(OSError):
        ref.with_name(f"{ref.name}.lock").unlink()  # of a git that was ended
    for place in (admin, own):
        shutil.rmtree(place, ignore_errors=True)
