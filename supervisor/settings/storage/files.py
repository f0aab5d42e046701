"""JSON documents in private files: written atomically, and never overwritten if they are not valid."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import attrs
import orjson
import trio

from supervisor.patience import read_regular
from supervisor.private_files import replace_private
from supervisor.settings.errors import SettingsCorrupt, TooManyProfiles, UnknownProfile, problem
from supervisor.settings.exposure import StorageCipher, seal, unseal
from supervisor.stored import structure

T = TypeVar("T")

MAX_DOCUMENT_BYTES: Final = 4 * 1024 * 1024
"""Most bytes of a document. Settings are written by hand; a larger file is a mistake or an attack."""

Object = Mapping[str, Any]

Objects = Mapping[str, Object]
"""By name. Immutable by convention: a change makes another mapping."""

FORMAT_VERSION: Final = 1
"""Schema version of the file of a `Collection`."""

_LLM: Final = "llm"
"""The key in agent settings under which each object could be: their secrets are those of a model."""


class JsonFile:
    """One JSON file, read and replaced in one worker thread at a time. Callers serialise changes.

    Cancellation waits for the thread: a replacement that has begun is finished.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._limiter = trio.CapacityLimiter(1)

    async def load(self, parse: Callable[[Any], T]) -> T | None:
        """The content, converted by `parse`; None when there is no file.

        Raises SettingsCorrupt when it cannot be read, is not JSON, or `parse` raises ValueError,
        TypeError or LookupError.
        """
        return await trio.to_thread.run_sync(self._load, parse, limiter=self._limiter)

    async def replace(self, document: Any) -> None:
        """Write durably. Raises SettingsError when it is too large; OSError leaves the old content."""
        await trio.to_thread.run_sync(self._replace, document, limiter=self._limiter)

    def _load(self, parse: Callable[[Any], T]) -> T | None:
        try:
            # A lease that another process holds on it is an error, not a wait of most of a minute.
            data = read_regular(self._path, MAX_DOCUMENT_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise SettingsCorrupt(self._path, error.strerror or "it cannot be read") from error
        try:
            return parse(orjson.loads(data))
        except orjson.JSONDecodeError as error:
            # Without the cause: it holds the document.
            raise SettingsCorrupt(self._path, f"it is not JSON: {error.msg}") from None
        except (ValueError, TypeError, LookupError) as error:
            raise SettingsCorrupt(self._path, str(error)) from error

    def _replace(self, document: Any) -> None:
        data = orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        if len(data) > MAX_DOCUMENT_BYTES:
            raise problem(("body",), f"Value error, larger than {MAX_DOCUMENT_BYTES} bytes", "value_error")
        replace_private(self._path, data)


@attrs.frozen
class _Stored:
    items: Mapping[str, Mapping[str, Any]]


class Collection:
    """JSON objects by name in one file, read once and then kept in memory: LLM profiles, provider
    connections, meta-profiles. `what`: what clients call one; `most`: how many there may be.

    A task that needs several locks takes them in the order agent profiles, LLM profiles, connections or
    meta-profiles, settings: any other order could deadlock.

    Credentials inside are encrypted on the disk with `cipher`, whose errors all methods raise; without one
    they are in the clear. Callers of `replace` must hold `lock`. Readers need no lock: a change becomes
    visible atomically, once it is durable. All methods may raise SettingsCorrupt; such a file is left alone.
    """

    def __init__(self, path: Path, cipher: StorageCipher | None, what: str, most: int) -> None:
        self._file = JsonFile(path)
        self._cipher = cipher
        self._what = what
        self._most = most
        self._objects: Objects | None = None
        self.lock = trio.Lock()

    async def all(self) -> Objects:
        """Everything that is stored."""
        if self._objects is None:
            found = await self._file.load(self._from_stored) or {}
            if self._objects is None:  # a change may have been made meanwhile
                self._objects = found
        return self._objects

    async def get(self, name: str) -> Object:
        """The object of this name. Raises UnknownProfile."""
        found = (await self.all()).get(name)
        if found is None:
            raise UnknownProfile(f"There is no {self._what} {name!r}.")
        return found

    async def put(self, name: str, found: Object, verb: str = "save") -> None:
        """Add an object, or replace the one of this name. Raises TooManyProfiles, and as `replace`."""
        async with self.lock:
            objects = await self.all()
            if name not in objects and len(objects) >= self._most:
                raise TooManyProfiles(
                    f"There are {self._most} {self._what}s already. Delete one before you {verb} another."
                )
            await self.replace({**objects, name: found})

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
