"""The walls of one server's agents: which one, by which program, and why not a stronger one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

import attrs

from supervisor.agents.catalog import Descriptor
from supervisor.agents.spawning.confinement import Confinement, can_scope
from supervisor.agents.walls import bubblewrap, system_calls
from supervisor.agents.walls.enclosure import Enclosure
from supervisor.agents.walls.mounts import Needs, Outside, mounts
from supervisor.agents.walls.network import VARIABLE as NETWORK_VARIABLE
from supervisor.agents.walls.network import Network, Reachable
from supervisor.agents.walls.outside import outside
from supervisor.agents.walls.wall import VARIABLE, Wall, WallUnavailable

PROBE_SECONDS: Final = 10.0
"""Seconds for one trial of a wall, which takes some milliseconds."""

INSTALL: Final = "Install bubblewrap (Debian, Ubuntu, Fedora: the package bubblewrap)"

USERNS: Final = (
    "Allow user namespaces: on Ubuntu load AppArmor's profile bwrap-userns-restrict, in Docker start the "
    "container with --security-opt seccomp=unconfined --security-opt apparmor=unconfined"
)

NOT_HERE: Final = "agents are started without a server here. Start this one through a server"

ROOT: Final = (
    "Ostler runs as root, to whom the machine's files and devices belong. Start it as another user, or use "
    "the wall strict"
)


@attrs.frozen(kw_only=True)
class WallsWanted:
    """What an operator asks for. `wall`: None for `guard` where it is available. `reads`, `writes`: further
    paths for all agents. `hidden`: paths with secrets, besides the state directory."""

    wall: Wall | None = Wall.OFF
    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()
    hidden: tuple[Path, ...] = ()
    reachable: Reachable = attrs.field(factory=Reachable)


@attrs.frozen(kw_only=True)
class Walls:
    """What walls this server's agents get. Made by `build`.

    `wall`: that of an agent whose settings name none. `obstacle`: why it is OFF; None if it is not.
    `reads`, `writes`: further paths for all agents. `reachable`: of the network.
    """

    wall: Wall
    obstacle: str | None = None
    look: Callable[[], Outside] | None = attrs.field(default=None, repr=False)
    """Looks at the machine, at each start: an agent may have made its first login since. Blocks for a
    millisecond."""
    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()
    reachable: Reachable = attrs.field(factory=Reachable)
    _obstacles: dict[Wall, str | None] = attrs.field(factory=dict, init=False, repr=False)

    def why_not(self, wall: Wall) -> str | None:
        """Why a wall is unavailable here, and what to do; None if it is not. Blocks for some milliseconds the
        first time."""
        if wall not in self._obstacles:
            self._obstacles[wall] = NOT_HERE if self.look is None else obstacle(wall, self.look())
        return self._obstacles[wall]

    def of(self, asked: Wall | None) -> Wall:
        """The wall of an agent whose settings ask for this one. Blocks as `why_not` does. Raises
        WallUnavailable, also for a weaker one than the server's."""
        if asked is None or asked is self.wall:
            return self.wall
        if asked.strength < self.wall.strength:
            raise WallUnavailable(
                f"acp_walls: {asked} is weaker than this server's {self.wall}. Leave it out, or start "
                f"the server with {VARIABLE}={asked}"
            )
        reason = self.why_not(asked)
        if reason is not None:
            raise WallUnavailable(f"acp_walls: {asked} is unavailable here: {reason}")
        return asked

    def enclosure(self, wall: Wall, needs: Needs, *, network: bool = True) -> Enclosure | None:
        """The wall around an agent; None for OFF. `network`: whether it has the machine's. Raises
        WallUnavailable where its workspace holds what the wall keeps from it."""
        if wall is Wall.OFF:
            return None
        assert self.look is not None
        outside = self.look()
        asked = needs.asked or needs.workspace
        for path in outside.hidden:
            # An agent may have put a link in the place of its workspace.
            named = any(asked.is_relative_to(each) for each in (path, *outside.names))
            if needs.workspace == path or (needs.workspace.is_relative_to(path) and not named):
                raise WallUnavailable(
                    f"The workspace {asked} leads into {path}, which is kept from agents. Use another "
                    "directory"
                )
        if wall is Wall.STRICT:
            for path in (*outside.hidden, *_some(outside.home)):
                if path.is_relative_to(needs.workspace):
                    raise WallUnavailable(
                        f"The workspace {needs.workspace} holds {path}, which a strict wall keeps from "
                        "agents. Use a directory below it as workspace, or the wall guard"
                    )
        # A program in the state directory itself would show all of that.
        programs = [
            path for path in needs.programs if not any(each.is_relative_to(path) for each in outside.hidden)
        ]
        needs = attrs.evolve(
            needs,
            programs=tuple(programs),
            reads=(*self.reads, *needs.reads),
            writes=(*self.writes, *needs.writes),
        )
        return Enclosure(
            wall=wall,
            program=_program(),
            mounts=tuple(mounts(wall, outside, needs)),
            confinement=confinement(),
            network=network,
        )


