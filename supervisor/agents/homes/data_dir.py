"""An agent's private data directory: created, and filled with the files that a fresh one needs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from supervisor.agents.catalog import Descriptor
from supervisor.patience import KeyedLimiters, in_time

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600

HOME_LINKS = (".gitconfig", ".config/git")
"""Files of the real HOME that a relocated one links: the git identity, for commits."""

SEEDING = KeyedLimiters(1)
"""Threads that write one data directory at a time: an abandoned one may still be writing."""


async def prepare_data_dir(
    descriptor: Descriptor,
    directory: Path,
    *,
    secrets: Mapping[str, str] | None = None,
    home: Path | None = None,
) -> None:
    """Make `directory` (0700), and write the descriptor's files into it (0600) unless they exist.

    `secrets`: those that the agent gets; they decide which default files apply. `home`: the real home, from
    which a relocated one takes the git identity.

    Raises OSError.

    Cancellation waits for the (short) writing to end, at most PATH_SECONDS. The directory belongs to the
    caller; `SharedLogins` puts credentials into it.
    """
    work = partial(_prepare, descriptor, directory, secrets or {}, home)
    limiter = SEEDING.of(str(directory))
    await in_time(work, "to write the agent's data directory", limiter=limiter, shield=True)


def _prepare(descriptor: Descriptor, directory: Path, secrets: Mapping[str, str], home: Path | None) -> None:
    make_directory(directory)
    for folder in descriptor.data_dir_env.values():
        make_directory(directory / folder)
    for file in descriptor.default_files:
        if not file.when_env or any(secrets.get(name) for name in file.when_env):
            _write_if_absent(directory, file.path, file.content)
    if home is not None and "HOME" in descriptor.data_dir_env:
        for name in HOME_LINKS:
            _link_if_absent(directory / descriptor.data_dir_env["HOME"] / name, home / name)


def make_directory(directory: Path) -> None:
    """Make a private directory, or make an existing one private. Blocks; raises OSError."""
    make_missing(directory)
    directory.chmod(DIRECTORY_MODE)


def make_missing(directory: Path) -> None:
    """Make a directory and its missing parents, private regardless of the umask. Existing ones stay as they
    are.

    Blocks; raises OSError.
    """
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    for each in reversed(missing):
        with suppress(FileExistsError):
            each.mkdir(mode=DIRECTORY_MODE)
            each.chmod(DIRECTORY_MODE)


def _write_if_absent(directory: Path, path: str, content: str) -> None:
    target = directory / path
    with suppress(FileNotFoundError):
        if target.stat().st_size > 0:
            return
    for parent in reversed(target.relative_to(directory).parents[:-1]):
        make_directory(directory / parent)
    write_private(target, content)


def write_private(target: Path, content: str) -> None:
    """Write a file (0600) as a whole or not at all. Blocks; raises OSError."""
    # Written to a temporary file and renamed: an agent that starts meanwhile never reads half a credential.
    handle, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)  # created with mode 0600
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(content)
        Path(name).chmod(FILE_MODE)
        Path(name).replace(target)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _link_if_absent(link: Path, target: Path) -> None:
    if target.exists() and not os.path.lexists(link):
        make_missing(link.parent)
        link.symlink_to(target)
