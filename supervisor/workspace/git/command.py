"""Runs `git` on a repository's stand-in, in a minimal environment, bounded in time and output."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import attrs
import trio

from supervisor.agents.endings import ExitStatus, StopPolicy
from supervisor.agents.errors import SpawnError
from supervisor.agents.process import AgentProcess, spawn
from supervisor.agents.spawning.confinement import (
    MB,
    MORE_PROCESSES,
    Confinement,
    Reach,
    can_wall,
    memory_share,
)
from supervisor.patience import KeyedLimiters, PathTimeout, in_time
from supervisor.workspace.access import VARIABLE, Access, Admitted, PathAccess
from supervisor.workspace.git.repository import (
    Confines,
    NotARepository,
    Repository,
    Stamp,
    find,
    is_directory,
    make_stand_in,
    remove_stand_in,
    require_within,
    stamp_of,
)
from supervisor.workspace.problems import Denied, WorkspaceProblem

T = TypeVar("T")

GIT_SECONDS: Final = 30.0
"""Seconds for all git commands of one request; the wire's limit of one command."""

MAX_OUTPUT_BYTES: Final = 8 * 1024 * 1024
"""Of one command: some 100,000 paths."""

ERROR_CHARACTERS: Final = 500
"""Most characters of git's error message in an answer."""

AT_ONCE: Final = 6
"""Requests that run git at a time, in all. Others wait, within their own time."""

LONG_AT_ONCE: Final = 2
"""Long requests at a time, besides the others. Together they take at most half of the machine's memory."""

OWN_AT_ONCE: Final = 2
"""Requests for one workspace or repository at a time, so that it leaves slots for others. Of long ones,
one."""

MOST_MEMORY_BYTES: Final = 512 * MB

MEMORY_BYTES: Final = memory_share(MOST_MEMORY_BYTES, 1 / (2 * (AT_ONCE + LONG_AT_ONCE)))
"""Private memory of one git process. An index of 400,000 files takes some 100 MB. A few objects can describe
a tree of any size, which git lists in memory."""

FILE_BYTES: Final = 256 * MB
"""Size of a file that git makes: an index, or the object of one changed file."""

REFUSED_SECONDS: Final = 30.0
"""Seconds for which a command that exceeded a limit is refused without running it again. Clients poll the
changes of a workspace every few seconds, and each run would cost as much as the first."""

MOST_REFUSED: Final = 64
"""Most such commands that are remembered; beyond that, the oldest are dropped."""

_STOP: Final = StopPolicy(stdin_grace=0.0, term_grace=0.2)
_RUNNING: Final = trio.CapacityLimiter(AT_ONCE)
_LONG: Final = trio.CapacityLimiter(LONG_AT_ONCE)
_OWN: Final = KeyedLimiters(OWN_AT_ONCE)
_OWN_LONG: Final = KeyedLimiters(1)
_VISITS: Final = KeyedLimiters(AT_ONCE)
_REMOVALS: Final = KeyedLimiters(AT_ONCE)

_OPTIONS: Final = (
    "--no-pager",
    "-c", "core.fsmonitor=false",
    "-c", "core.hooksPath=/dev/null",
    "-c", "core.attributesFile=/dev/null",
    "-c", "core.quotePath=false",
    "-c", "core.commitGraph=true",
    "-c", "credential.helper=",
    "-c", "protocol.allow=never",
    "-c", "submodule.recurse=false",
    "-c", "gc.auto=0",
    "-c", "maintenance.auto=false",
    # The stack of each thread counts as memory.
    "-c", "core.preloadIndex=false",
    "-c", "index.threads=1",
    "-c", "pack.threads=1",
    "-c", "core.deltaBaseCacheLimit=32m",
)  # fmt: skip
"""For every command. The repository's configuration is not read; these hold if git ever reads another."""

