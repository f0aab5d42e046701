"""Installs agents' programs at a pinned version into a directory of Ostler, once, to run them directly.

No start goes through npx: that would cost two processes that do not pass signals on, and an installation
within the time that an agent has to start. npm installs what the bundled lock file names, and checks the
hashes; install scripts do not run.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import attrs
import trio

from supervisor.agents.catalog import CATALOG_DIR, Descriptor, NpmPackage
from supervisor.agents.datadir import make_missing
from supervisor.agents.endings import StopPolicy
from supervisor.agents.environment import base_environment
from supervisor.agents.errors import InstallError, SpawnError
from supervisor.agents.node import find_node, find_npm
from supervisor.agents.pipes import LineTail
from supervisor.agents.process import spawn
from supervisor.patience import PathTimeout, in_time
from supervisor.version import __version__

T = TypeVar("T")

LOCKS_DIR = CATALOG_DIR / "locks"

CLEAN_UP_SECONDS = 60.0
"""Seconds that another installer of the same agent may take to clean up after its deadline."""

LOCK_POLL_SECONDS = 0.25
"""Between two tries for the lock of another process: the kernel tells nobody when it is free."""

NPM_STOP = StopPolicy(stdin_grace=0.1, term_grace=1.0)
"""npm does not read its input, so end of input tells it nothing; SIGTERM does."""

ERROR_LINES = 12
"""How much of npm's output an error quotes: npm repeats its reason in the last few lines."""

DONE_FILE = ".ostler-installed.json"
"""Written last: a directory without it is not an install."""

STAGING_PREFIX = ".staging-"

NPM_ARGUMENTS = ("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier")

NPX_OPTIONS = frozenset({"-y", "--yes", "--prefer-offline"})
"""Options of npx that do not change what is run."""

NPM_SETTINGS = frozenset(
    f"npm_config_{name}"
    for name in (
        "cache",
        "cafile",
        "globalconfig",
        "https_proxy",
        "noproxy",
        "offline",
        "proxy",
        "registry",
        "strict_ssl",
        "userconfig",
    )
)
"""The `npm_config_*` variables that say where packages come from.

Others, which `npm run` sets by the dozen, would make the installation depend on how the server was started.
"""

MACHINES = {"x86_64": "x64", "amd64": "x64", "aarch64": "arm64"}
"""npm's names of processors."""

DISK_SECONDS = 60.0
"""For one step of the work on install directories: the largest removes or moves half a gigabyte."""

DISK = trio.CapacityLimiter(4)
"""Threads that work on install directories at a time."""

_locks: trio.lowlevel.RunVar[dict[Path, trio.Lock]] = trio.lowlevel.RunVar("supervisor.agents.install.locks")


@attrs.frozen(kw_only=True)
class Launch:
    """How an agent is started."""

    argv: tuple[str, ...]
    version: str | None = None
    """The pinned version; None for a command that is the user's own."""
    node: str | None = None
    """The version of Node it runs on, where it is ours to choose."""
    path: tuple[str, ...] = ()
    """Directories that have to come first on its PATH."""


