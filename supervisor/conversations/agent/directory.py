"""The directory of a conversation's workspace, where there is none yet."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

EMPTY_REPOSITORY: Final[Mapping[str, str]] = {
    "HEAD": "ref: refs/heads/main\n",
    "config": "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n",
}
"""What makes a directory a repository for git, beside directories for objects and refs. Written here, since
`git init` runs what the user's templates say, and may be missing."""


def make_directory(path: Path) -> None:
    """Make a workspace that does not exist yet, as an empty repository: clients show changes of those alone.

    A directory that exists stays as it is, and one within a repository belongs to that. Blocking.

    Raises OSError where the directory cannot be made, and FileExistsError where it is a file.
    """
    if path.is_dir():
        return
    path.mkdir(parents=True, exist_ok=True)
    directory = path / ".git"
    with suppress(OSError):  # it is a workspace all the same
        if any(_is_repository(parent / ".git") for parent in path.resolve().parents):
            return
        directory.mkdir()
        for name in ("objects/info", "objects/pack", "refs/heads", "refs/tags"):
            (directory / name).mkdir(parents=True)
        for name, content in EMPTY_REPOSITORY.items():
            (directory / name).write_text(content)


def _is_repository(git: Path) -> bool:
    """Whether git takes it for one. An empty directory of that name, as it may lie in `/tmp`, is none."""
    return git.is_file() or (git / "HEAD").is_file()