_VARIABLES: Final[Mapping[str, str]] = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_SYSTEM": "/dev/null",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_PAGER": "cat",
    "GIT_EDITOR": "false",
    "GIT_ASKPASS": "false",
    "GIT_FLUSH": "0",
    "LC_ALL": "C",
}

_PASSED_ON: Final = ("HOME", "TMPDIR", "TZ")

_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

MAX_REF_CHARACTERS: Final = 1024


class GitProblem(WorkspaceProblem):
    """Git failed, or is not installed. The message says why."""


class GitTooLarge(GitProblem):
    """The request needs more resources than one may take. The message says which."""


_EXHAUSTED: Final = re.compile("out of memory|cannot allocate memory", re.IGNORECASE)

_ENDED_BY: Final = frozenset({signal.SIGXFSZ, signal.SIGKILL})

_refused: trio.lowlevel.RunVar[dict[tuple[object, ...], tuple[float, str]]] = trio.lowlevel.RunVar("refused")
"""Refusals by directory, stamp and arguments: the time at which each ends, and its message."""

NO_WALLS: Final = (
    "Git is switched off on this server: it serves the workspaces alone, and this system cannot confine git "
    f"to one (that needs Linux 5.13 with Landlock). Set {VARIABLE} to all, or use such a system."
)


@attrs.frozen
class Git:
    """Git for clients. `environment`: the server's; PATH, HOME and two more are used of it.

    `temporary`: a directory whose content may go when the server is gone; None: the system's.

    `memory_bytes`: of each git.
    """

    access: PathAccess
    environment: Mapping[str, str] = attrs.field(repr=False)
    seconds: float = GIT_SECONDS
    temporary: Path | None = None
    memory_bytes: int = MEMORY_BYTES

    @asynccontextmanager
    async def opened(self, place: Admitted, seconds: float | None = None) -> AsyncIterator[Session]:
        """Find the repository that holds a directory, and use it while the block runs.

        `seconds`: given for long work, which has separate slots.

        Raises NotARepository, Denied, PathTimeout, and GitProblem, also when the block takes longer than
        `seconds`.

        Cancellation ends git, with all that it started.
        """
        with self.limited(seconds):
            own, everyone = (_OWN, _RUNNING) if seconds is None else (_OWN_LONG, _LONG)
            # Take the workspace's slot first: a request that waits for it holds no shared slot. It is taken
            # before the search for the repository, which can take long. The repository's slot comes next,
            # since many paths can lead to one repository.
            async with own.of(str(_where(place))):
                # A patch is always tried again: the user may just have removed what was too large.
                session = await self._open(place, stamped=seconds is None)
                try:
                    async with own.of(f"in {session.repository.common}"), everyone:
                        yield session
                finally:
                    await removed(session.repository.root, partial(remove_stand_in, session.stand_in))

    def confines(self, place: Admitted) -> Confines:
        """What may be read for a client that asks for this place."""
        return Confines(None if self.access.access is Access.ALL else place.root)

    @contextmanager
    def limited(self, seconds: float | None = None) -> Iterator[None]:
        """A limit on the time of the block, for requests that open more than one repository.

        Raises GitProblem when it is over.
        """
        limit = self.seconds if seconds is None else seconds
        with trio.move_on_after(limit) as scope:
            yield
        if scope.cancelled_caught:
            raise GitProblem(f"Git took longer than {limit:g} s. The repository, or its disk, is too slow.")

    async def _open(self, place: Admitted, *, stamped: bool) -> Session:
        where = _where(place)
        git, path = await visit(where, partial(_program, self.environment.get("PATH")), "to look for git")
        if git is None:
            raise GitProblem("Git is not installed on this server.")
        confines = self.confines(place)
        root = confines.root
        if root is not None and not can_wall():
            # A directory can be exchanged for a link while git reads: no look before that is enough.
            raise Denied(NO_WALLS)

        def open_both() -> tuple[Repository, Path, Stamp | None]:
            if not is_directory(place.path):
                raise NotARepository
            repository = find(place.path, confines)
            if root is not None:
                require_within(repository, confines)
            try:
                stamp = stamp_of(repository) if stamped else None
                return repository, make_stand_in(repository, confines, self.temporary), stamp
            except OSError as error:
                raise GitProblem(f"The repository cannot be read: {error.strerror or error}") from None

        repository, stand_in, stamp = await visit(
            where, open_both, "to look for a repository", lambda found: remove_stand_in(found[1])
        )
        passed = {name: self.environment[name] for name in _PASSED_ON if name in self.environment}
        env = {
            **passed,
            **_VARIABLES,
            "PATH": path,
            "GIT_DIR": str(stand_in),
            "GIT_WORK_TREE": str(repository.root),
            "GIT_INDEX_FILE": str(repository.directory / "index"),
            "GIT_OBJECT_DIRECTORY": str(repository.common / "objects"),
        }
        reach = None if root is None else _reach(git, reads=(root,), writes=(stand_in,))
        confinement = Confinement(
            memory_bytes=self.memory_bytes,
            file_bytes=FILE_BYTES,
            more_processes=MORE_PROCESSES,
            reach=reach,
        )
        return Session(repository, stand_in, git, place.path, env, confinement, stamp)


