"""JSON documents: written atomically, and never overwritten if they are not valid."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, Generic, TypeVar

import attrs
import orjson
import trio

from supervisor.documents.changing import Changing
from supervisor.documents.port import Document, DocumentsUnavailable
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
"""Schema version of the document of a `Collection`."""

_LLM: Final = "llm"
"""The key in agent settings under which each object could be: their secrets are those of a model."""


@attrs.frozen
class _Kept(Generic[T]):
    stamp: Hashable
    value: T | None


class JsonFile(Generic[T]):
    """One JSON document, read and replaced in one worker thread at a time. `parse` converts its content.

    Who changes it holds `lock`. Cancellation waits for the thread: a replacement that has begun is finished.
    """

    def __init__(self, document: Document, parse: Callable[[Any], T]) -> None:
        self._document = document
        self._parse = parse
        self._kept: _Kept[T] | None = None
        self._limiter = trio.CapacityLimiter(1)
        self.lock = Changing(document)

    async def load(self) -> T | None:
        """The content, read now; None when there is none.

        Raises SettingsCorrupt when it cannot be read, is not JSON, or `parse` raises ValueError,
        TypeError or LookupError; DocumentsUnavailable.
        """
        return await trio.to_thread.run_sync(self._load, limiter=self._limiter)

    async def kept(self) -> T | None:
        """The same, read again only where another server has changed it. Treat it as immutable."""
        if self._kept is not None and not self._document.shared:
            return self._kept.value
        return await trio.to_thread.run_sync(self._load_changed, limiter=self._limiter)

    async def replace(self, stored: Any, value: T) -> None:
        """Write durably what `parse` makes `value` of. Raises SettingsError when it is too large; OSError
        leaves the old content."""
        await trio.to_thread.run_sync(self._replace, stored, value, limiter=self._limiter)

    # `_kept` is replaced in the threads, one of which runs at a time: so an older content never comes after a
    # newer one.

    def _load_changed(self) -> T | None:
        kept = self._kept
        if kept is not None and (not self._document.shared or self._document.stamp() == kept.stamp):
            return kept.value
        return self._load()

    def _load(self) -> T | None:
        try:
            found = self._document.read(MAX_DOCUMENT_BYTES + 1)
        except DocumentsUnavailable:
            raise
        except OSError as error:
            raise SettingsCorrupt(self._document.shown, error.strerror or "it cannot be read") from error
        if found is None:
            self._kept = _Kept(None, None)
            return None
        try:
            value = self._parse(orjson.loads(found.data))
        except orjson.JSONDecodeError as error:
            # Without the cause: it holds the document.
            raise SettingsCorrupt(self._document.shown, f"it is not JSON: {error.msg}") from None
        except (ValueError, TypeError, LookupError) as error:
            raise SettingsCorrupt(self._document.shown, str(error)) from error
        self._kept = _Kept(found.stamp, value)
        return value

    def _replace(self, stored: Any, value: T) -> None:
        data = orjson.dumps(stored, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
        if len(data) > MAX_DOCUMENT_BYTES:
            raise problem(("body",), f"Value error, larger than {MAX_DOCUMENT_BYTES} bytes", "value_error")
        self._kept = _Kept(self._document.write(data), value)


@attrs.frozen
class _Stored:
    items: Mapping[str, Mapping[str, Any]]


class Collection:
    """JSON objects by name in one document, kept in memory: LLM profiles, provider connections,
    meta-profiles. `what`: what clients call one; `most`: how many there may be.

    A task that needs several locks takes them in the order agent profiles, LLM profiles, connections or
    meta-profiles, settings: any other order could deadlock.

    Credentials inside are encrypted on the disk with `cipher`, whose errors all methods raise; without one
    they are in the clear. Callers of `replace` must hold `lock`. Readers need no lock: a change becomes
    visible atomically, once it is durable. All methods may raise SettingsCorrupt; such a document is left
    alone.
    """

    def __init__(self, document: Document, cipher: StorageCipher | None, what: str, most: int) -> None:
        self._file = JsonFile(document, self._from_stored)
        self._cipher = cipher
        self._what = what
        self._most = most
        self.lock = self._file.lock

    async def all(self) -> Objects:
        """Everything that is stored."""
        return await self._file.kept() or {}

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
        await self._file.replace(stored, objects)

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
