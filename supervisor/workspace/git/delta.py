"""What a working tree adds to a commit, as one patch: tracked, new and deleted files."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final

import attrs
import trio

from supervisor.agents.endings import ExitStatus
from supervisor.agents.process import AgentProcess
from supervisor.agents.spawning.confinement import MB
from supervisor.patience import PathTimeout
from supervisor.workspace.access import Admitted
from supervisor.workspace.exclusion import pathspecs
from supervisor.workspace.files import OpenFile
from supervisor.workspace.git.base import HEAD, base_of
from supervisor.workspace.git.command import (
    Git,
    GitProblem,
    GitTooLarge,
    Session,
    commit_id,
    complaint,
    visit,
)
from supervisor.workspace.git.repository import Confines, git_directory
from supervisor.workspace.problems import Denied, NoRoom, WorkspaceProblem

DELTA_SECONDS: Final = 300.0
"""Seconds for one patch; the wire's limit of each of its steps."""

SUBMODULE: Final = b"160000 "
"""The mode that a submodule has in an index."""

MAX_DELTA_BYTES: Final = 256 * MB
"""Largest patch. It is written to disk before it is sent, and stays there until it has been sent."""

MAX_STORED_BYTES: Final = 256 * MB
"""Bytes that git may store for one patch, on the journal's disk: each changed file, compressed."""

KEPT_FREE_BYTES: Final = 512 * MB
"""Bytes that a patch must leave free on that disk, for the journal and for agents."""

LOOK_SECONDS: Final = 0.25
"""Seconds between two checks of what git has stored: some 50 MB more each. Longer if a check takes longer."""

SEARCH_DEPTH: Final = 3
"""Directories below a workspace in which its only repository is looked for."""

MAX_SEARCHED: Final = 2000
"""Most directories examined in that search."""

_SKIPPED: Final = frozenset({"node_modules", "venv", "site-packages", "vendor"})


@attrs.frozen
class Identity:
    """What an archive was made from, as reported to its client."""

    root: Path
    origin: str | None = None
    branch: str | None = None
    head: str | None = None


def only_repository(path: Path, confines: Confines) -> Path:
    """The path itself if it is the top of a repository, else the only repository a few levels below it.

    Blocking. Hidden directories and those of dependencies are skipped, and repositories that the client may
    not read. The path itself if there are several, or none.
    """
    if _is_top(path, confines):
        return path
    found: list[Path] = []
    waiting, looked_at = [(path, 0)], 0
    while waiting and looked_at < MAX_SEARCHED:
        here, depth = waiting.pop()
        looked_at += 1
        try:
            with os.scandir(here) as entries:
                names = [each.name for each in entries if each.is_dir(follow_symlinks=False)]
        except OSError:
            continue
        for name in names:
            if name.startswith(".") or name in _SKIPPED:
                continue
            if _is_top(here / name, confines):
                found.append(here / name)
                if len(found) > 1:
                    return path
            elif depth + 1 < SEARCH_DEPTH:
                waiting.append((here / name, depth + 1))
    return found[0] if len(found) == 1 else path


def _is_top(path: Path, confines: Confines) -> bool:
    with suppress(Denied):
        return git_directory(path, confines) is not None
    return False


async def identity(session: Session) -> Identity:
    """The repository's remote, branch and HEAD."""
    head = commit_id(await session.attempt("rev-parse", "--verify", "--quiet", HEAD))
    current = await session.attempt("symbolic-ref", "--quiet", "--short", HEAD)
    branch = None if current is None else current.decode("utf-8", "replace").strip()
    return Identity(session.repository.root, session.repository.origin, branch or "DETACHED", head)


async def delta(
    git: Git, place: Admitted, base_ref: str | None, excludes: Sequence[str]
) -> tuple[OpenFile, str | None, Identity]:
    """The patch as a file without a name, the commit that it is against, and what it is of.

    The repository's index and objects stay as they are. Raises NotARepository, GitProblem.

    The caller closes the file.
    """
    async with git.opened(place, DELTA_SECONDS) as session:
        what = await identity(session)
        if base_ref is None and what.branch == "DETACHED":
            base_ref = HEAD
        base = await base_of(session, base_ref)
        if base is None:
            raise GitProblem(f"base_ref {base_ref!r} could not be resolved")
        own = {
            "GIT_INDEX_FILE": str(session.stand_in / "index"),
            "GIT_OBJECT_DIRECTORY": str(session.stand_in / "objects"),
        }
        apart = attrs.evolve(session, env={**session.env, **own})
        paths = ("--", ".", *pathspecs(excludes))
        async with _bounded(session):
            file = await _patch(apart, base, paths)
        return file, None if base == session.repository.empty_tree else base, what


