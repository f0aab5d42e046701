"""Runs `git` on a repository's stand-in: with an environment of its own, bounded in time and output."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import attrs
import trio

from supervisor.agents.endings import StopPolicy
from supervisor.agents.errors import SpawnError
from supervisor.agents.process import AgentProcess, spawn
from supervisor.patience import KeyedLimiters, in_time
from supervisor.workspace.access import Access, Admitted, PathAccess
from supervisor.workspace.git.repository import (
    NotARepository,
    Repository,
    find,
    is_directory,
    make_stand_in,
    remove_stand_in,
    require_within,
)
from supervisor.workspace.problems import WorkspaceProblem

T = TypeVar("T")

GIT_SECONDS: Final = 30.0
"""Seconds for all that one request asks of git; the wire's limit of one command."""

MAX_OUTPUT_BYTES: Final = 8 * 1024 * 1024
"""Of one command: some 100,000 paths."""

ERROR_CHARACTERS: Final = 500
"""Of git's own words in an answer."""

AT_ONCE: Final = 4
"""Requests that run git at a time. Others wait, within their own time."""

_STOP: Final = StopPolicy(stdin_grace=0.0, term_grace=0.2)
_RUNNING: Final = trio.CapacityLimiter(AT_ONCE)
_LONG: Final = trio.CapacityLimiter(AT_ONCE // 2)
_VISITS: Final = KeyedLimiters(AT_ONCE)

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
    """Git cannot do it, or is not there. The message says why."""


@attrs.frozen
class Git:
    """Git for clients. `environment`: the server's; PATH, HOME and two more are used of it."""

    access: PathAccess
    environment: Mapping[str, str] = attrs.field(repr=False)
    seconds: float = GIT_SECONDS

    @asynccontextmanager
    async def opened(self, place: Admitted, seconds: float | None = None) -> AsyncIterator[Session]:
        """Find the repository that holds a directory, and use it while the block runs.

        `seconds`: given for work that takes longer than most; it has places of its own.

        Raises NotARepository, Denied, PathTimeout, and GitProblem, also when the block takes longer than
        `seconds`.

        Cancellation ends git, with all that it started.
        """
        with self.limited(seconds):
            async with _RUNNING if seconds is None else _LONG:
                session = await self._open(place)
                try:
                    yield session
                finally:
                    with trio.CancelScope(shield=True):
                        await visit(partial(remove_stand_in, session.stand_in), "to remove a directory")

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

    async def _open(self, place: Admitted) -> Session:
        git, path = await visit(partial(_program, self.environment.get("PATH")), "to look for git")
        if git is None:
            raise GitProblem("Git is not installed on this server.")
        root = place.root if self.access.access is not Access.ALL else None

        def permitted(found: Path) -> bool:
            return root is None or found.is_relative_to(root)

        def open_both() -> tuple[Repository, Path]:
            if not is_directory(place.path):
                raise NotARepository
            repository = find(place.path, permitted)
            if root is not None:
                require_within(repository, permitted)
            try:
                return repository, make_stand_in(repository)
            except OSError as error:
                raise GitProblem(f"The repository cannot be read: {error.strerror or error}") from None

        repository, stand_in = await visit(
            open_both, "to look for a repository", lambda found: remove_stand_in(found[1])
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
        return Session(repository, stand_in, git, place.path, env)


async def visit(work: Callable[[], T], what: str, wasted: Callable[[T], object] = lambda result: None) -> T:
    """Run work on paths in a thread that can be given up. Raises PathTimeout."""
    return await in_time(work, what, limiter=_VISITS.of("git"), wasted=wasted)


def _program(search: str | None) -> tuple[str | None, str]:
    """Git's path, and the part of PATH that no working directory can change."""
    path = os.pathsep.join(each for each in (search or os.defpath).split(os.pathsep) if each.startswith("/"))
    return shutil.which("git", path=path), path


@attrs.frozen
class Session:
    """One repository, while a request uses it. Its methods raise GitProblem."""

    repository: Repository
    stand_in: Path
    program: str
    directory: Path
    """Where commands run: at the top of the working tree, or below."""
    env: Mapping[str, str] = attrs.field(repr=False)

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
        output = bytearray()
        async with self.running(*arguments) as process:
            while piece := await process.stdout.receive_some():
                output += piece
                if len(output) > most:
                    raise GitProblem(f"Git says more than {most} bytes. Ask for a smaller part.")
            status = await process.wait()
        return (1 if status.code is None else status.code), bytes(output), complaint(process)

    @asynccontextmanager
    async def running(self, *arguments: str, **variables: str) -> AsyncIterator[AgentProcess]:
        """Run a command while the block runs; afterwards nothing of it is left."""
        env = {**self.env, **variables}
        try:
            argv = (self.program, *_OPTIONS, *arguments)
            async with spawn(argv, cwd=self.directory, env=env, stop=_STOP) as process:
                await process.stdin.aclose()
                yield process
        except SpawnError as error:
            raise GitProblem(f"Git cannot be started: {error}") from None

    async def commit(self, ref: str) -> str | None:
        """The id of the commit that a client's `ref` names; None if there is none.

        Raises GitProblem for what could be taken for an option.
        """
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
    """Git's own words about a failure."""
    lines = [line.strip() for line in process.stderr_tail() if line.strip()]
    return " ".join(lines)[:ERROR_CHARACTERS] or "no reason given"
