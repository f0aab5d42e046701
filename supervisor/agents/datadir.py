"""An agent's private data directory: made, and filled with what a fresh one has to hold."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

import trio

from supervisor.agents.catalog import Descriptor

__all__ = ["prepare_data_dir", "usable_auth_method"]

DIRECTORY_MODE = 0o700
FILE_MODE = 0o600

HOME_LINKS = (".gitconfig", ".config/git")
"""What a relocated HOME keeps of the real one: who the commits are by."""

SEEDING = trio.CapacityLimiter(4)
"""Threads for writing data directories at a time; they must not use up those of others."""


async def prepare_data_dir(
    descriptor: Descriptor,
    directory: Path,
    *,
    secrets: Mapping[str, str] | None = None,
    home: Path | None = None,
) -> None:
    """Make ``directory`` (0700) and put the descriptor's files into it (0600) unless they are there.

    ``secrets`` are the agent's resolved secrets: they fill its credential files and decide which default
    files apply. A credential file that exists is kept, as agents rotate tokens in place. ``home`` is the real
    home, from which a relocated one takes the git identity. The directory belongs to the caller. Cancellation
    waits for the (short) writing to end. Raises OSError.
    """
    await trio.to_thread.run_sync(_prepare, descriptor, directory, secrets or {}, home, limiter=SEEDING)


def _prepare(descriptor: Descriptor, directory: Path, secrets: Mapping[str, str], home: Path | None) -> None:
    _make_directory(directory)
    for folder in descriptor.data_dir_env.values():
        _make_directory(directory / folder)
    for secret in descriptor.file_secrets:
        if value := secrets.get(secret.name):
            _write_if_absent(directory, secret.path, value)
    for file in descriptor.default_files:
        if not file.when_env or any(secrets.get(name) for name in file.when_env):
            _write_if_absent(directory, file.path, file.content)
    if home is not None and "HOME" in descriptor.data_dir_env:
        for name in HOME_LINKS:
            _link_if_absent(directory / descriptor.data_dir_env["HOME"] / name, home / name)


def _make_directory(directory: Path) -> None:
    directory.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
    directory.chmod(DIRECTORY_MODE)


def _write_if_absent(directory: Path, path: str, content: str) -> None:
    target = directory / path
    with suppress(FileNotFoundError):
        if target.stat().st_size > 0:
            return
    for parent in reversed(target.relative_to(directory).parents[:-1]):
        _make_directory(directory / parent)
    # Written beside and renamed: an agent that starts meanwhile never reads half a credential.
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
        link.parent.mkdir(mode=DIRECTORY_MODE, parents=True, exist_ok=True)
        link.symlink_to(target)


async def usable_auth_method(
    descriptor: Descriptor, offered: Collection[str], env: Mapping[str, str]
) -> str | None:
    """The first of the descriptor's methods that is offered and works unattended, or None.

    ``env`` is the agent's composed environment. Looks at files in a thread; cancellation waits for that.
    """

    def first() -> str | None:
        for method in descriptor.auth_methods:
            if method.id in offered and (
                any(env.get(name) for name in method.env)
                or any(
                    path is not None and path.is_file()
                    for path in (_expand(file, env) for file in method.files)
                )
            ):
                return method.id
        return None

    return await trio.to_thread.run_sync(first, limiter=SEEDING)


def _expand(file: str, env: Mapping[str, str]) -> Path | None:
    """The path with its leading ``$NAME`` replaced; None when that variable is not set."""
    if not file.startswith("$"):
        return Path(file)
    name, slash, rest = file[1:].partition("/")
    value = env.get(name)
    return Path(value + slash + rest) if value else None
