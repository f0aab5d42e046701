"""Installs agents' programs at a pinned version into a directory of Ostler, once, to run them directly.

No start goes through npx or uvx: that would cost processes that do not forward signals, and an installation
within the time limit of the agent's start. A package manager (packages.py) installs what the bundled lock
file names, and checks the hashes; install scripts do not run.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import trio

from supervisor.agents.catalog import CATALOG_DIR, Descriptor
from supervisor.agents.errors import InstallError
from supervisor.agents.homes.data_dir import make_missing
from supervisor.agents.install.packages import Launch, Npm, Pip, on_disk
from supervisor.version import __version__

LOCKS_DIR = CATALOG_DIR / "locks"

CLEAN_UP_SECONDS = 60.0
"""Seconds that another installer of the same agent may take to clean up after its deadline."""

LOCK_POLL_SECONDS = 0.25
"""Seconds between two tries for another process's lock: the kernel does not report when it is free."""

DONE_FILE = ".ostler-installed.json"
"""Written last: a directory without it is not an install."""

STAGING_PREFIX = ".staging-"

NPX_OPTIONS = frozenset({"-y", "--yes", "--prefer-offline"})
"""Options of npx that do not change what is run."""

_locks: trio.lowlevel.RunVar[dict[Path, trio.Lock]] = trio.lowlevel.RunVar(
    "supervisor.agents.install.install.locks"
)


def starts_pinned(descriptor: Descriptor, command: Sequence[str]) -> bool:
    """Whether `command` is the agent that Ostler installs: the descriptor's command, npx options aside.

    A command with another version, or none, is the user's own and runs as it is.
    """
    if not command:
        return True
    if not descriptor.command:
        return False
    return _without_npx_options(command) == _without_npx_options(descriptor.command)


def _without_npx_options(command: Sequence[str]) -> list[str]:
    if command[0] != "npx":
        return list(command)
    return [word for word in command if word not in NPX_OPTIONS]


async def resolve_launch(
    descriptor: Descriptor,
    command: Sequence[str],
    args: Sequence[str],
    prefix: Path,
    *,
    progress: Callable[[str], None],
    seconds: float,
    server_env: Mapping[str, str] | None = None,
) -> Launch:
    """Return how to start `command` (empty: the descriptor's default) with `args`; may install.

    Raises and waits like `ensure_installed`.
    """
    if not starts_pinned(descriptor, command):
        return Launch(argv=(*command, *args))
    launch = await ensure_installed(
        descriptor, prefix, progress=progress, seconds=seconds, server_env=server_env
    )
    return attrs.evolve(launch, argv=(*launch.argv, *args))


async def ensure_installed(
    descriptor: Descriptor,
    prefix: Path,
    *,
    progress: Callable[[str], None],
    seconds: float,
    server_env: Mapping[str, str] | None = None,
) -> Launch:
    """Install the agent below `prefix` unless it is installed, and return how to start it.

    `progress`: called with a sentence when a step takes long. `seconds`: the limit of one installation.
    `server_env` (default: this process's) gives PATH, proxies and the package managers' settings.

    One installer works on an agent at a time, across processes too; those that wait use its result.

    Raises InstallError, also as NodeMissing and PythonMissing.

    Cancellation ends the package manager and every process that it started, and leaves no files.
    """
    if descriptor.module is not None:
        # -P: do not search the workspace, which is the working directory, for the module.
        return Launch(argv=(sys.executable, "-P", "-m", descriptor.module), version=__version__)
    env = os.environ if server_env is None else server_env
    manager = _manager(descriptor, env)
    await manager.prepare()
    lock_files = await on_disk(_read_lock_files, descriptor, manager)
    digest = hashlib.sha256(b"\0".join(lock_files.values())).hexdigest()[:12]
    directory = prefix / descriptor.key / f"{manager.package.version}-{digest}"
    if not await on_disk(_is_installed, manager, directory):
        manager.check(lock_files)
        try:
            async with _exclusive(directory.parent, descriptor, progress, seconds):
                if not await on_disk(_is_installed, manager, directory):
                    await _install(descriptor, manager, directory, lock_files, progress, seconds)
        except OSError as error:
            raise InstallError(
                f"cannot install {descriptor.name} below {prefix}: {error.strerror or error}; give Ostler "
                "another directory with OSTLER_AGENTS_DIR, or make this one writable"
            ) from error
    program = await on_disk(manager.program, directory)
    if program is None:
        raise InstallError(
            f"the program of {descriptor.name} is missing in {directory}; "
            "remove the directory to install it again"
        )
    return await manager.launch(directory, program)


async def require_runtime(descriptor: Descriptor, env: Mapping[str, str]) -> None:
    """Find the Node.js or Python that an installation of the agent needs. Raises InstallError.

    Cancellation ends the programs that are asked for their version.
    """
    if descriptor.package is not None:
        await _manager(descriptor, env).require()


