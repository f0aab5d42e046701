"""The walls of one server's agents: which one, made of what, and why not a stronger one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs

from supervisor.agents.catalog import Descriptor
from supervisor.agents.spawning.confinement import Confinement, can_scope
from supervisor.agents.walls import bubblewrap, landlock, system_calls, user_id
from supervisor.agents.walls.enclosure import Enclosure
from supervisor.agents.walls.further import NO_PATHS, Paths, with_further
from supervisor.agents.walls.mounts import Needs, Outside, mounts
from supervisor.agents.walls.network import VARIABLE as NETWORK_VARIABLE
from supervisor.agents.walls.network import Network, Reachable
from supervisor.agents.walls.outside import outside
from supervisor.agents.walls.wall import VARIABLE, Mechanism, Wall, WallUnavailable

PROBE_SECONDS: Final = 10.0
"""Seconds for one trial of a wall, which takes some milliseconds."""

INSTALL: Final = "Install bubblewrap (Debian, Ubuntu, Fedora: the package bubblewrap)"

USERNS: Final = (
    "Allow user namespaces: on Ubuntu load AppArmor's profile bwrap-userns-restrict, in Docker start the "
    "container with --security-opt seccomp=unconfined --security-opt apparmor=unconfined"
)

NOT_HERE: Final = "agents are started without a server here. Start this one through a server"

ROOT: Final = (
    "Start Ostler as another user, or as root of the machine with Linux 5.12 and a file system with idmapped "
    "mounts"
)


@attrs.frozen(kw_only=True)
class WallsWanted:
    """What an operator asks for. `wall`: None for `guard` where it is available. `reads`, `writes`: further
    paths for all agents. `allowed`: those that settings may name for one. `hidden`: paths with secrets,
    besides the state directory."""

    wall: Wall | None = Wall.OFF
    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()
    allowed: Paths = NO_PATHS
    hidden: tuple[Path, ...] = ()
    reachable: Reachable = attrs.field(factory=Reachable)


@attrs.frozen(kw_only=True)
class Walls:
    """What walls this server's agents get. Made by `build`.

    `wall`: that of an agent whose settings name none. `obstacle`: why it is OFF; None if it is not.
    `reads`, `writes`: further paths for all agents. `allowed`: those that settings may name for one,
    resolved. `reachable`: of the network.
    """

    wall: Wall
    obstacle: str | None = None
    look: Callable[[], Outside] | None = attrs.field(default=None, repr=False)
    """Looks at the machine, at each start: an agent may have made its first login since. Blocks for a
    millisecond."""
    reads: tuple[Path, ...] = ()
    writes: tuple[Path, ...] = ()
    allowed: Paths = NO_PATHS
    reachable: Reachable = attrs.field(factory=Reachable)
    _found: dict[Wall, Mechanism | str] = attrs.field(factory=dict, init=False, repr=False)

    @property
    def mechanism(self) -> Mechanism | None:
        """What `wall` is made of; None for OFF."""
        return self.made_of(self.wall)

    def made_of(self, wall: Wall) -> Mechanism | None:
        """What a wall is made of that `of` returned; None for OFF."""
        found = self._found.get(wall)
        return found if isinstance(found, Mechanism) else None

    def find(self, wall: Wall) -> Mechanism | str:
        """What a wall is made of here, or why it is unavailable and what to do. Blocks for some milliseconds
        the first time."""
        if wall not in self._found:
            network = self.reachable.network is Network.FULL
            self._found[wall] = NOT_HERE if self.look is None else find(wall, self.look(), network=network)
        return self._found[wall]

    def of(self, asked: Wall | None) -> Wall:
        """The wall of an agent whose settings ask for this one. Blocks as `find` does. Raises
        WallUnavailable, also for a weaker one than the server's."""
        if asked is None or asked is self.wall:
            return self.wall
        if asked.strength < self.wall.strength:
            raise WallUnavailable(
                f"acp_walls: {asked} is weaker than this server's {self.wall}. Leave it out, or start "
                f"the server with {VARIABLE}={asked}"
            )
        found = self.find(asked)
        if not isinstance(found, Mechanism):
            raise WallUnavailable(f"acp_walls: {asked} is unavailable here: {found}")
        return asked

    def enclosure(
        self, wall: Wall, needs: Needs, *, network: bool = True, further: Paths = NO_PATHS
    ) -> Enclosure | None:
        """The wall around an agent; None for OFF. `network`: whether it has the machine's. `further`: the
        paths that its settings name. Raises OSError, and WallUnavailable where its workspace holds what the
        wall keeps from it, and for such a path that is not there or not allowed."""
        if wall is Wall.OFF:
            return None
        assert self.look is not None
        mechanism = self.find(wall)
        assert isinstance(mechanism, Mechanism)
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
        if mechanism is Mechanism.LANDLOCK:
            for path in outside.hidden_files:
                if path.is_relative_to(needs.workspace):
                    raise WallUnavailable(
                        f"The workspace {needs.workspace} holds {path}, which Landlock cannot keep from "
                        "agents there. Move it"
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
        needs = with_further(needs, further, self.allowed, outside)
        return enclosure(wall, mechanism, outside, needs, network=network)


def enclosure(
    wall: Wall, mechanism: Mechanism, outside: Outside, needs: Needs, *, network: bool = True
) -> Enclosure:
    """The wall around an agent, made of this. `network`: whether it has the machine's. Looks at directories.
    Raises OSError, ValueError for a wall that cannot be made of it."""
    if mechanism is Mechanism.LANDLOCK:
        if wall is not Wall.STRICT:
            raise ValueError("Landlock's rules only allow, so they make no guard, which shows all but a part")
        return Enclosure(
            wall=wall,
            mechanism=mechanism,
            confinement=confinement(
                reach=landlock.reach(outside, needs), unprivileged=os.geteuid() == 0, others=False
            ),
        )
    owned = user_id.ownership(wall, outside, needs) if mechanism is Mechanism.USER_ID else None
    return Enclosure(
        wall=wall,
        mechanism=mechanism,
        program=shutil.which(bubblewrap.PROGRAM) or bubblewrap.PROGRAM,
        mounts=tuple(mounts(wall, outside, needs)),
        confinement=confinement(ownership=owned),
        network=network,
    )


def _some(path: Path | None) -> tuple[Path, ...]:
    return () if path is None else (path,)


def confinement(*, others: bool = True, **more: Any) -> Confinement:
    """What the kernel refuses everything behind a wall: some system calls (`system_calls`), and where the
    kernel can (Linux 6.12), abstract sockets of programs outside. `others`: whether it may change processes
    that it sees. `more`: fields besides."""
    return Confinement(system_calls=system_calls.program(others=others), scoped=can_scope(), **more)


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
        allowed=wanted.allowed.resolved(),
        reachable=wanted.reachable,
    )
    made = f"{VARIABLE} is off" if found.wall is Wall.OFF else found.find(found.wall)
    if isinstance(made, Mechanism):
        return found
    if wanted.wall not in (None, Wall.OFF):
        raise WallUnavailable(f"{VARIABLE}: {wanted.wall} is unavailable here: {made}")
    if wanted.reachable.network is not Network.FULL:
        raise WallUnavailable(f"{NETWORK_VARIABLE}: {wanted.reachable.network} needs a wall: {made}")
    return attrs.evolve(found, wall=Wall.OFF, obstacle=made)


