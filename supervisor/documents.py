"""Small whole documents: settings, profiles, secrets and what else is read and replaced as a whole.

They are private files of the state directory, or rows of a database that several servers share
(`supervisor/database/documents.py`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from pathlib import Path
from types import TracebackType
from typing import Final, Protocol

import attrs
import trio

from supervisor.patience import read_regular
from supervisor.private_files import create_private, replace_private
from supervisor.shared_files import read_shared, try_lock

Release = Callable[[], None]

LOCK_SECONDS: Final = 10.0
"""Seconds to wait for another server that changes a document: each change takes milliseconds."""

LOCK_LOOK_SECONDS: Final = 0.01


class DocumentsUnavailable(OSError):
    """The documents cannot be read or written now; that passes. The message is one line for people."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.strerror = reason


@attrs.frozen
class Content:
    """The bytes of a document. `stamp` is another one after each change."""

    data: bytes = attrs.field(repr=False)
    stamp: Hashable


class Document(Protocol):
    """One document. All methods block: call them in a thread. They raise OSError, of which
    DocumentsUnavailable passes."""

    @property
    def shown(self) -> str:
        """Where it is, for messages."""

    @property
    def shared(self) -> bool:
        """Whether other servers change it, too. What is kept of it in memory then counts only while `stamp`
        is the same."""

    def exists(self) -> bool:
        """Whether there is one, readable or not."""

    def stamp(self) -> Hashable:
        """The stamp of the present content; None where there is none."""

    def read(self, most: int) -> Content | None:
        """The first `most` bytes; None where there is none."""

    def write(self, data: bytes) -> Hashable:
        """Replace it as a whole and durably; the new stamp. Where it is shared, the caller holds its lock."""

    def create(self, data: bytes) -> bool:
        """Write it unless it exists; whether it was written."""

    def try_lock(self, part: str = "") -> Release | None:
        """Try to lock it among all who change it: returns what releases it, which raises nothing, or None if
        another one has it. `part`: locks one of its entries instead."""


class Documents(Protocol):
    """All documents of a server, by the names of their files in a state directory."""

    def document(self, name: str, *, by_programs: bool = False) -> Document:
        """The document of this name. `by_programs`: where it is a file, commands change it, too."""

    def close(self) -> None:
        """Close what is open. Blocks."""


@attrs.frozen
class FileDocument:
    """A file that one process owns: its lock is free."""

    path: Path
    shared: bool = attrs.field(default=False, init=False)

    @property
    def shown(self) -> str:
        """The path."""
        return str(self.path)

    def exists(self) -> bool:
        """As a Document."""
        return self.path.exists()

    def stamp(self) -> Hashable:
        """As a Document: always the same."""
        return None

    def read(self, most: int) -> Content | None:
        """As a Document. A lease that another process holds on it is an error, not a wait of most of a
        minute."""
        try:
            return Content(read_regular(self.path, most), None)
        except FileNotFoundError:
            return None

    def write(self, data: bytes) -> Hashable:
        """As a Document."""
        replace_private(self.path, data)
        return None

    def create(self, data: bytes) -> bool:
        """As a Document."""
        return create_private(self.path, data)

    def try_lock(self, part: str = "") -> Release | None:
        """As a Document."""
        return _nothing


@attrs.frozen
class ProgramsFile(FileDocument):
    """A file that commands change, too, and perhaps people: the lock is a separate file, since this one is
    replaced. What is kept of it in memory never counts."""

    def read(self, most: int) -> Content | None:
        """As a Document. Raises UnusableError for what is not a regular file."""
        try:
            data, info = read_shared(self.path, most)
        except FileNotFoundError:
            return None
        return Content(data, (info.st_ino, info.st_mtime_ns, info.st_size, info.st_dev))

    def write(self, data: bytes) -> Hashable:
        """As a Document. A link stays a link: people keep such files somewhere else."""
        replace_private(Path(os.path.realpath(self.path)), data)
        return None

    def try_lock(self, part: str = "") -> Release | None:
        """As a Document. The directory is created if necessary."""
        name = f"{self.path.name}.{part}.lock" if part else f"{self.path.name}.lock"
        descriptor = try_lock(self.path.with_name(name))
        return None if descriptor is None else lambda: os.close(descriptor)


@attrs.frozen
class FileDocuments:
    """The documents in one state directory."""

    state: Path

    def document(self, name: str, *, by_programs: bool = False) -> Document:
        """As Documents."""
        path = self.state / name
        return ProgramsFile(path) if by_programs else FileDocument(path)

    def close(self) -> None:
        """As Documents: nothing is open."""


class Changing:
    """The lock of those who change a document: of the tasks of this server, `here`, and of all servers.

    Entering raises DocumentsUnavailable after `LOCK_SECONDS` of waiting for another server. Cancellation
    leaves nothing locked.
    """

    def __init__(self, document: Document) -> None:
        self.here = trio.Lock()
        """Enough for a task that must not meet a change half done: it keeps other servers from nothing."""
        self._document = document
        self._release: Release = _nothing
        self._limiter = trio.CapacityLimiter(1)

    async def __aenter__(self) -> None:
        await self.here.acquire()
        if self._document.shared:
            try:
                self._release = await self._locked()
            except BaseException:
                self.here.release()
                raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        release, self._release = self._release, _nothing
        try:
            if self._document.shared:
                with trio.CancelScope(shield=True):
                    await trio.to_thread.run_sync(release, limiter=self._limiter)
        finally:
            self.here.release()

    async def _locked(self) -> Release:
        with trio.move_on_after(LOCK_SECONDS):
            while True:
                release = await trio.to_thread.run_sync(self._document.try_lock, limiter=self._limiter)
                if release is not None:
                    return release
                await trio.sleep(LOCK_LOOK_SECONDS)
        raise DocumentsUnavailable(
            f"another server has been changing {self._document.shown} for {LOCK_SECONDS:g} s; try again"
        )


def _nothing() -> None:
    """Release what was not locked."""
