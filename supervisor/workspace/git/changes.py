"""Which files changed, and how: in a working tree, in nested repositories, in a commit. The last commits."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import attrs

from supervisor.workspace.access import Admitted
from supervisor.workspace.files import open_file
from supervisor.workspace.git.base import base_of
from supervisor.workspace.git.command import Git, GitProblem, Session, commit_id, visit
from supervisor.workspace.git.repository import GIT, NotARepository, is_directory
from supervisor.workspace.problems import WorkspaceProblem

ADDED, DELETED, UPDATED = "ADDED", "DELETED", "UPDATED"

STATUSES: Final = {"A": ADDED, "C": ADDED, "D": DELETED, "M": UPDATED, "T": UPDATED, "U": UPDATED}
"""By git's letter. A rename is a deletion and an addition."""

MAX_FILE_BYTES = 1024 * 1024
"""Largest file that is shown; the wire's limit."""

MAX_NESTED: Final = 16
"""Repositories directly below a directory that are looked at."""

MAX_LOOKED_AT: Final = 10_000
"""Entries of a directory among which repositories are looked for."""

COMPARE: Final = (
    "diff", "--name-status", "-z", "--no-renames", "--no-ext-diff", "--no-textconv",
    "--ignore-submodules=dirty",
)  # fmt: skip
"""Submodules count by their commit: to see their files git would run a command in each."""


_FIELDS = "%H%x1f%h%x1f%aI%x1f%an%x1f%s"

SUBJECT_CHARACTERS = 1000
"""Longest subject or author that is shown."""


@attrs.frozen
class Change:
    """A file that changed. Names that are not UTF-8 have replacement characters."""

    status: str
    path: str


async def changes(git: Git, place: Admitted, ref: str | None = None) -> list[Change]:
    """What changed below a directory, with paths relative to it, sorted by them.

    Repositories directly below it count with their own changes.

    Raises NotARepository where there is none at all, and GitProblem, also for a ref that names no commit,
    and when all of them together take too long.
    """
    with git.limited():
        nested = await visit(place.path, partial(_nested, place.path), "to look for repositories")
        found: dict[str, Change] = {}
        try:
            for change in await _changes_at(git, place, ref):
                if change.path.split("/", 1)[0] not in nested:
                    found[change.path] = change
        except NotARepository:
            if not nested:
                raise
        for name in nested:
            # A damaged repository must not hide the others.
            with suppress(NotARepository, WorkspaceProblem):
                for change in await _changes_at(git, attrs.evolve(place, path=place.path / name), ref):
                    found[f"{name}/{change.path}"] = Change(change.status, f"{name}/{change.path}")
    return sorted(found.values(), key=lambda change: change.path)


def _nested(path: Path) -> list[str]:
    """Names of the directories in a directory that are the top of a repository."""
    found: list[str] = []
    with suppress(OSError):
        for number, entry in enumerate(path.iterdir()):
            if number >= MAX_LOOKED_AT or len(found) >= MAX_NESTED:
                break
            with suppress(OSError):
                if stat.S_ISDIR(entry.lstat().st_mode) and (entry / GIT).exists():
                    found.append(entry.name)
    return found


async def _changes_at(git: Git, place: Admitted, ref: str | None) -> list[Change]:
    async with git.opened(place) as session:
        base = await base_of(session, ref)
        if base is None:
            raise GitProblem(f"Git ref not found: {ref}")
        tracked = await session.output(*COMPARE, "--relative", base, "--")
        # Untracked, and not ignored.
        more = await session.output("ls-files", "--others", "--exclude-standard", "-z", "--")
        return [*_statuses(tracked), *(Change(ADDED, name) for name in _names(more))]


async def commit_changes(session: Session, sha: str) -> list[Change]:
    """What a commit changed against its first parent, with paths from the top of the repository.

    Raises GitProblem, also for an unknown commit.
    """
    commit, before = await with_parent(session, sha)
    return list(_statuses(await session.output(*COMPARE, before, commit, "--")))


async def with_parent(session: Session, sha: str) -> tuple[str, str]:
    """The ids of a commit and of its first parent, or of the tree without files. Raises GitProblem."""
    commit = await session.commit(sha)
    if commit is None:
        raise GitProblem(f"Commit not found: {sha}")
    before = commit_id(await session.attempt("rev-parse", "--verify", "--quiet", f"{commit}^1"))
    return commit, before or session.repository.empty_tree


