"""What is left out of archives: patterns as in .gitignore, and what of a `.git` may be secret. Pure."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from typing import Final

GENERATED: Final = (
    ".git/",
    "node_modules/",
    ".venv/",
    "venv/",
    "__pycache__/",
    ".mypy_cache/",
    ".pytest_cache/",
    ".ruff_cache/",
    "dist/",
    "build/",
    ".next/",
    "target/",
    "*.pyc",
)
"""Files that tools can regenerate; the wire's list."""

MAX_PATTERNS: Final = 100
MAX_PATTERN_CHARACTERS: Final = 256
"""Of further patterns in a request. Each is compared with each path."""

_CREDENTIALS: Final = frozenset(
    {"config", "config.worktree", "credentials", ".git-credentials", "FETCH_HEAD"}
)
_LOGS: Final = "logs"


def is_excluded(parts: Sequence[str], patterns: Sequence[str], *, directory: bool) -> bool:
    """Whether one of the patterns names this path, given by its parts below the root of the archive.

    A pattern that ends with `/` names directories alone. One with another `/` begins at the root, and one
    without names a part at any depth. `*` does not go beyond a `/`.
    """
    for pattern in patterns:
        bare = pattern.rstrip("/")
        only_directories = pattern.endswith("/")
        if not bare:
            continue
        if "/" in bare:
            steps = bare.split("/")
            if len(parts) < len(steps) or not all(map(fnmatch.fnmatchcase, parts, steps)):
                continue
            if not only_directories or directory or len(parts) > len(steps):
                return True
            continue
        candidates = parts if directory or not only_directories else parts[:-1]
        if any(fnmatch.fnmatchcase(part, bare) for part in candidates):
            return True
    return False


def may_hold_credentials(name: str) -> bool:
    """Whether a file or directory of this name in a git directory may hold the token of a remote."""
    return name == _LOGS or name in _CREDENTIALS


def pathspecs(patterns: Sequence[str]) -> list[str]:
    """The same patterns as arguments of git."""
    specs = []
    for pattern in patterns:
        bare = pattern.rstrip("/")
        if not bare:
            continue
        anchored = bare if "/" in bare else f"**/{bare}"
        if not pattern.endswith("/"):
            specs.append(f":(glob,exclude){anchored}")
        specs.append(f":(glob,exclude){anchored}/**")
    return specs
