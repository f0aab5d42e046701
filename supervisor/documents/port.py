"""What a store of small whole documents offers: settings, profiles, secrets and what else is replaced as a
whole.

They are private files of the state directory (`files.py`), or rows of a database that several servers share
(`supervisor/database/documents.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Protocol

import attrs

Release = Callable[[], None]


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
