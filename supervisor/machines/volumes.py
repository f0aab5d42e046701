"""Directories that several servers see: OSTLER_VOLUMES, and a marker in each that proves it.

What is on a volume comes along when a conversation moves to another server with that volume.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Final

import attrs

from supervisor.database.connection import Connection
from supervisor.machines.errors import MachinesRefused
from supervisor.machines.membership import stored
from supervisor.patience import read_regular
from supervisor.private_files import create_private

VARIABLE: Final = "OSTLER_VOLUMES"

MARKER: Final = ".ostler-volume"
"""In the top directory of a volume: its id, at random."""

MARKER_BYTES: Final = 16

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")


@attrs.frozen
class Volume:
    """A volume, and where this server has it."""

    name: str
    path: Path


@attrs.frozen
class Volumes:
    """The volumes of this server."""

    volumes: tuple[Volume, ...] = ()

    def volume_of(self, path: PurePath) -> str | None:
        """Return the name of the volume that an absolute path is on, None for no volume. Of volumes within
        each other the inner one counts. Links are not followed: the caller has resolved them."""
        place = PurePath(os.path.normpath(path))
        found = [each for each in self.volumes if place.is_relative_to(each.path)]
        return max(found, key=lambda each: len(each.path.parts)).name if found else None


def parse(text: str) -> Volumes:
    """Read `name=path,...`. Raises ValueError, whose message says what is wrong."""
    found: list[Volume] = []
    for part in filter(None, (each.strip() for each in text.split(","))):
        name, equals, place = part.partition("=")
        if not equals or not _NAME.fullmatch(name):
            raise ValueError(f"{part!r} is not name=path, with a name of lower-case letters, digits and -")
        if not place.startswith("/"):
            raise ValueError(f"the path of {name} is not absolute")
        volume = Volume(name, Path(os.path.normpath(place)))
        if any(volume.name == each.name or volume.path == each.path for each in found):
            raise ValueError(f"{part} is there twice, by its name or its path")
        found.append(volume)
    return Volumes(tuple(found))


def prove(connection: Connection, volumes: Sequence[Volume]) -> None:
    """Compare the marker of each volume with the one that the first server stored, which also makes it.

    Blocks as long as the volume does. Raises MachinesRefused, psycopg.Error.
    """
    for volume in volumes:
        try:
            _prove(connection, volume)
        except OSError as error:
            reason = error.strerror or error
            raise MachinesRefused(f"{VARIABLE}: {volume.path} cannot be used: {reason}") from None


def _prove(connection: Connection, volume: Volume) -> None:
    key = f"volume:{volume.name}"
    row = connection.execute("SELECT value FROM meta WHERE name = %s", (key,)).fetchone()
    if not volume.path.is_dir():  # a marker would create it
        raise MachinesRefused(f"{VARIABLE}: {volume.path} is not a directory; mount {volume.name} there")
    marker = volume.path / MARKER
    if row is None:
        create_private(marker, secrets.token_hex(MARKER_BYTES).encode() + b"\n")
        known = stored(connection, key, _read(marker))
    else:
        known = str(row[0])
    if not marker.exists() or _read(marker) != known:
        raise MachinesRefused(
            f"{VARIABLE}: {volume.path} is not the volume {volume.name} of the other servers, by its "
            f"{MARKER}; mount that one there, or give this one another name"
        )


def _read(marker: Path) -> str:
    return read_regular(marker, 2 * MARKER_BYTES + 1).decode("ascii", "replace").strip()