def starts_pinned(descriptor: Descriptor, command: Sequence[str]) -> bool:
    """Whether `command` means the agent that Ostler installs: the descriptor's command, npx options aside.

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

    `progress`: called with a sentence when a step takes long. `seconds`: the limit of one run of npm.
    `server_env` (default: this process's) gives PATH, proxies and npm's settings.

    One installer works on an agent at a time, in this process and among others; those that wait use its
    result.

    Raises InstallError, also as NodeMissing.

    Cancellation ends npm and every process that it started, and leaves no files.
    """
    if descriptor.module is not None:
        # -P: the workspace, in which it starts, must not be searched for the module.
        return Launch(argv=(sys.executable, "-P", "-m", descriptor.module), version=__version__)
    if descriptor.npm is None:
        raise InstallError(f"{descriptor.name} has no default command; set acp_command")
    env = os.environ if server_env is None else server_env
    package = descriptor.npm
    node = None if package.entry is None else await find_node(package.min_node, env)
    lock_files = await _in_thread(_read_lock_files, descriptor)
    directory = prefix / descriptor.key / f"{package.version}-{_digest(lock_files)}"
    if not await _in_thread((directory / DONE_FILE).is_file):
        _check_platform(descriptor, package, lock_files)
        try:
            async with _exclusive(directory.parent, descriptor, progress, seconds):
                if not await _in_thread((directory / DONE_FILE).is_file):
                    await _install(descriptor, package, directory, lock_files, env, progress, seconds)
        except OSError as error:
            raise InstallError(f"cannot install {descriptor.name} below {prefix}: {error}") from error
    program = await _in_thread(_program, package, directory)
    if program is None:
        raise InstallError(
            f"the program of {descriptor.name} is missing in {directory}; "
            "remove the directory to install it again"
        )
    path = (str(directory / "node_modules" / ".bin"),) if package.bin_on_path else ()
    if node is None:
        return Launch(argv=(str(program), *descriptor.args), version=package.version, path=path)
    if await _in_thread(functools.partial(shutil.which, "node", path=env.get("PATH"))) != node.path:
        path = (*path, str(Path(node.path).parent))  # its own children look for `node` too
    argv = (node.path, str(program), *descriptor.args)
    return Launch(argv=argv, version=package.version, node=node.version_text, path=path)


async def _in_thread(
    work: Callable[..., T], *args: object, wasted: Callable[[T], object] = lambda _: None
) -> T:
    """Run work in a thread; cancellation abandons it.

    Raises InstallError after DISK_SECONDS.
    """
    task = functools.partial(work, *args)
    what = "to read and write the directory of installed agents"
    try:
        return await in_time(task, what, limiter=DISK, seconds=DISK_SECONDS, wasted=wasted)
    except PathTimeout as error:
        raise InstallError(str(error)) from error


def _read_lock_files(descriptor: Descriptor) -> dict[str, bytes]:
    directory = LOCKS_DIR / descriptor.key
    try:
        return {name: (directory / name).read_bytes() for name in ("package.json", "package-lock.json")}
    except OSError as error:
        raise InstallError(
            f"cannot read the lock file of {descriptor.name}; install Ostler again: {error}"
        ) from error


def _digest(lock_files: Mapping[str, bytes]) -> str:
    return hashlib.sha256(b"\0".join(lock_files.values())).hexdigest()[:12]


def platform_name() -> str:
    """The name of this platform in the `native` tables, e.g. `linux-x64-musl`."""
    machine = platform.machine().lower()
    name = f"{sys.platform}-{MACHINES.get(machine, machine)}"
    if name == "linux-x64" and " avx2 " not in _cpu_flags():
        name += "-baseline"
    if sys.platform == "linux" and not _has_glibc():
        name += "-musl"
    return name


def _cpu_flags() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return next((f"{line} " for line in text.splitlines() if line.startswith("flags")), "")


def _has_glibc() -> bool:
    try:
        return os.confstr("CS_GNU_LIBC_VERSION") is not None
    except (ValueError, OSError):
        return False


def _check_platform(descriptor: Descriptor, package: NpmPackage, lock_files: Mapping[str, bytes]) -> None:
    """Refuse an unsupported platform before half a gigabyte is downloaded."""
    if package.entry is not None:
        return
    locked = json.loads(lock_files["package-lock.json"])["packages"]
    for candidate in package.native.get(platform_name(), ()):
        if any(name and candidate.startswith(f"{name}/") for name in locked):
            return
    raise InstallError(
        f"the pinned {descriptor.name} {package.version} has no program for {platform_name()}; "
        "install it yourself and set acp_command"
    )


def _program(package: NpmPackage, directory: Path) -> Path | None:
    candidates = package.native.get(platform_name(), ()) if package.entry is None else (package.entry,)
    return next((path for name in candidates if (path := directory / name).is_file()), None)


@asynccontextmanager
async def _exclusive(
    directory: Path, descriptor: Descriptor, progress: Callable[[str], None], seconds: float
) -> AsyncIterator[None]:
    """Be the only installer in `directory`, here and among processes; the kernel frees a dead one's lock.

    Waits for another one, which may take `seconds`.
    """
    await _in_thread(functools.partial(make_missing, directory))
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
            file = await _in_thread(_open_lock, directory / ".lock", wasted=os.close)
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
    # Neither a lease that somebody holds on it nor a pipe in its place is waited for.
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOFOLLOW
    return os.open(path, flags, 0o600)


