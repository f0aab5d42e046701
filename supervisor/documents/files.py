"""Documents as private files of the state directory."""

from __future__ import annotations

import os
from collections.abc import Hashable
from pathlib import Path

import attrs

from supervisor.documents.port import Content, Document, Release
from supervisor.documents.shared_files import read_shared, try_lock
from supervisor.private_files import create_private, replace_private


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
        from supervisor.patience import read_regular  # with Trio, which few commands need

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
        return _release


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


def _release() -> None:
    """Release what was not locked."""
