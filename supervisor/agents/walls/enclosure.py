"""A wall around one agent: how its programs are started."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs

from supervisor.agents.spawning.confinement import Confinement
from supervisor.agents.walls import bubblewrap
from supervisor.agents.walls.mounts import Kind, Mount
from supervisor.agents.walls.wall import Mechanism, Wall


@attrs.frozen(kw_only=True)
class Enclosure:
    """What `process.spawn` starts an agent's programs with. `confinement`: for everything inside, and for
    bubblewrap. `program`: where bubblewrap is; unused with Landlock, as `mounts` and `network`."""

    wall: Wall
    mechanism: Mechanism = Mechanism.NAMESPACES
    confinement: Confinement
    program: str = bubblewrap.PROGRAM
    mounts: tuple[Mount, ...] = attrs.field(default=(), repr=False)
    network: bool = True
    """Whether it has the machine's network."""

    @property
    def namespaced(self) -> bool:
        """Whether it has a PID namespace of its own."""
        return self.mechanism is not Mechanism.LANDLOCK

    @property
    def user(self) -> int | None:
        """Its user id, where that is its own."""
        return None if self.confinement.ownership is None else self.confinement.ownership.user

    def command(self, argv: Sequence[str]) -> list[str]:
        """The command that runs `argv` behind the wall, in the directory in which it is started."""
        if not self.namespaced:
            return list(argv)
        return bubblewrap.command(self.program, self.mounts, argv, network=self.network, user=self.user)

    def showing(self, directory: Path) -> Enclosure:
        """The same with one more directory, which is read-only inside."""
        sealed = [each for each in self.mounts if each.kind is Kind.SEALED]
        others = [each for each in self.mounts if each.kind is not Kind.SEALED]
        shown = Mount(Kind.READ_ONLY, directory, directory)
        confinement = self.confinement
        if confinement.ownership is not None:
            owned = attrs.evolve(confinement.ownership, paths=(*confinement.ownership.paths, directory))
            confinement = attrs.evolve(confinement, ownership=owned)
        return attrs.evolve(self, mounts=(*others, shown, *sealed), confinement=confinement)