def _where(place: Admitted) -> Path:
    return place.root or place.path


async def visit(
    where: Path, work: Callable[[], T], what: str, wasted: Callable[[T], object] = lambda result: None
) -> T:
    """Run work on paths in a thread that can be abandoned. Raises PathTimeout.

    `where`: the workspace or repository. One that does not respond does not delay others.
    """
    return await in_time(work, what, limiter=_VISITS.of(str(where)), wasted=wasted)


async def removed(where: Path, work: Callable[[], object]) -> None:
    """Remove what finished work left on disk. The error or cancellation that ended the work propagates
    unchanged.

    Cancellation waits for the removal for at most PATH_SECONDS; then the thread continues alone.
    """
    with trio.CancelScope(shield=True), suppress(PathTimeout):
        await in_time(work, "to remove files", limiter=_REMOVALS.of(str(where)))


def _refused_commands() -> dict[tuple[object, ...], tuple[float, str]]:
    try:
        return _refused.get()
    except LookupError:
        _refused.set({})
        return _refused.get()


def _program(search: str | None) -> tuple[str | None, str]:
    """Git's path, and the part of PATH that no working directory can change."""
    path = os.pathsep.join(each for each in (search or os.defpath).split(os.pathsep) if each.startswith("/"))
    return shutil.which("git", path=path), path


def _reach(git: str, *, reads: tuple[Path, ...], writes: tuple[Path, ...]) -> Reach:
    """What git needs to run, and these."""
    programs = {Path(git), Path(os.path.realpath(git))}
    above = {Path("/"), Path("/usr"), *(each.parent.parent for each in programs)}
    own = (place / name for place in above for name in ("lib", "lib64", "libexec/git-core", "share/git-core"))
    libraries = map(Path, ("/etc/ld.so.cache", "/nix/store", "/gnu/store"))
    return Reach(
        runs=(*programs, *own, *libraries),
        reads=(*reads, Path("/dev/urandom")),
        writes=(*writes, Path(os.devnull)),
    )


