"""Finds a Python for agents that come from PyPI: on PATH, or below the directories of version managers."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import attrs

from supervisor.agents.catalog import Versions
from supervisor.agents.errors import InstallError, PythonMissing
from supervisor.agents.install.programs import PROBING, answer
from supervisor.patience import PathTimeout, in_time

ASK = (
    "-I",
    "-c",
    "import sys, ensurepip, venv; print(*sys.version_info[:3], sep='.'); print(sys.executable)",
)
"""Fails where an environment cannot be made, as on a Debian without python3-venv."""

MANAGED = (".pyenv/versions/*/bin/python3", ".local/share/uv/python/*/bin/python3")
"""Interpreters of version managers, as patterns below HOME."""


@attrs.frozen
class Python:
    """An interpreter that can make environments."""

    path: str
    version: tuple[int, ...]


async def find_python(wanted: Versions, agent: str, env: Mapping[str, str]) -> Python:
    """Find a Python of these versions with the modules venv and ensurepip; `agent` is for the error.

    Searches in a thread, and asks each program for its version once.

    Raises PythonMissing, InstallError when the directories do not answer. Cancellation ends both.
    """
    try:
        candidates = await in_time(lambda: _candidates(wanted, env), "to look for Python", limiter=PROBING)
    except PathTimeout as error:
        raise InstallError(f"cannot look for Python: {error}. Check the directories of PATH") from error
    passed_over = []
    for path in candidates:
        said = await answer((path, *ASK))
        match = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)\n(/[^\n]+)\s*", said or "")
        if match is None:
            continue
        version = tuple(int(part) for part in match.groups()[:3])
        if wanted.fit(version):
            return Python(match[4], version)
        passed_over.append(".".join(map(str, version)))
    found = f" (found: {', '.join(dict.fromkeys(passed_over))})" if passed_over else ""
    first, end = (".".join(map(str, each)) for each in (wanted.first, wanted.end))
    raise PythonMissing(
        f"{agent} needs Python {first} or newer, below {end}, with its module venv{found}. "
        f"Install one, and have its directory on PATH"
    )


def _candidates(wanted: Versions, env: Mapping[str, str]) -> list[str]:
    search = env.get("PATH") or os.defpath
    names = [*_names(wanted), "python3", "python"]
    found = [path for name in names if (path := shutil.which(name, path=search)) is not None]
    found.append(sys.executable)
    home = env.get("HOME")
    for pattern in MANAGED if home else ():
        found += map(str, sorted(Path(home or "/").glob(pattern), reverse=True))
    pyenv = env.get("PYENV_ROOT")
    if pyenv:
        found += map(str, sorted(Path(pyenv).glob("versions/*/bin/python3"), reverse=True))
    return list(dict.fromkeys(found))


def _names(wanted: Versions) -> list[str]:
    """Return `python3.12` and so on, the oldest that fits first: it has the most wheels."""
    major, first = wanted.first[:2]
    return [f"python{major}.{minor}" for minor in range(first, wanted.end[1])]
