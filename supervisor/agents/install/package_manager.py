"""What installing an agent needs of a package manager, and how one is run."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import ClassVar, TypeVar

import attrs
import trio

from supervisor.agents.endings import StopPolicy
from supervisor.agents.environment import base_environment
from supervisor.agents.errors import InstallError, SpawnError
from supervisor.agents.pipes import LineTail
from supervisor.agents.process import AgentProcess, spawn
from supervisor.patience import PathTimeout, in_time

T = TypeVar("T")

TOOL_STOP = StopPolicy(stdin_grace=0.1, term_grace=1.0)
"""npm and pip do not read their input, so its end does not stop them; SIGTERM does."""

ERROR_LINES = 12
"""Lines of a tool's output that an error quotes: npm and pip repeat their reason in the last few lines."""

DISK_SECONDS = 60.0
"""Seconds for one step on install directories: the largest removes or moves half a gigabyte."""

DISK = trio.CapacityLimiter(4)
"""Threads that work on install directories at a time."""


@attrs.frozen(kw_only=True)
class Launch:
    """How an agent is started."""

    argv: tuple[str, ...]
    version: str | None = None
    """The pinned version; None for the user's own command."""
    node: str | None = None
    """The version of Node.js it runs on, if Ostler chooses it."""
    path: tuple[str, ...] = ()
    """Directories that have to come first on its PATH."""


class PackageManager(ABC):
    """One kind of package, for one agent. Paths are those of the agent's directory, finished or not."""

    LOCK_FILES: ClassVar[Sequence[str]]
    OPTIONAL: ClassVar[Collection[str]] = ()
    """Lock files that an agent may lack."""

    version: str
    """The pinned version."""
    tool: Tool

    @abstractmethod
    async def prepare(self) -> None:
        """Find what the agent needs to run, whether it is installed or not. Raises InstallError."""

    @abstractmethod
    def check(self, lock_files: Mapping[str, bytes]) -> None:
        """Refuse what cannot work, before anything is fetched. Raises InstallError."""

    @abstractmethod
    async def fetch(self, staging: Path) -> None:
        """Fill `staging`, in which the lock files are. Raises InstallError; cancellation ends the tool."""

    @abstractmethod
    def program(self, directory: Path) -> Path | None:
        """The program; None where it is missing. Blocks."""

    def is_stale(self, directory: Path) -> bool:
        """Whether a finished install cannot run any more, and has to be repeated. Blocks."""
        return False

    @abstractmethod
    def finish(self, staging: Path, directory: Path) -> None:
        """Prepare the files in `staging` for their move to `directory`. Blocks; raises OSError."""

    @abstractmethod
    async def launch(self, directory: Path, program: Path) -> Launch:
        """Return how to start the installed agent."""


async def on_disk(work: Callable[..., T], *args: object, wasted: Callable[[T], object] = lambda _: None) -> T:
    """Run work in a thread; cancellation abandons it.

    Raises InstallError after DISK_SECONDS.
    """
    task = functools.partial(work, *args)
    what = "to read and write the directory of installed agents"
    try:
        return await in_time(task, what, limiter=DISK, seconds=DISK_SECONDS, wasted=wasted)
    except PathTimeout as error:
        raise InstallError(str(error)) from error


class Tool:
    """Runs the programs of one package manager. `agent` and `name` are for messages."""

    def __init__(self, agent: str, name: str) -> None:
        self.name = name
        self._agent = agent
        self._output = LineTail()
        self._process: AgentProcess | None = None

    async def run(self, argv: Sequence[str], cwd: Path, env: Mapping[str, str]) -> None:
        """Run one to its end. Raises InstallError with its last output. Cancellation ends its processes."""
        self._output = LineTail()
        try:
            async with spawn(argv, cwd=cwd, env=env, stop=TOOL_STOP) as process:
                self._process = process
                async for data in process.stdout:
                    self._output.feed(bytes(data))
                status = await process.wait()
        except SpawnError as error:
            raise InstallError(f"cannot install {self._agent}: {error}") from error
        if status.code != 0:
            raise self.failed(str(status))

    def failed(self, ending: str) -> InstallError:
        """Return the error of a program that ended like this, with its last output."""
        errors = () if self._process is None else self._process.stderr_tail()
        lines = [line for line in (*self._output.lines(), *errors) if line.strip()]
        reason = f"Installing {self._agent} failed: {self.name} {ending}"
        return InstallError("\n".join([reason, *lines[-ERROR_LINES:]]))


def tool_environment(env: Mapping[str, str], settings: frozenset[str]) -> dict[str, str]:
    """Return a package manager's part of the server's environment: what any process gets, and the variables
    of these names (in lower case)."""
    composed = base_environment(env, isolated=False)
    composed.update({name: value for name, value in env.items() if name.lower() in settings})
    return composed
