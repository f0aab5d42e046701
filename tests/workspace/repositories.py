"""Repositories for tests, made by the git command with nobody's configuration."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

from supervisor.workspace.access import Access, Admitted, PathAccess
from supervisor.workspace.git.command import Git

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/nonexistent",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.org",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org",
}


def git(root: Path, *arguments: str, **more: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(root), *arguments], env={**ENVIRONMENT, **more}, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.decode().strip()


def repository(root: Path, **files: str) -> Path:
    """A repository with one commit on `main` if there are files."""
    root.mkdir(parents=True, exist_ok=True)
    git(root, "init", "-q", "-b", "main")
    if files:
        for name, content in files.items():
            (root / name).write_text(content)
        commit(root, "First")
    return root


def commit(root: Path, message: str) -> str:
    git(root, "add", "-A")
    git(root, "commit", "-q", "--allow-empty", "-m", message)
    return git(root, "rev-parse", "HEAD")


def place(path: Path, root: Path | None = None) -> Admitted:
    return Admitted(path.resolve(), root)


def reader(access: Access = Access.ALL, **more: Any) -> Git:
    return Git(PathAccess(access), {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}, **more)
