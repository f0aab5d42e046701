"""How values go to PostgreSQL and come back. Pure.

Its text takes no NUL character, which SQLite's does: NUL is stored as two characters, and so is the one that
begins them. The order of texts stays the same, and so does which of them are equal.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final

import psycopg
from psycopg.adapt import Buffer, Dumper
from psycopg.pq import Format

_FROM: Final = str.maketrans({"\0": "\1\1", "\1": "\1\2"})

_BOOL_OID: Final = 16
_INT8_OID: Final = 20
_TEXT_OID: Final = 25
_BYTEA_OID: Final = 17

_HEADER: Final = struct.Struct("!iiIii")
_EMPTY: Final = struct.Struct("!iiI")
_LENGTH: Final = struct.Struct("!i")
_NULL: Final = _LENGTH.pack(-1)


def stored(text: str) -> str:
    """A text as it is stored."""
    return text.translate(_FROM) if "\0" in text or "\1" in text else text


def given(text: str) -> str:
    """A text as it was before it was stored."""
    return text if "\1" not in text else text.replace("\1\1", "\0").replace("\1\2", "\1")


class Array:
    """An array in PostgreSQL's binary form.

    Made by hand: psycopg's own way looks at the type of every element, and takes four times as long.
    """

    __slots__ = ("data",)
    oid = 0

    def __init__(self, items: Sequence[bytes | None]) -> None:
        if not items:
            self.data = _EMPTY.pack(0, 0, self.oid)
            return
        parts = [_HEADER.pack(1, 1 if None in items else 0, self.oid, len(items), 1)]
        length = _LENGTH.pack
        for item in items:
            if item is None:
                parts.append(_NULL)
            else:
                parts.append(length(len(item)))
                parts.append(item)
        self.data = b"".join(parts)


class Byteas(Array):
    """Bytes, or NULL."""

    oid = _BYTEA_OID


class Texts(Array):
    """Texts, or NULL. Raises UnicodeEncodeError for half of a surrogate pair."""

    oid = _TEXT_OID

    def __init__(self, items: Iterable[str | None]) -> None:
        super().__init__([None if item is None else stored(item).encode() for item in items])


class Bigints(Array):
    """Integers. Raises struct.error beyond 64 bits."""

    oid = _INT8_OID

    def __init__(self, items: Sequence[int]) -> None:
        super().__init__([])
        if items:
            numbers = [number for item in items for number in (8, item)]
            self.data = _HEADER.pack(1, 0, self.oid, len(items), 1) + struct.pack(
                "!" + "iq" * len(items), *numbers
            )


class Booleans(Array):
    """Truth values, or NULL."""

    oid = _BOOL_OID

    def __init__(self, items: Iterable[bool | None]) -> None:
        super().__init__([None if item is None else bytes((item,)) for item in items])


class _ArrayDumper(Dumper):
    format = Format.BINARY

    def dump(self, obj: Any) -> Buffer:
        data: bytes = obj.data
        return data


class _BigintsDumper(_ArrayDumper):
    oid = 1016


class _BooleansDumper(_ArrayDumper):
    oid = 1000


class _TextsDumper(_ArrayDumper):
    oid = 1009


class _ByteasDumper(_ArrayDumper):
    oid = 1001


def adapt(connection: psycopg.Connection[Any]) -> None:
    """Let a connection take these arrays."""
    connection.adapters.register_dumper(Bigints, _BigintsDumper)
    connection.adapters.register_dumper(Booleans, _BooleansDumper)
    connection.adapters.register_dumper(Texts, _TextsDumper)
    connection.adapters.register_dumper(Byteas, _ByteasDumper)