def _manager(descriptor: Descriptor, env: Mapping[str, str]) -> Npm | Pip:
    if descriptor.npm is not None:
        return Npm(descriptor, descriptor.npm, env)
    if descriptor.pip is not None:
        return Pip(descriptor, descriptor.pip, env)
    raise InstallError(f"{descriptor.name} has no default command; set acp_command")


def _is_installed(manager: Npm | Pip, directory: Path) -> bool:
    return (directory / DONE_FILE).is_file() and not manager.is_stale(directory)


def _read_lock_files(descriptor: Descriptor, manager: Npm | Pip) -> dict[str, bytes]:
    directory = LOCKS_DIR / descriptor.key
    try:
        return {
            name: (directory / name).read_bytes()
            for name in manager.lock_files
            if name not in manager.optional or (directory / name).is_file()
        }
    except OSError as error:
        raise InstallError(
            f"cannot read the lock file of {descriptor.name}; install Ostler again: {error.strerror or error}"
        ) from error


@asynccontextmanager
async def _exclusive(
    directory: Path, descriptor: Descriptor, progress: Callable[[str], None], seconds: float
) -> AsyncIterator[None]:
    """Be the only installer in `directory`, across processes too; the kernel releases a dead one's lock.

    Waits for another one, which may take `seconds`.
    """
    await on_disk(functools.partial(make_missing, directory))
    try:
        locks = _locks.get()
    except LookupError:
        locks = {}
        _locks.set(locks)
    lock = locks.setdefault(directory, trio.Lock())
    with trio.move_on_after(seconds + CLEAN_UP_SECONDS) as waiting:
        if lock.locked():
            progress(f"Waiting until {descriptor.name} is installed")
        await lock.acquire()
        try:
            file = await on_disk(_open_lock, directory / ".lock", wasted=os.close)
            try:
                os.fchmod(file, 0o600)
                await _wait_for_flock(file, descriptor, progress)
                waiting.deadline = float("inf")
                yield
            finally:
                os.close(file)
        finally:
            lock.release()
    if waiting.cancelled_caught:
        raise InstallError(
            f"another process has been installing {descriptor.name} for too long; wait for it, or end it"
        )


def _open_lock(path: Path) -> int:
    # Neither a lease on the file nor a pipe in its place can block this.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    return os.open(path, flags, 0o600)


async def _wait_for_flock(file: int, descriptor: Descriptor, progress: Callable[[str], None]) -> None:
    reported = False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not reported:
                progress(f"Waiting for another process that is installing {descriptor.name}")
                reported = True
            await trio.sleep(LOCK_POLL_SECONDS)
        else:
            return


async def _install(
    descriptor: Descriptor,
    manager: Npm | Pip,
    directory: Path,
    lock_files: Mapping[str, bytes],
    progress: Callable[[str], None],
    seconds: float,
) -> None:
    package = manager.package
    size = f", about {package.size_mb} MB on disk" if package.size_mb else ""
    progress(f"Installing {descriptor.name} {package.version} (once{size})")
    began = trio.current_time()
    remove = functools.partial(shutil.rmtree, ignore_errors=True)
    staging = await on_disk(_stage, directory, lock_files, wasted=remove)
    try:
        with trio.move_on_after(seconds) as deadline:
            await manager.fetch(staging)
        if deadline.cancelled_caught:
            raise manager.tool.failed(f"did not end in {seconds:g} s")
        await on_disk(_publish, descriptor, manager, staging, directory)
    finally:
        with trio.CancelScope(shield=True):
            await on_disk(remove, staging)
    progress(f"Installed {descriptor.name} {package.version} in {trio.current_time() - began:.0f} s")


def _stage(directory: Path, lock_files: Mapping[str, bytes]) -> Path:
    """Make a fresh directory next to the final one, and remove those that killed installers left."""
    for stale in directory.parent.glob(f"{STAGING_PREFIX}*"):
        shutil.rmtree(stale, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=STAGING_PREFIX, dir=directory.parent))
    staging.chmod(0o700)  # regardless of the umask
    for name, content in lock_files.items():
        (staging / name).write_bytes(content)
    return staging


def _publish(descriptor: Descriptor, manager: Npm | Pip, staging: Path, directory: Path) -> None:
    package = manager.package
    if manager.program(staging) is None:
        raise manager.tool.incomplete(package.version)
    manager.finish(staging, directory)
    done = {"key": descriptor.key, "package": package.package, "version": package.version}
    (staging / DONE_FILE).write_text(json.dumps(done) + "\n", encoding="utf-8")
    # The mode of its parent: private in the state directory, readable where an operator has prepared a
    # directory for several users.
    staging.chmod(directory.parent.stat().st_mode & 0o755)
    if directory.exists():  # without its mark, or this would not run: partly removed by another program
        shutil.rmtree(directory)
    staging.rename(directory)
