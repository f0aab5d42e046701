"""JSON objects by name in one private file: LLM profiles, provider connections, meta-profiles."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import attrs
import trio

from supervisor.settings.exposure import StorageCipher, seal, unseal
from supervisor.settings.storage.files import JsonFile
from supervisor.stored import structure

Objects = Mapping[str, Mapping[str, Any]]
"""By name. Immutable by convention: a change makes another mapping."""

FORMAT_VERSION: Final = 1
"""Schema version of the file."""

_LLM: Final = "llm"
"""The key in agent settings under which each object could be: their secrets are those of a model."""


@attrs.frozen
class _Stored:
    items: Mapping[str, Mapping[str, Any]]


class Collection:
    """The objects of one file, read once and then kept in memory.

    Credentials inside are encrypted on the disk with `cipher`, whose errors both methods raise;
    without one they are in the clear. Writers must hold `lock`. Readers need no lock: a change becomes
    visible atomically, once it is durable. Both methods may raise SettingsCorrupt; such a file is left alone.
    """

    def __init__(self, path: Path, cipher: StorageCipher | None) -> None:
        self._file = JsonFile(path)
        self._cipher = cipher
        self._objects: Objects | None = None
        self.lock = trio.Lock()

    async def all(self) -> Objects:
        """Everything that is stored."""
        if self._objects is None:
            found = await self._file.load(self._from_stored) or {}
            if self._objects is None:  # a change may have been made meanwhile
                self._objects = found
        return self._objects

    async def replace(self, objects: Objects) -> None:
        """Store these instead, durably. Raises SettingsError when they are too large, and OSError."""
        # In a thread: the first encryption loads a large library.
        stored = await trio.to_thread.run_sync(self._to_stored, objects)
        await self._file.replace(stored)
        self._objects = objects

    def _to_stored(self, objects: Objects) -> dict[str, Any]:
        items = {
            name: found if self._cipher is None else seal({_LLM: found}, self._cipher)[_LLM]
            for name, found in sorted(objects.items())
        }
        return {"version": FORMAT_VERSION, "items": items}

    def _from_stored(self, obj: Any) -> Objects:
        objects = structure(_Stored, obj, FORMAT_VERSION).items
        if self._cipher is None:
            return objects
        return {name: unseal({_LLM: found}, self._cipher)[_LLM] for name, found in objects.items()}
