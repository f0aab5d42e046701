"""A wall around one agent: how its programs are started."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs

from supervisor.agents.spawning.confinement import Confinement
from supervisor.agents.walls import bubblewrap
from supervisor.agents.walls.mounts import Kind, Mount
from supervisor.agents.walls.wall import Wall


@attrs.frozen(kw_only=True)
class Enclosure:
    """What `process.spawn` starts an agent's programs with. `program`: where bubblewrap is. `confinement`:
    for bubblewrap, and so for everything inside."""

    wall: Wall
    program: str
    mounts: tuple[Mount, ...] = attrs.field(repr=False)
    confinement: Confinement
    network: bool = True
    """Whether it has the machine's network."""

    def command(self, argv: Sequence[str]) -> list[str]:
        """The command that runs `argv` behind the wall, in the directory in which it is started."""
        return bubblewrap.command(self.program, self.mounts, argv, network=self.network)

    def showing(self, directory: Path) -> Enclosure:
        """The same with one more directory, which is read-only inside."""
        sealed = [each for each in self.mounts if each.kind is Kind.SEALED]
        others = [each for each in self.mounts if each.kind is not Kind.SEALED]
        shown = Mount(Kind.READ_ONLY, directory, directory)
        return attrs.evolve(self, mounts=(*others, shown, *sealed))
