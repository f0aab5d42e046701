"""A PostgreSQL database as an end of a copy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import psycopg

from supervisor.conversations.state.status import LIVE_STATUSES
from supervisor.database.address import Database
from supervisor.database.connection import connect
from supervisor.database.faults import refusal
from supervisor.database.schema import COPY, MIGRATIONS, ForeignDatabase, NewerDatabase, migrate, version
from supervisor.offline.copying.ends import CURSORS, RECORD, CannotCopy, Row, Table, parts

COPYING: Final = 0x4F535443
"""The number of the advisory lock of a copy ("OSTC")."""

_RECORD_TYPES: Final = ("text", "bytea", "text", "text", "text", "text", "text")

_FILLED: Final = ("conversations", "events", "blobs", "documents", "webhook_cursors")


class Shared:
    """A database, which no server uses while this is open. Raises CannotCopy."""

    def __init__(self, database: Database, *, target: bool) -> None:
        self._database = database
        try:
            self._connection = connect(database, "ostler database copy")
        except psycopg.Error as error:
            why = refusal(error) or "it does not answer"
            raise CannotCopy(f"the database {database.shown} cannot be used: {why}") from None
        try:
            with self._reported():
                self._take(target=target)
        except BaseException:
            self.close()
            raise

    def _take(self, *, target: bool) -> None:
        if target:
            migrate(self._connection)
        elif version(self._connection)[0] != len(MIGRATIONS):
            raise CannotCopy(f"the database {self._database.shown} has no state of this version of Ostler")
        if not self._one("SELECT pg_try_advisory_lock(%s)", COPYING)[0]:
            raise CannotCopy(f"another copy uses the database {self._database.shown}")
        self._refuse_servers()

    @property
    def identity(self) -> str:
        """As Source."""
        with self._reported():
            (oid,) = self._one("SELECT oid::bigint FROM pg_database WHERE datname = current_database()")
            return f"{self._database.shown} {oid}"

    def _refuse_servers(self) -> None:
        asked = (
            "SELECT string_agg(name, ', ' ORDER BY name) FROM servers "
            "WHERE state IN ('alive', 'draining') AND expires > now()"
        )
        (names,) = self._one(asked)
        if names is not None:
            raise CannotCopy(f"servers use the database {self._database.shown}: {names}. End them first")

    def begin(self, source: str) -> None:
        """As Target."""
        with self._reported():
            row = self._execute("SELECT value FROM meta WHERE name = %s", COPY).fetchone()
            if row is not None and row[0] != source:
                raise CannotCopy(
                    f"the database {self._database.shown} has a part of a copy from elsewhere; empty it first"
                )
            if row is None:
                for table in _FILLED:
                    if self._one(f"SELECT EXISTS (SELECT 1 FROM {table})")[0]:  # noqa: S608
                        raise CannotCopy(
                            f"the database {self._database.shown} is not empty; name another one, or empty it"
                        )
                self._execute("INSERT INTO meta VALUES (%s, %s)", COPY, source)

    def conversations(self, after: int, most: int) -> list[tuple[int, Row]]:
        """As Source."""
        asked = f"SELECT key, {', '.join(RECORD)} FROM conversations WHERE key > %s ORDER BY key LIMIT %s"  # noqa: S608
        with self._reported():
            return [(key, tuple(row)) for key, *row in self._execute(asked, after, most)]

    def rows(self, table: Table, key: int, after: Row | None = None) -> Iterator[Row]:
        """As Source."""
        order = ", ".join(table.order)
        behind = "" if after is None else f" AND ({order}) > ({', '.join(['%s'] * len(table.order))})"
        asked = (
            f"SELECT {', '.join(table.columns)} FROM {table.name} "  # noqa: S608
            f"WHERE conversation = %s{behind} ORDER BY {order}"
        )
        yield from self._stream(asked, key, *(after or ()))

    def last_conversation(self) -> int:
        """As Target."""
        with self._reported():
            return int(self._one("SELECT coalesce(max(key), 0) FROM conversations")[0])

    def last(self, table: Table, key: int) -> Row | None:
        """As Target."""
        order = ", ".join(table.order)
        down = ", ".join(f"{each} DESC" for each in table.order)
        asked = f"SELECT {order} FROM {table.name} WHERE conversation = %s ORDER BY {down} LIMIT 1"  # noqa: S608
        with self._reported():
            return self._execute(asked, key).fetchone()

    def insert(self, table: Table, key: int, rows: Sequence[Row]) -> None:
        """As Target."""
        with self._reported():
            self._copy(
                f"{table.name} (conversation, {', '.join(table.columns)})",
                ("int8", *table.types),
                ((key, *row) for row in rows),
            )

    def insert_conversation(self, key: int, record: Row, last_seq: int) -> None:
        """As Target: it has no owner."""
        with self._reported(), self._connection.transaction():
            columns = f"conversations (key, {', '.join(RECORD)}, epoch)"
            self._copy(columns, ("int8", *_RECORD_TYPES, "int8"), [(key, *record, 0)])
            live = record[RECORD.index("status")] in LIVE_STATUSES
            said = "INSERT INTO heads (key, generation, last_seq, live) VALUES (%s, 0, %s, %s)"
            self._execute(said, key, last_seq, live)

    def document(self, name: str) -> bytes | None:
        """As Source."""
        with self._reported():
            row = self._execute("SELECT body FROM documents WHERE name = %s", name).fetchone()
            return None if row is None else bytes(row[0])

    def replace_document(self, name: str, data: bytes) -> None:
        """As Target."""
        said = (
            "INSERT INTO documents (name, revision, body) VALUES (%s, 1, %s) ON CONFLICT (name) "
            "DO UPDATE SET revision = documents.revision + 1, body = excluded.body"
        )
        with self._reported():
            self._execute(said, name, data)

    def cursors(self) -> Iterator[Row]:
        """As Source."""
        yield from self._stream(
            f"SELECT {', '.join(CURSORS)} FROM webhook_cursors "  # noqa: S608
            'ORDER BY conversation, receiver COLLATE "C"'
        )

    def replace_cursors(self, rows: Iterable[Row]) -> None:
        """As Target."""
        with self._reported(), self._connection.transaction():
            self._execute("DELETE FROM webhook_cursors")
            for part in parts(rows):
                columns = f"webhook_cursors ({', '.join(CURSORS)})"
                self._copy(columns, ("text", "text", "int8", "bool"), part)

    def end(self) -> None:
        """As Target."""
        with self._reported(), self._connection.transaction():
            self._refuse_servers()
            self._execute(
                "SELECT setval(pg_get_serial_sequence('conversations', 'key'), max(key)) FROM conversations "
                "HAVING max(key) IS NOT NULL"
            )
            self._execute("DELETE FROM meta WHERE name = %s", COPY)

    def close(self) -> None:
        """As Source."""
        self._connection.close()

    def _execute(self, statement: str, *values: object) -> psycopg.Cursor[tuple[Any, ...]]:
        return self._connection.execute(statement.encode(), values, binary=True)

    def _one(self, statement: str, *values: object) -> Row:
        row = self._execute(statement, *values).fetchone()
        assert row is not None
        return row

    def _stream(self, statement: str, *values: object) -> Iterator[Row]:
        # Row by row: a result is else held as a whole.
        with self._reported(), self._connection.cursor() as cursor:
            yield from cursor.stream(statement.encode(), values, binary=True)

    def _copy(self, columns: str, types: Sequence[str], rows: Iterable[Row]) -> None:
        said = f"COPY {columns} FROM STDIN (FORMAT BINARY)".encode()
        with self._connection.cursor() as cursor, cursor.copy(said) as into:
            into.set_types(types)
            for row in rows:
                into.write_row(row)

    @contextmanager
    def _reported(self) -> Iterator[None]:
        """Raise CannotCopy for what is wrong with the database."""
        try:
            yield
        except (NewerDatabase, ForeignDatabase) as error:
            raise CannotCopy(f"{self._database.shown}: {error}") from error
        except psycopg.Error as error:
            why = (error.diag.message_primary or str(error)).partition("\n")[0]
            for secret in self._database.secrets:
                why = why.replace(secret, "***")
            raise CannotCopy(f"the database {self._database.shown} refuses: {why}") from None
