"""The statement that stores what one conversation has, as most batches are, and how libpq runs it.

It does what `statements` does, with plain values where there is one of each, and without psycopg's cursor: a
commit of one event and its record takes 0.24 ms in place of 0.38, of which the disk has 0.1. A turn waits for
three of them, one after the other.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from functools import cache
from typing import Final, cast

import attrs
import psycopg
from psycopg.pq import DiagnosticField, ExecStatus, Format
from psycopg.pq.abc import PGconn, PGresult

from supervisor.journal.postgres.statements import Share, makes_block
from supervisor.journal.postgres.values import Bigints, Byteas, Texts, stored

_FENCE: Final = """
WITH fence AS (
    UPDATE heads SET last_seq = $4, live = coalesce($5, live)
    WHERE key = $1 AND generation = $2 AND last_seq = $3 AND owner = $6 RETURNING key
)"""
_FENCE_TYPES: Final = (20, 20, 20, 20, 16, 20)

_EVENTS: Final = """, stored AS (
    INSERT INTO events (conversation, seq, id, kind, source, timestamp, body, updates)
    SELECT fence.key, v.* FROM fence, unnest($7, $8, $9, $10, $11, $12, $13) AS v
)"""
_EVENT_TYPES: Final = (1016, 1009, 1009, 1009, 1009, 1001, 1001)

_RECORD: Final = """, recorded AS (
    UPDATE conversations SET record = ${0}, status = ${1}, updated_at = ${2}, title = coalesce(${3}, title),
        epoch = $6
    FROM fence WHERE conversations.key = fence.key
)"""
_RECORD_TYPES: Final = (17, 25, 25, 25)

_NUMBER: Final = struct.Struct("!q")


@attrs.frozen
class Single:
    """A prepared statement: its name, its text, the types of its parameters as PostgreSQL numbers them, and
    their values in its binary form."""

    name: bytes
    text: bytes
    types: tuple[int, ...]
    values: list[bytes | None]


@cache
def _text(events: bool, record: bool) -> tuple[bytes, bytes, tuple[int, ...]]:
    types = (*_FENCE_TYPES, *(_EVENT_TYPES if events else ()))
    places = range(len(types) + 1, len(types) + 1 + len(_RECORD_TYPES))
    text = _FENCE + (_EVENTS if events else "") + (_RECORD.format(*places) if record else "")
    name = f"ostler_{'events' if events else ''}{'record' if record else ''}"
    text += " SELECT key FROM fence"
    return name.encode(), text.encode(), (*types, *(_RECORD_TYPES if record else ()))


def fits(share: Share) -> bool:
    """Whether a share can be stored so."""
    return not share.blobs and not makes_block(share)


def single(share: Share, owner: int, live: Collection[str], *, keeps_updates: bool) -> Single:
    """The statement that stores this share, and returns its key if this server still has the conversation.
    Raises UnicodeEncodeError for half of a surrogate pair."""
    rows, record = share.rows, share.record
    numbers = (share.key, share.handle.generation, share.before, share.last)
    values: list[bytes | None] = [_NUMBER.pack(each) for each in numbers]
    values += [None if record is None else bytes((record.status in live,)), _NUMBER.pack(owner)]
    if rows:
        values += [
            Bigints([row.seq for row in rows]).data,
            Texts([row.id for row in rows]).data,
            Texts([row.kind for row in rows]).data,
            Texts([row.source for row in rows]).data,
            Texts([row.timestamp for row in rows]).data,
            Byteas([row.body for row in rows]).data,
            Byteas([(row.updates or None) if keeps_updates else None for row in rows]).data,
        ]
    if record is not None:
        values += [
            record.record,
            stored(record.status).encode(),
            stored(record.updated_at).encode(),
            None if record.title is None else stored(record.title).encode(),
        ]
    return Single(*_text(bool(rows), record is not None), values)


def run(connection: PGconn, asked: Single, prepared: set[bytes]) -> bool:
    """Run the statement, and return whether it found its row. `prepared`: the names that the connection
    knows. Blocks, without the interpreter's lock. Raises psycopg.Error."""
    if asked.name not in prepared:
        _checked(connection.prepare(asked.name, asked.text, asked.types))
        prepared.add(asked.name)
    formats = [Format.BINARY] * len(asked.values)
    values = cast("list[bytes]", asked.values)  # psycopg's types forget that NULL is None
    found = connection.exec_prepared(asked.name, values, formats, Format.BINARY)
    return _checked(found).ntuples > 0


def _checked(result: PGresult) -> PGresult:
    if result.status in (ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK):
        return result
    state = result.error_field(DiagnosticField.SQLSTATE)
    message = result.error_message.decode(errors="replace")
    try:
        kind = psycopg.OperationalError if state is None else psycopg.errors.lookup(state.decode())
    except KeyError:
        kind = psycopg.DatabaseError
    raise kind(message.strip())
