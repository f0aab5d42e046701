"""Starts a program behind a door: in a network namespace of its own, by bubblewrap."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest
import trio

from supervisor.agents.spawning.descriptors import DOOR_CONNECTIONS
from supervisor.agents.walls.door.door import PYTHON, Door, open_door
from supervisor.agents.walls.door.hosts import AllowList, allow_list
from supervisor.agents.walls.door.rewiring import Wiring

INSIDE = "/run/door"
NOBODY = 65534
WAIT_S = 30.0

FLAGS = (
    "--unshare-user", "--unshare-net", "--unshare-pid", "--die-with-parent", "--ro-bind", "/", "/",
    "--dev", "/dev", "--proc", "/proc", "--tmpfs", "/run",
)  # fmt: skip


def users() -> list[str]:
    """As whom the tests run: as whom they are started, and as an ordinary user where that is root."""
    return ["ordinary", "root"] if os.geteuid() == 0 else ["ordinary"]


def owner(user: str) -> tuple[int, int] | None:
    return (NOBODY, NOBODY) if user == "ordinary" and os.geteuid() == 0 else None


def _as_user(user: str) -> list[str]:
    if owner(user) is None:
        return []
    return ["setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups", "--inh-caps=-all"]


@cache
def why_not(user: str) -> str | None:
    """Why no such namespace can be made here; None where it can."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed"
    tried = subprocess.run(
        [*_as_user(user), "bwrap", *FLAGS, "true"], capture_output=True, text=True, timeout=WAIT_S
    )
    return None if tried.returncode == 0 else f"bubblewrap fails: {tried.stderr.strip()}"


def require(user: str) -> None:
    """Skip the test where there are no namespaces, but for CI, which has to have them."""
    reason = why_not(user)
    if reason is not None and os.environ.get("CI") != "true":
        pytest.skip(reason)
    assert reason is None


@dataclass
class Opened:
    """A door, and what was refused at it."""

    door: Door
    wiring: Wiring
    user: str
    refused: list[tuple[str, int, str]] = field(default_factory=list)

    def command(self, argv: Sequence[str], flags: Sequence[str] = FLAGS, place: str = INSIDE) -> list[str]:
        return self.around(self.door.command(argv, inside=place), flags, place)

    def around(self, argv: Sequence[str], flags: Sequence[str] = FLAGS, place: str = INSIDE) -> list[str]:
        """A command in a namespace of its own, which sees the door's directory."""
        bind = ("--ro-bind", str(self.door.directory), place)
        return [*_as_user(self.user), "bwrap", *flags, *bind, "--", *argv]

    def start(self, program: str, *words: str, **popen: object) -> subprocess.Popen[str]:
        """Start a Python program inside; its output is a pipe."""
        shim = self.door.command([PYTHON, "-I", "-c", program, *words], inside=INSIDE)
        return self.popen(shim, **popen)

    def popen(
        self, argv: Sequence[str], flags: Sequence[str] = FLAGS, **popen: object
    ) -> subprocess.Popen[str]:
        """Start a command in a namespace of its own; its output is a pipe."""
        environment = {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1"}
        return subprocess.Popen(
            self.around(argv, flags),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            **popen,  # type: ignore[call-overload]
        )

    async def run(self, program: str, *words: str) -> str:
        """Run a Python program inside to its end, which must be a good one. Return its output."""
        process = self.start(program, *words)
        try:
            with trio.fail_after(WAIT_S):
                said, _ = await trio.to_thread.run_sync(process.communicate, abandon_on_cancel=True)
        finally:
            process.kill()
            process.wait()
        assert process.returncode == 0, said
        return str(said)


async def line(process: subprocess.Popen[str]) -> str:
    """The next line that it says."""
    assert process.stdout is not None
    with trio.fail_after(WAIT_S):
        said = await trio.to_thread.run_sync(process.stdout.readline, abandon_on_cancel=True)
    return said.rstrip("\n")


@asynccontextmanager
async def opened(
    place: Path,
    *,
    user: str = "ordinary",
    allowed: AllowList | None = None,
    wiring: Wiring | None = None,
    connections: int = DOOR_CONNECTIONS,
) -> AsyncIterator[Opened]:
    """Open a door below this directory."""
    require(user)
    for each in [place, *place.parents]:
        if each.stat().st_uid == os.geteuid() and each != Path("/"):
            each.chmod(each.stat().st_mode | 0o011)  # the ordinary user's bubblewrap passes through
    wiring = wiring or Wiring()
    refused: list[tuple[str, int, str]] = []
    async with open_door(
        upstreams=wiring.upstreams,
        allowed=allow_list("") if allowed is None else allowed,
        refused=lambda host, port, why: refused.append((host, port, why)),
        parent=place,
        owner=owner(user),
        connections=connections,
    ) as door:
        yield Opened(door, wiring, user, refused)
