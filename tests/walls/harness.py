"""Real servers whose agents get walls of each mechanism: an ordinary user's, whom root becomes, or root's."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import attrs
import pytest

from supervisor.agents.spawning.confinement import can_scope
from tests.support.server import ServerProcess, running_server
from tests.support.user import NOBODY, ROOT, give

PLAIN = [
    *(["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"] if ROOT else []),
]
"""Before a command: an ordinary user, without any right of root's."""


def obstacle() -> str | None:
    """Why there are no walls here."""
    for program in ("bwrap", "setpriv"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    # Root's own Python may be where no other user gets.
    # By a shell: what setpriv itself executes still has root's right to find it.
    command = [*PLAIN, "sh", "-c", 'exec "$0" -c "import supervisor"', sys.executable]
    tried = subprocess.run(command, capture_output=True, check=False)
    if tried.returncode != 0:
        return f"an ordinary user cannot run {sys.executable}"
    command = [*PLAIN, "bwrap", "--ro-bind", "/", "/", "--unshare-user", "--unshare-pid", "true"]
    made = subprocess.run(command, capture_output=True, check=False, text=True)
    return made.stderr.strip() or None if made.returncode else None


@pytest.fixture(scope="session")
def walls_possible() -> None:
    """Skips the test where there are none, but for CI."""
    reason = obstacle()
    if reason is not None and os.environ.get("CI") != "true":
        pytest.skip(f"no walls here: {reason}")


@pytest.fixture
def user_place(walls_possible: None) -> Iterator[Path]:
    """A directory of that user: pytest's own are closed to others."""
    path = Path(tempfile.mkdtemp(prefix="ostler-walls-"))
    give(path)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@attrs.frozen
class Made:
    """A wall, and what it is made of."""

    wall: str
    mechanism: str

    def __str__(self) -> str:
        return f"{self.wall}-{self.mechanism}"


NAMESPACES = [Made(wall, "namespaces") for wall in ("guard", "strict")]
USER_IDS = [Made(wall, "user-id") for wall in ("guard", "strict")]
LANDLOCK = Made("strict", "landlock")

REFUSING = "#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n"
"""Bubblewrap where the machine allows no namespaces."""


@asynccontextmanager
async def walled_server(place: Path, made: Made, **variables: str) -> AsyncIterator[ServerProcess]:
    """A server with this wall. What it has is below `place`."""
    for name in ("home", "workspace"):
        (place / name).mkdir(exist_ok=True)
        give(place / name)
    environment = {"OSTLER_WALLS": made.wall, "OSTLER_GRACE_SECONDS": "1", "OSTLER_KEYRING": "off"}
    if made.mechanism == "user-id" and not ROOT:
        pytest.skip("root alone has user ids to give")
    if made == LANDLOCK:
        if not can_scope():
            pytest.skip("Landlock is older than Linux 6.12")
        programs = place / "refusing"
        programs.mkdir(exist_ok=True)
        (programs / "bwrap").write_text(REFUSING)
        (programs / "bwrap").chmod(0o755)
        give(programs)
        environment["PATH"] = f"{programs}:{os.environ['PATH']}"
    prefix = [] if made.mechanism == "user-id" else PLAIN
    async with running_server(place, {**environment, **variables}, prefix=prefix) as server:
        yield server
