"""The two ends of a copy, by one port: rows in their order, in bounded parts. Everything blocks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, Protocol

import attrs

Row = tuple[Any, ...]


@attrs.frozen
class Table:
    """A table of which a conversation has rows. `order`: the columns after the conversation, that identify
    and order a row; `columns`: all columns after the conversation, those first. `types`: PostgreSQL's."""

    name: str
    order: tuple[str, ...]
    columns: tuple[str, ...]
    types: tuple[str, ...]


EVENTS: Final = Table(
    "events",
    ("seq",),
    ("seq", "id", "kind", "source", "timestamp", "body", "updates"),
    ("int8", "text", "text", "text", "text", "bytea", "bytea"),
)
BLOBS: Final = Table("blobs", ("id",), ("id", "media_type", "data"), ("text", "text", "bytea"))
COUNTS: Final = Table("kind_counts", ("kind", "block"), ("kind", "block", "events"), ("text", "int8", "int8"))

TABLES: Final = (EVENTS, BLOBS, COUNTS)

RECORD: Final = ("id", "record", "status", "title", "created_at", "updated_at", "parent_id")
"""Columns of a conversation, besides its key. Its epoch is that of the servers of one end, and not copied."""

CURSORS: Final = ("conversation", "receiver", "seq", "open")

DOCUMENTS: Final = (
    "settings.json",
    "agent-profiles.json",
    "llm-profiles.json",
    "provider-connections.json",
    "meta-profiles.json",
    "secrets.json",
    "mcp.json",
    "mcp-logins.json",
    "deletions.json",
    "workspaces.json",
)
"""Names of documents. The master key is none of them."""

PART_ROWS: Final = 500
PART_BYTES: Final = 4 * 1024 * 1024
"""Most rows, and bytes, that are held and written at once; a larger row is alone."""


class CannotCopy(Exception):
    """The copy cannot begin, or cannot continue. One line for people, without passwords."""


class Source(Protocol):
    """Where the state is. All methods may raise CannotCopy."""

    @property
    def identity(self) -> str:
        """What tells it from other ends, the same at each opening."""

    def conversations(self, after: int, most: int) -> list[tuple[int, Row]]:
        """The keys of at most so many conversations behind a key, by key, each with its RECORD."""

    def rows(self, table: Table, key: int, after: Row | None = None) -> Iterator[Row]:
        """A conversation's rows in order, those behind `after` alone. Read it to its end, or close it, before
        this end is used otherwise."""

    def document(self, name: str) -> bytes | None:
        """A document."""

    def cursors(self) -> Iterator[Row]:
        """The cursors of webhooks, in order. To be read in the same way."""

    def close(self) -> None:
        """Let others use it."""


class Target(Source, Protocol):
    """Where the state goes."""

    def begin(self, source: str) -> None:
        """Note the copy from there. Raises CannotCopy where something is in it, unless this very copy has
        begun before."""

    def last_conversation(self) -> int:
        """The key of the last conversation, 0 where there is none."""

    def last(self, table: Table, key: int) -> Row | None:
        """The `order` of the last row that a conversation has."""

    def insert(self, table: Table, key: int, rows: Sequence[Row]) -> None:
        """Add rows, all of them or none."""

    def insert_conversation(self, key: int, record: Row, last_seq: int) -> None:
        """Add a conversation, whose rows are there."""

    def replace_document(self, name: str, data: bytes) -> None:
        """Write a document."""

    def replace_cursors(self, rows: Iterable[Row]) -> None:
        """Write these cursors in place of all."""

    def end(self) -> None:
        """Make it what servers use."""


def parts(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Cut rows into parts of at most `PART_ROWS` and `PART_BYTES`."""
    part: list[Row] = []
    size = 0
    for row in rows:
        more = sum(len(value) for value in row if isinstance(value, bytes | str))
        if part and (size + more > PART_BYTES or len(part) == PART_ROWS):
            yield part
            part, size = [], 0
        part.append(row)
        size += more
    if part:
        yield part