async def _wait_for_flock(file: int, descriptor: Descriptor, progress: Callable[[str], None]) -> None:
    told = False
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not told:
                progress(f"Waiting for another process that is installing {descriptor.name}")
                told = True
            await trio.sleep(LOCK_POLL_SECONDS)
        else:
            return


async def _install(
    descriptor: Descriptor,
    package: NpmPackage,
    directory: Path,
    lock_files: Mapping[str, bytes],
    env: Mapping[str, str],
    progress: Callable[[str], None],
    seconds: float,
) -> None:
    npm = await find_npm(env)
    size = f", about {package.size_mb} MB on disk" if package.size_mb else ""
    progress(f"Installing {descriptor.name} {package.version} (once{size})")
    began = trio.current_time()
    remove = functools.partial(shutil.rmtree, ignore_errors=True)
    staging = await _in_thread(_stage, directory, lock_files, wasted=remove)
    try:
        await _run_npm(npm, staging, descriptor, env, seconds)
        await _in_thread(_publish, descriptor, package, staging, directory)
    finally:
        with trio.CancelScope(shield=True):
            await _in_thread(remove, staging)
    progress(f"Installed {descriptor.name} {package.version} in {trio.current_time() - began:.0f} s")


def _stage(directory: Path, lock_files: Mapping[str, bytes]) -> Path:
    """Make a fresh directory beside the final one, and remove those that killed installers left."""
    for stale in directory.parent.glob(f"{STAGING_PREFIX}*"):
        shutil.rmtree(stale, ignore_errors=True)
    staging = Path(tempfile.mkdtemp(prefix=STAGING_PREFIX, dir=directory.parent))
    staging.chmod(0o700)  # which the umask may have taken from us
    for name, content in lock_files.items():
        (staging / name).write_bytes(content)
    return staging


async def _run_npm(
    npm: Sequence[str], staging: Path, descriptor: Descriptor, env: Mapping[str, str], seconds: float
) -> None:
    output = LineTail()
    with trio.move_on_after(seconds) as deadline:
        try:
            argv = (*npm, *NPM_ARGUMENTS)
            async with spawn(argv, cwd=staging, env=_npm_env(npm, env), stop=NPM_STOP) as process:
                async for data in process.stdout:
                    output.feed(bytes(data))
                status = await process.wait()
        except SpawnError as error:
            raise InstallError(f"cannot install {descriptor.name}: {error}") from error
        if status.code == 0:
            return
    ending = f"did not end in {seconds:g} s" if deadline.cancelled_caught else str(status)
    lines = [line for line in (*output.lines(), *process.stderr_tail()) if line.strip()]
    reason = f"Installing {descriptor.name} failed: npm {ending}"
    raise InstallError("\n".join([reason, *lines[-ERROR_LINES:]]))


def _npm_env(npm: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    composed = base_environment(env, isolated=False)
    for name, value in env.items():
        if name.lower() in NPM_SETTINGS:
            composed[name] = value
    # Whatever npm starts finds the Node that npm itself runs on.
    composed["PATH"] = os.pathsep.join([str(Path(npm[0]).parent), composed.get("PATH", os.defpath)])
    return composed


def _publish(descriptor: Descriptor, package: NpmPackage, staging: Path, directory: Path) -> None:
    program = _program(package, staging)
    if program is None:
        raise InstallError(f"npm installed {descriptor.name} {package.version}, but its program is missing")
    if package.native:
        program.chmod(program.stat().st_mode | 0o111)
    done = {"key": descriptor.key, "package": package.package, "version": package.version}
    (staging / DONE_FILE).write_text(json.dumps(done) + "\n", encoding="utf-8")
    # As its parent: private in the state directory, open where an operator has made a place for several
    # users.
    staging.chmod(directory.parent.stat().st_mode & 0o755)
    if directory.exists():  # without its mark, or we would not be here: half removed by somebody
        shutil.rmtree(directory)
    staging.rename(directory)
