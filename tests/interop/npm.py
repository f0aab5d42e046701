"""Packages from npm, locked by hash and kept between test sessions, and a Node.js that runs them."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import attrs
import trio

from supervisor.agents.install.programs import find_node, find_npm

LOCKED = ("package.json", "package-lock.json")
NODE = (22,)
"""The oldest Node.js that the packages of these tests support."""

INSTALL_SECONDS = 300


@attrs.frozen
class Packages:
    """What a lock file names, and a Node.js that runs it."""

    node: str
    directory: Path


def npm(*arguments: str, directory: Path) -> None:
    """Run npm there."""
    program = trio.run(find_npm, os.environ)
    path = os.pathsep.join([str(Path(program[0]).parent), os.environ.get("PATH", os.defpath)])
    subprocess.run(
        [*program, *arguments],
        cwd=directory,
        env={**os.environ, "PATH": path},
        check=True,
        timeout=INSTALL_SECONDS,
    )


def install(locks: Path, cache: Path) -> Packages:
    """Install what the lock file in `locks` names, in a directory of its hash, unless a session before
    did."""
    node = trio.run(find_node, NODE, os.environ).path
    digest = hashlib.sha256(b"".join((locks / name).read_bytes() for name in LOCKED)).hexdigest()[:12]
    home = cache / digest
    if (home / "ready").exists():
        return Packages(node, home)
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    for name in LOCKED:
        shutil.copy(locks / name, home)
    npm("ci", "--ignore-scripts", "--no-audit", "--no-fund", "--no-update-notifier", directory=home)
    (home / "ready").touch()
    return Packages(node, home)
