"""A real server of an ordinary user, whose agents get walls. Root gets none, so root starts it as another."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

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


@asynccontextmanager
async def walled_server(place: Path, wall: str, **variables: str) -> AsyncIterator[ServerProcess]:
    """A server with this wall. What it has is below `place`."""
    for name in ("home", "workspace"):
        (place / name).mkdir(exist_ok=True)
        give(place / name)
    environment = {"OSTLER_WALLS": wall, "OSTLER_GRACE_SECONDS": "1", "OSTLER_KEYRING": "off", **variables}
    async with running_server(place, environment, prefix=PLAIN) as server:
        yield server
