"""Where each workspace was when it was first seen: kept over restarts, so that no restart moves its root."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import structlog
import trio

from supervisor.settings import SettingsError
from supervisor.settings.storage.files import JsonFile

log = structlog.get_logger(__name__)

FILE: Final = "workspace-roots.json"

VERSION: Final = 1

FORMER_FILE: Final = "workspace-walls.json"
"""Its name before, with `walls` for `roots`: taken over once where the other is missing."""


class Pins:
    """By workspace, as it was named, the directory that it was. In memory alone without a state directory.

    `open` raises SettingsCorrupt for a file that is not ours: what the roots were is not known then.
    """

    def __init__(self, state: Path | None = None) -> None:
        self._file = None if state is None else JsonFile(state / FILE)
        self._former = None if state is None else state / FORMER_FILE
        self._opened = self._file is None
        self._lock = trio.Lock()
        self._kept: dict[str, str] = {}

    def __len__(self) -> int:
        return len(self._kept)

    async def open(self) -> None:
        """Read what an earlier server has kept; nothing the second time."""
        async with self._lock:
            if self._file is not None and not self._opened:
                found = await self._file.load(_parse)
                if found is None:
                    found = await self._take_over()
                self._kept = {**found, **self._kept}
                self._opened = True

    async def _take_over(self) -> dict[str, str]:
        """What an earlier release has kept, under the present name from now on."""
        assert self._file is not None
        assert self._former is not None
        found = await JsonFile(self._former).load(partial(_parse, name="walls"))
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
        await self._file.replace({"version": VERSION, "roots": roots})

    def snapshot(self) -> Mapping[str, str]:
        """All of them as they are now."""
        return dict(self._kept)

    async def keep(self, found: Mapping[str, str], gone: Iterable[str]) -> dict[str, str]:
        """Keep what was found, unless it has been seen before, and forget what is gone.

        Returns what counts for those that were found. It is on the disk then, unless that takes nothing: the
        roots hold until the restart all the same.
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
    if document["version"] != VERSION:
        raise ValueError("it was written by another version of Ostler")
    roots = document[name]
    if not isinstance(roots, Mapping) or not all(isinstance(each, str) for each in roots.values()):
        raise TypeError(f"{name} is not an object of texts")
    return dict(roots)
