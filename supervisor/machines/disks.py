"""On which disk a directory is: one of this server alone, or a volume that other servers see, too. Pure.

A disk is a text: `server:NAME:INSTANCE` or `volume:NAME`. A conversation keeps that of its workspace, and its
session that of the agent's data. So a server that takes a conversation over knows whether both came along,
and no prompt goes into a directory that is only empty here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import attrs

from supervisor.machines.volumes import Volumes

DATA_VOLUME: Final = "data"
"""The volume that holds the data of agents, if there is one of this name."""

_SERVER: Final = "server"
_VOLUME: Final = "volume"


@attrs.frozen(kw_only=True)
class Disks:
    """The disks of one server. `name` and `instance` are the server's."""

    name: str
    instance: str
    volumes: Volumes = attrs.field(factory=Volumes)

    @property
    def own(self) -> str:
        """The disk of this server alone."""
        return f"{_SERVER}:{self.name}:{self.instance}"

    @property
    def of_data(self) -> str:
        """The disk of the agents' data."""
        return self.own if self.data is None else f"{_VOLUME}:{DATA_VOLUME}"

    @property
    def data(self) -> Path | None:
        """The directory of the volume for the agents' data."""
        return next((each.path for each in self.volumes.volumes if each.name == DATA_VOLUME), None)

    def of(self, path: str | Path) -> str:
        """The disk of a directory."""
        volume = self.volumes.volume_of(Path(path))
        return self.own if volume is None else f"{_VOLUME}:{volume}"

    def has(self, disk: str) -> bool:
        """Whether this server sees that disk. An earlier start in the same state directory counts."""
        kind, _, rest = disk.partition(":")
        if kind == _VOLUME:
            return any(each.name == rest for each in self.volumes.volumes)
        return rest.rpartition(":")[2] == self.instance


def shown(disk: str) -> str:
    """A disk, for people."""
    kind, _, rest = disk.partition(":")
    return f"the volume {rest}" if kind == _VOLUME else f"the disk of the server {rest.rpartition(':')[0]}"
