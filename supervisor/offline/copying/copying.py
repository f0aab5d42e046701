"""The copy: conversation by conversation, then the documents and cursors, then all of it compared.

A conversation's own row is written last, and conversations in their order: so a copy that was killed
continues behind the last row that it wrote.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import zip_longest
from typing import Final

import attrs

from supervisor.offline.copying.ends import (
    BLOBS,
    DOCUMENTS,
    EVENTS,
    TABLES,
    CannotCopy,
    Row,
    Source,
    Target,
    parts,
)

PAGE: Final = 100
"""Conversations whose records are read at once: one has 16 MiB at most, and usually some KiB."""


@attrs.frozen
class Copied:
    """What is in the target now, as it is in the source."""

    conversations: int
    events: int
    blobs: int
    documents: int
    cursors: int


def copy(source: Source, target: Target, progress: Callable[[str, int], None]) -> Copied:
    """Copy everything, and compare it. `progress` gets what is done, and the number of conversations so far.

    Raises CannotCopy. A call after one that failed or was killed continues where it was. No server uses the
    target before the comparison succeeded.
    """
    target.begin(source.identity)
    done = target.last_conversation()
    for number, (key, record) in enumerate(_conversations(source, done), start=1):
        last_seq = -1
        for table in TABLES:
            for part in parts(source.rows(table, key, target.last(table, key))):
                target.insert(table, key, part)
            if table is EVENTS and (last := target.last(table, key)) is not None:
                last_seq = int(last[0])
        target.insert_conversation(key, record, last_seq)
        progress("copied", number)
    for name in DOCUMENTS:
        data = source.document(name)
        if data is not None:
            target.replace_document(name, data)
    target.replace_cursors(source.cursors())
    found = _compared(source, target, progress)
    target.end()
    return found


def _conversations(end: Source, after: int = 0) -> Iterator[tuple[int, Row]]:
    while found := end.conversations(after, PAGE):
        yield from found
        after = found[-1][0]


@attrs.define
class _Digest:
    """The hash of rows, and their number."""

    hash: str
    rows: int


def _compared(source: Source, target: Target, progress: Callable[[str, int], None]) -> Copied:
    """Raises CannotCopy where the two differ."""
    conversations, totals = 0, dict.fromkeys(TABLES, 0)
    for here, there in zip_longest(_conversations(source), _conversations(target)):
        if here is None or there is None or here[0] != there[0]:
            raise _different("the conversations")
        same = here[1] == there[1]
        for table in TABLES:
            digest = _digest(source.rows(table, here[0]))
            same = same and digest == _digest(target.rows(table, here[0]))
            totals[table] += digest.rows
        if not same:
            raise _different(f"the conversation {here[1][0]}")
        conversations += 1
        progress("compared", conversations)
    documents = 0
    for name in DOCUMENTS:
        data = source.document(name)
        if data != target.document(name):
            raise _different(name)
        documents += data is not None
    cursors = _digest(source.cursors())
    if cursors != _digest(target.cursors()):
        raise _different("the positions of webhooks")
    return Copied(conversations, totals[EVENTS], totals[BLOBS], documents, cursors.rows)


def _digest(rows: Iterable[Row]) -> _Digest:
    digest, number = hashlib.sha256(), 0
    for row in rows:
        number += 1
        for value in row:
            data = value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogatepass")
            # With type and length, so that no two rows look the same.
            digest.update(b"%b%d:" % (type(value).__name__.encode(), len(data)))
            digest.update(data)
    return _Digest(digest.hexdigest(), number)


def _different(what: str) -> CannotCopy:
    return CannotCopy(
        f"the copy differs from its source: {what}. Empty the target, let no server use the source, and copy "
        "again"
    )
