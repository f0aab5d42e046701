"""A file before and after: in a working tree against a base, or in one commit."""

from __future__ import annotations

import os
import stat
from functools import partial
from pathlib import Path

import attrs

from supervisor.workspace.access import Admitted
from supervisor.workspace.files import open_file
from supervisor.workspace.git.base import base_of
from supervisor.workspace.git.changes import with_parent
from supervisor.workspace.git.command import Git, GitProblem, Session, visit
from supervisor.workspace.git.repository import NotARepository, is_directory

MAX_FILE_BYTES = 1024 * 1024
"""Largest file that is shown; the wire's limit."""


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