def _statuses(output: bytes) -> Iterator[Change]:
    """Pairs of a letter and a path, each ended by a NUL."""
    fields = iter(_names(output))
    for letter, path in zip(fields, fields, strict=False):
        yield Change(STATUSES.get(letter[:1], UPDATED), path)


def _names(output: bytes) -> list[str]:
    return [name.decode("utf-8", "replace") for name in output.split(b"\0") if name]


@attrs.frozen
class Commit:
    """A commit. `timestamp` is the author's, with its zone."""

    sha: str
    short_sha: str
    subject: str
    author: str
    timestamp: str


async def commits(session: Session, limit: int) -> tuple[list[Commit], bool]:
    """The newest commits that HEAD has, and whether there are more. Raises GitProblem."""
    head = commit_id(await session.attempt("rev-parse", "--verify", "--quiet", "HEAD"))
    if head is None:
        return [], False
    shown = ("--no-show-signature", "--no-color", "--encoding=UTF-8", f"--format={_FIELDS}")
    output = await session.output("log", "-z", *shown, "-n", str(limit + 1), head, "--")
    found = []
    for record in output.decode("utf-8", "replace").split("\0"):
        fields = record.split("\x1f", 4)
        if len(fields) == 5:
            sha, short, timestamp, author, subject = fields
            cut = slice(SUBJECT_CHARACTERS)
            found.append(Commit(sha, short, subject[cut], author[cut], timestamp))
    return found[:limit], len(found) > limit


@attrs.frozen
class Diff:
    """The texts of both sides, None where there is no repository. Line ends are `\\n`, none at the end."""

    modified: str | None
    original: str | None


async def file_diff(git: Git, above: Admitted, name: str, *, ref: str | None, commit: str | None) -> Diff:
    """The two sides of the file `name` in the directory `above`.

    With a commit, both sides come from it, and the file need not exist. Otherwise the modified side is the
    present file: empty for a deleted one, and the target for a link.

    Raises GitProblem.
    """
    modified = (
        None
        if commit is not None
        else await visit(above.path, partial(_content, above, name), "to read a file")
    )
    shown = above.path / name
    directory = await visit(above.path, partial(_nearest, above.path), "to look for a directory")
    try:
        async with git.opened(attrs.evolve(above, path=directory)) as session:
            path = shown.relative_to(session.repository.root).as_posix()
            if commit is not None:
                after, before = await with_parent(session, commit)
                return Diff(
                    _text(await _blob(session, after, path)), _text(await _blob(session, before, path))
                )
            base = await base_of(session, ref)
            if base is None:
                raise GitProblem(f"Git ref not found: {ref}")
            original = await _blob(session, base, path)
    except NotARepository:
        if modified is None and commit is None:
            raise _missing(shown) from None
        return Diff(None, None)
    if modified is None and original is None:
        raise _missing(shown)
    return Diff(_text(modified), _text(original))


def _missing(path: Path) -> GitProblem:
    return GitProblem(f"File does not exist: {path}")


def _nearest(path: Path) -> Path:
    """The directory itself, or its nearest existing parent."""
    return next((each for each in (path, *path.parents) if is_directory(each)), path)


def _content(above: Admitted, name: str) -> bytes | None:
    """A file as git sees it; None if there is none."""
    try:
        directory = above.open_directory()
    except OSError:
        return None
    try:
        mode = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
        if stat.S_ISLNK(mode):
            return os.fsencode(os.readlink(name, dir_fd=directory))
    except OSError:
        return None
    finally:
        os.close(directory)
    with_name = attrs.evolve(above, path=above.path / name)
    file = open_file(with_name)
    try:
        if file.size > MAX_FILE_BYTES:
            raise _too_large(file.size)
        return b"".join(iter(file.read, b""))
    finally:
        file.close()


async def _blob(session: Session, commit: str, path: str) -> bytes | None:
    """A file at a commit; None if there is none."""
    spec = f"{commit}:{path}"
    size = await session.attempt("cat-file", "-s", spec)
    if size is None:
        return None
    if int(size) > MAX_FILE_BYTES:
        raise _too_large(int(size))
    return await session.attempt("cat-file", "blob", spec, most=MAX_FILE_BYTES)


def _too_large(size: int) -> GitProblem:
    return GitProblem(f"File too large for git diff: {size} bytes (max: {MAX_FILE_BYTES} bytes)")


def _text(content: bytes | None) -> str:
    return "\n".join((content or b"").decode("utf-8", "replace").splitlines())
