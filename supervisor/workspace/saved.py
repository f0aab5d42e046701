"""The workspaces that people keep in their clients' pickers, and directories of such: one document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import attrs

from supervisor.documents.port import Documents
from supervisor.settings.storage.files import JsonFile
from supervisor.stored import check_version

FILE: Final = "workspaces.json"

VERSION: Final = 1

MAX_SAVED: Final = 1000
"""Workspaces, and parents, that are kept. People have tens."""


class TooManySaved(Exception):
    """There is no room for more. The message says so."""


@attrs.frozen
class SavedWorkspace:
    """A workspace, or a directory that holds some. `parent_path` is the one in which it was found."""

    id: str
    name: str
    path: str
    parent_path: str | None = None

    def document(self) -> dict[str, str]:
        """As clients, and the file, have it."""
        found = {"id": self.id, "name": self.name, "path": self.path}
        return found if self.parent_path is None else {**found, "parentPath": self.parent_path}


@attrs.frozen
class Saved:
    """All that is kept, in the order in which it was added."""

    workspaces: tuple[SavedWorkspace, ...] = ()
    parents: tuple[SavedWorkspace, ...] = ()

    def document(self) -> dict[str, list[dict[str, str]]]:
        """As clients have it."""
        return {
            "workspaces": [each.document() for each in self.workspaces],
            "workspaceParents": [each.document() for each in self.parents],
        }


class SavedWorkspaces:
    """Keeps them. All methods raise SettingsCorrupt for a document that is not ours, and leave it as it is;
    and DocumentsUnavailable."""

    def __init__(self, documents: Documents) -> None:
        self._file = JsonFile(documents.document(FILE), _parse)
        self._lock = self._file.lock

    async def all(self) -> Saved:
        """What is kept."""
        return await self._file.load() or Saved()

    async def paths(self) -> Iterable[str]:
        """The paths of the workspaces."""
        return [each.path for each in (await self.all()).workspaces]

    async def add(
        self, workspaces: Iterable[SavedWorkspace] = (), parents: Iterable[SavedWorkspace] = ()
    ) -> Saved:
        """Add what is not there yet, by its path. Raises TooManySaved, OSError."""
        async with self._lock:
            saved = await self.all()
            more = Saved(_joined(saved.workspaces, workspaces), _joined(saved.parents, parents))
            if more != saved:
                await self._keep(more)
            return more

    async def remove(self, *, workspace: str | None = None, parent: str | None = None) -> bool:
        """Remove what has this path. Returns False if there is none. Raises OSError."""
        async with self._lock:
            saved = await self.all()
            less = Saved(
                tuple(each for each in saved.workspaces if each.path != workspace),
                tuple(each for each in saved.parents if each.path != parent),
            )
            if less == saved:
                return False
            await self._keep(less)
            return True

    async def _keep(self, saved: Saved) -> None:
        await self._file.replace({"schema_version": VERSION, **saved.document()}, saved)


def _joined(there: tuple[SavedWorkspace, ...], more: Iterable[SavedWorkspace]) -> tuple[SavedWorkspace, ...]:
    found = {each.path: each for each in there}
    for each in more:
        found.setdefault(each.path, each)
    if len(found) > max(MAX_SAVED, len(there)):
        raise TooManySaved(f"There can be {MAX_SAVED} of them. Remove some first.")
    return tuple(found.values())


def _parse(document: Any) -> Saved:
    check_version(document, VERSION, key="schema_version")
    return Saved(tuple(map(_item, document["workspaces"])), tuple(map(_item, document["workspaceParents"])))


def _item(found: Any) -> SavedWorkspace:
    if not isinstance(found, Mapping):
        raise TypeError("an entry is not an object")
    parent = found.get("parentPath")
    texts = (found["id"], found["name"], found["path"])
    if not all(isinstance(text, str) for text in texts) or not isinstance(parent, str | None):
        raise TypeError("an entry is not made of strings")
    return SavedWorkspace(*texts, parent)
