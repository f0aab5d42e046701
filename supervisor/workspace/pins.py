"""Pins each workspace to the directory that its path first resolved to, across restarts.

They are facts of one machine's disk, so they stay a file where several servers share a database.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog
import trio

from supervisor.documents.files import FileDocument
from supervisor.settings.errors import SettingsError
from supervisor.settings.storage.files import JsonFile
from supervisor.stored import check_version

log = structlog.get_logger(__name__)

FILE: Final = "workspace-roots.json"

VERSION: Final = 1

FORMER_FILE: Final = "workspace-walls.json"
"""The former file, with `walls` instead of `roots`: migrated once, if the present one is missing."""


class Pins:
    """The resolved directory of each workspace, by its path as named. Without a state directory in memory
    alone.

    `open` raises SettingsCorrupt for an invalid file: the roots are then unknown.
    """

    def __init__(self, state: Path | None = None) -> None:
        self._file = None if state is None else JsonFile(FileDocument(state / FILE), _parse)
        self._former = None if state is None else state / FORMER_FILE
        self._opened = self._file is None
        self._lock = trio.Lock()
        self._kept: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._kept)

    async def open(self) -> None:
        """Load the file of an earlier run. A second call does nothing."""
        async with self._lock:
            if self._file is not None and not self._opened:
                found = await self._file.load()
                if found is None:
                    found = await self._take_over()
                self._kept = {**found, **self._kept}
                self._opened = True

    async def _take_over(self) -> dict[str, str]:
        """Migrate the file of an earlier release, and return its content."""
        assert self._file is not None
        assert self._former is not None
        found = await JsonFile(FileDocument(self._former), partial(_parse, name="walls")).load()
        if found is None:
            return {}
        try:
            await self._store(found)
            await trio.to_thread.run_sync(self._former.unlink)
        except (OSError, SettingsError) as error:  # it is read again next time
            log.warning("cannot rename the file of the roots of workspaces", reason=str(error))
        return found

    async def _store(self, roots: Mapping[str, str]) -> None:
        assert self._file is not None
        await self._file.replace({"version": VERSION, "roots": roots}, dict(roots))

    def snapshot(self) -> Mapping[str, str]:
        """A copy of the present pins."""
        return dict(self._kept)

    async def keep(self, found: Mapping[str, str], gone: Iterable[str]) -> dict[str, str]:
        """Pin newly found directories, and drop the pins in `gone`. Existing pins win.

        Returns the pins of all found names, stored durably. If the disk cannot be written, that is logged,
        and they last until the restart.
        """
        for name in gone:
            if name not in found:
                self._kept.pop(name, None)
        new = {name: self._kept.setdefault(name, target) for name, target in found.items()}
        if new and self._file is not None:
            async with self._lock:
                try:
                    await self._store(self._kept)
                except (OSError, SettingsError) as error:
                    log.warning(
                        "cannot store the roots of workspaces; a restart forgets them", reason=str(error)
                    )
        return new


def _parse(document: Any, name: str = "roots") -> dict[str, str]:
    check_version(document, VERSION)
    roots = document[name]
    if not isinstance(roots, Mapping) or not all(isinstance(each, str) for each in roots.values()):
        raise TypeError(f"{name} is not an object of texts")
    return dict(roots)