async def _patch(apart: Session, base: str, paths: Sequence[str]) -> OpenFile:
    await apart.output("read-tree", base)
    # `git add` would run git in each submodule, with what that one's configuration names.
    staged = await apart.output("ls-files", "--stage", "-z", "--", ".")
    links = [
        b":(exclude,literal)" + entry.split(b"\t", 1)[1]
        for entry in staged.split(b"\0")
        if entry.startswith(SUBMODULE)
    ]
    await apart.output("add", "--all", *paths, *map(os.fsdecode, links))
    return await _to_disk(
        apart, ("diff", "--binary", "--cached", "--no-ext-diff", "--no-textconv", base, *paths)
    )


@asynccontextmanager
async def _bounded(session: Session) -> AsyncIterator[None]:
    """Check the disk space that the stand-in takes, and the space left, while the block runs.

    Cancels the block and raises GitTooLarge if it takes too much, or NoRoom if too little is left.
    """
    failure: BaseException | None = None

    async def look() -> float:
        began = trio.current_time()
        check = partial(_check_room, session.stand_in)
        await visit(session.repository.root, check, "to look at the room on the disk")
        return trio.current_time() - began

    took = await look()
    async with trio.open_nursery() as nursery:

        async def watch() -> None:
            nonlocal failure, took
            try:
                while True:
                    # With many files a check takes long: spend at most half of the time on checks.
                    await trio.sleep(max(LOOK_SECONDS, took))
                    took = await look()
            except (WorkspaceProblem, PathTimeout) as error:
                failure = error
                nursery.cancel_scope.cancel()

        nursery.start_soon(watch)
        try:
            yield
        except BaseException as error:  # noqa: BLE001 - raised again below, outside of the nursery's group
            failure = failure or error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _check_room(directory: Path) -> None:
    taken = 0
    for place, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                taken += os.lstat(os.path.join(place, name)).st_blocks * 512  # noqa: PTH118 - many
        if taken > MAX_STORED_BYTES:
            raise GitTooLarge(
                f"The files that changed take more than {MAX_STORED_BYTES // MB} MB. Exclude large ones "
                "(exclude=PATTERN), or add them to .gitignore."
            )
    if shutil.disk_usage(directory).free < KEPT_FREE_BYTES:
        raise NoRoom(
            f"There is no room on the disk: less than {KEPT_FREE_BYTES // MB} MB are free, which are kept "
            "for conversations. Make room there, or exclude large files (exclude=PATTERN)."
        )


async def _to_disk(session: Session, arguments: tuple[str, ...]) -> OpenFile:
    # On the same disk as git's files, whose free space is checked.
    where = session.repository.root
    descriptor = await visit(where, partial(_unnamed, session.stand_in), "to make a file", os.close)
    file = OpenFile(descriptor, 0)
    try:
        async with session.running(*arguments) as process:
            while piece := await process.stdout.receive_some():
                file.size += len(piece)
                _check_size(file.size)
                await visit(where, partial(file.write, bytes(piece)), "to write a file")
            status = await process.wait()
        session.require_enough(status, process)
        _check(status, process)
        file.skip(0, file.size)
    except BaseException:
        file.close()
        raise
    return file


def _check_size(size: int) -> None:
    if size > MAX_DELTA_BYTES:
        raise GitTooLarge(
            f"The patch is larger than {MAX_DELTA_BYTES // MB} MB. Exclude large files (exclude=PATTERN)."
        )


def _check(status: ExitStatus, process: AgentProcess) -> None:
    if status.code != 0:
        raise GitProblem(f"Failed to generate git delta: {complaint(process)}")


def _unnamed(directory: Path) -> int:
    with tempfile.TemporaryFile(dir=directory) as file:
        return os.dup(file.fileno())
