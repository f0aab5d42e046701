"""A JSON document in a private file: written atomically, and never overwritten if it is not valid."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import orjson
import trio

from supervisor.patience import read_regular
from supervisor.settings.errors import SettingsCorrupt, problem

T = TypeVar("T")

#: Readable and writable for the owner alone: settings of MCP servers hold credentials.
PRIVATE_FILE: Final = 0o600

#: The directory that holds such files.
PRIVATE_DIRECTORY: Final = 0o700

#: Most bytes of a document. Settings are written by hand; a larger file is a mistake or an attack.
MAX_DOCUMENT_BYTES: Final = 4 * 1024 * 1024


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
        directory = self._path.parent
        directory.mkdir(mode=PRIVATE_DIRECTORY, parents=True, exist_ok=True)
        temporary = directory / f".{self._path.name}.{secrets.token_hex(8)}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        try:
            with os.fdopen(os.open(temporary, flags, PRIVATE_FILE), "wb") as file:
                os.fchmod(file.fileno(), PRIVATE_FILE)  # overrides the umask
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self._path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        # The rename itself is durable only with its directory.
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