@attrs.frozen
class Session:
    """One repository, while a request uses it. Its methods raise GitProblem."""

    repository: Repository
    stand_in: Path
    program: str
    directory: Path
    """Where commands run: at the top of the working tree, or below."""
    env: Mapping[str, str] = attrs.field(repr=False)
    confinement: Confinement
    stamp: Stamp | None = None
    """Given where a command that needed too much is not run again for a while."""

    async def output(self, *arguments: str, most: int = MAX_OUTPUT_BYTES) -> bytes:
        """What a command writes. Raises GitProblem if it fails, or writes more than `most` bytes."""
        code, output, complaint = await self._run(arguments, most)
        if code != 0:
            raise GitProblem(f"Git command failed: git {arguments[0]}: {complaint}")
        return output

    async def attempt(self, *arguments: str, most: int = MAX_OUTPUT_BYTES) -> bytes | None:
        """The same; None if the command fails."""
        code, output, _ = await self._run(arguments, most)
        return output if code == 0 else None

    async def _run(self, arguments: tuple[str, ...], most: int) -> tuple[int, bytes, str]:
        if self.stamp is None:
            return await self._run_now(arguments, most)
        # The stamp changes with the repository, so that a smaller one is tried at once.
        key = (self.directory, self.stamp, arguments)
        refused = _refused_commands()
        until, words = refused.get(key, (0.0, ""))
        if trio.current_time() < until:
            raise GitTooLarge(words)
        refused.pop(key, None)
        try:
            return await self._run_now(arguments, most)
        except GitTooLarge as error:
            refused.pop(key, None)
            refused[key] = (trio.current_time() + REFUSED_SECONDS, str(error))
            while len(refused) > MOST_REFUSED:
                del refused[next(iter(refused))]
            raise

    async def _run_now(self, arguments: tuple[str, ...], most: int) -> tuple[int, bytes, str]:
        output = bytearray()
        async with self.running(*arguments) as process:
            while piece := await process.stdout.receive_some():
                output += piece
                if len(output) > most:
                    raise GitTooLarge(f"Git says more than {most} bytes. Ask for a smaller part.")
            status = await process.wait()
        self.require_enough(status, process)
        return (1 if status.code is None else status.code), bytes(output), complaint(process)

    @asynccontextmanager
    async def running(self, *arguments: str, **variables: str) -> AsyncIterator[AgentProcess]:
        """Run a command while the block runs; afterwards nothing of it is left."""
        env = {**self.env, **variables}
        try:
            argv = (self.program, *_OPTIONS, *arguments)
            async with spawn(
                argv, cwd=self.directory, env=env, stop=_STOP, confinement=self.confinement
            ) as process:
                # No command here reads anything; one that did would wait for its timeout.
                await process.stdin.aclose()
                yield process
        except SpawnError as error:
            raise GitProblem(f"Git is not run: {error}") from None

    def require_enough(self, status: ExitStatus, process: AgentProcess) -> None:
        """Raise GitTooLarge if git ended because of a resource limit."""
        if status.code != 0 and _EXHAUSTED.search(complaint(process)):
            most = (self.confinement.memory_bytes or 0) // MB
            raise GitTooLarge(
                f"Git needs more than {most} MB of memory for this, which is the limit: the repository has "
                "too many files, or too large ones. Ask for a part of it, or exclude or ignore large files."
            )
        if status.signal in _ENDED_BY:
            raise GitTooLarge(
                f"The system ended git ({status}): it made a file of more than {FILE_BYTES // MB} MB, or the "
                "machine has no memory left. Exclude or ignore large files."
            )

    async def commit(self, ref: str) -> str | None:
        """The id of the commit that a client's `ref` names; None if there is none.

        Raises GitProblem for what could be taken for an option.
        """
        # A name is not an option, also for commands without `--end-of-options`.
        if ref.startswith("-") or len(ref) > MAX_REF_CHARACTERS or not ref.isprintable() or not ref:
            raise GitProblem("A git ref is a name or an id, and does not begin with '-'.")
        found = await self.attempt(
            "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}"
        )
        return commit_id(found)


def commit_id(output: bytes | None) -> str | None:
    """The id that a command wrote; None if it wrote something else."""
    text = (output or b"").decode("ascii", "replace").strip()
    return text if _COMMIT.fullmatch(text) else None


def complaint(process: AgentProcess) -> str:
    """Git's error message."""
    lines = [line.strip() for line in process.stderr_tail() if line.strip()]
    return " ".join(lines)[:ERROR_CHARACTERS] or "no reason given"
