"""Creates the working directory of a conversation: before its agent starts, or when a client comes first."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

EMPTY_REPOSITORY: Final[Mapping[str, str]] = {
    "HEAD": "ref: refs/heads/main\n",
    "config": "[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n",
}
"""The files that make a directory a git repository, besides the directories for objects and refs. `git init`
is not used: it runs the user's templates, and may be missing."""


def make_working_directory(path: Path) -> None:
    """Create a missing working directory as an empty git repository: clients show changes only of these.

    An existing directory is unchanged; a directory inside a repository gets none. Blocking.

    Raises OSError if the directory cannot be made, FileExistsError if `path` is a file.
    """
    if path.is_dir():
        return
    path.mkdir(parents=True, exist_ok=True)
    directory = path / ".git"
    with suppress(OSError):  # a workspace without a repository is usable, too
        if any(_is_repository(parent / ".git") for parent in path.resolve().parents):
            return
        directory.mkdir()
        for name in ("objects/info", "objects/pack", "refs/heads", "refs/tags"):
            (directory / name).mkdir(parents=True)
        for name, content in EMPTY_REPOSITORY.items():
            (directory / name).write_text(content)


def _is_repository(git: Path) -> bool:
    """Whether git accepts `git` as a repository. An empty `.git` directory, as in some `/tmp`, is none."""
    return git.is_file() or (git / "HEAD").is_file()