def find(wall: Wall, outside: Outside, *, network: bool = True) -> Mechanism | str:
    """What a wall is made of here: the first mechanism whose trial works, with the exact profile. Else why
    not, and what to do. `network`: whether agents have the machine's, which a namespace alone takes away."""
    if sys.platform != "linux":
        return "walls are made of Linux' namespaces. Run Ostler on Linux, or in a container"
    reasons = []
    for mechanism in _mechanisms(wall, network=network):
        reason = _obstacle(wall, mechanism, outside)
        if reason is None:
            return mechanism
        reasons.append(reason)
    return reasons[0]


def _mechanisms(wall: Wall, *, network: bool) -> Iterator[Mechanism]:
    root = os.geteuid() == 0
    if root:
        yield Mechanism.USER_ID
    if wall is Wall.STRICT or not root:
        # What `guard` shows belongs to root, and so does the root of a user namespace that root makes.
        yield Mechanism.NAMESPACES
    if wall is Wall.STRICT and network:
        yield Mechanism.LANDLOCK


def _obstacle(wall: Wall, mechanism: Mechanism, outside: Outside) -> str | None:
    """Why a wall cannot be made of this, and what to do; None if it can."""
    if mechanism is Mechanism.LANDLOCK:
        if not can_scope():
            return "this kernel has no Landlock, or one older than Linux 6.12. Use a newer kernel"
    elif shutil.which(bubblewrap.PROGRAM) is None:
        return f"the program {bubblewrap.PROGRAM} is not installed. {INSTALL}"
    with tempfile.TemporaryDirectory(prefix="ostler-wall-") as directory:
        needs = Needs(agent="", workspace=Path(directory).resolve())
        try:
            reason = _try(enclosure(wall, mechanism, outside, needs), directory)
        except OSError as error:
            reason = str(error)
    if reason is None:
        return None
    return f"the trial failed: {reason}. {ROOT if mechanism is Mechanism.USER_ID else USERNS}"


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