def _some(path: Path | None) -> tuple[Path, ...]:
    return () if path is None else (path,)


def confinement() -> Confinement:
    """What the kernel refuses everything behind a wall: some system calls (`system_calls`), and where the
    kernel can (Linux 6.12), abstract sockets of programs outside."""
    return Confinement(system_calls=system_calls.program(), scoped=can_scope())


def build(
    wanted: WallsWanted, state: Path, catalog: Mapping[str, Descriptor], environ: Mapping[str, str]
) -> Walls:
    """Find out which wall this server's agents get, and try it. Blocks for some milliseconds.

    Raises WallUnavailable for a wall that is wanted by name and is unavailable, also for the sake of the
    network.
    """
    found = Walls(
        wall=wanted.wall or Wall.GUARD,
        look=partial(outside, state, catalog, environ, wanted.hidden),
        reads=tuple(path.resolve() for path in wanted.reads if path.exists()),
        writes=tuple(path.resolve() for path in wanted.writes if path.exists()),
        reachable=wanted.reachable,
    )
    reason = f"{VARIABLE} is off" if found.wall is Wall.OFF else found.why_not(found.wall)
    if reason is None:
        return found
    if wanted.wall not in (None, Wall.OFF):
        raise WallUnavailable(f"{VARIABLE}: {wanted.wall} is unavailable here: {reason}")
    if wanted.reachable.network is not Network.FULL:
        raise WallUnavailable(f"{NETWORK_VARIABLE}: {wanted.reachable.network} needs a wall: {reason}")
    return attrs.evolve(found, wall=Wall.OFF, obstacle=reason)


def obstacle(wall: Wall, found: Outside) -> str | None:
    """Why a wall cannot be made here, and what to do; None if it can. Tries the exact profile."""
    if sys.platform != "linux":
        return "walls are made of Linux' namespaces. Run Ostler on Linux, or in a container"
    if wall is Wall.GUARD and os.geteuid() == 0:
        return ROOT
    if shutil.which(bubblewrap.PROGRAM) is None:
        return f"the program {bubblewrap.PROGRAM} is not installed. {INSTALL}"
    with tempfile.TemporaryDirectory(prefix="ostler-wall-") as directory:
        needs = Needs(agent="", workspace=Path(directory).resolve())
        steps = tuple(mounts(wall, found, needs))
        trial = Enclosure(wall=wall, program=_program(), mounts=steps, confinement=confinement())
        reason = _try(trial, directory)
    return None if reason is None else f"the trial failed: {reason}. {USERNS}"


def _program() -> str:
    return shutil.which(bubblewrap.PROGRAM) or bubblewrap.PROGRAM


def _try(wall: Enclosure, directory: str) -> str | None:
    command = wall.confinement.command(wall.command(["true"]))
    try:
        trial = subprocess.run(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PROBE_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    if trial.returncode == 0:
        return None
    lines = trial.stderr.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else f"it ended with status {trial.returncode}"
