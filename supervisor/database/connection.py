"""Connections to the database. Synchronous: they are used in threads."""

from __future__ import annotations

from typing import Any, Final

import psycopg

from supervisor.database.address import Database

CONNECT_SECONDS: Final = 5
"""Seconds to connect; libpq takes whole ones, at least 2. A database that fails over takes longer, and is
tried again."""

SILENCE_SECONDS: Final = 5
"""Seconds after which a connection whose peer acknowledges nothing is lost: less than a third of a lease, so
that its renewal can be tried again over a new connection."""

LOCK_SECONDS: Final = 5
"""Seconds that a statement waits for a lock. Every transaction of Ostler is one short statement: a longer
wait is another program's, and is reported as trouble."""

IDLE_IN_TRANSACTION_SECONDS: Final = 10
"""Seconds after which PostgreSQL ends a transaction in which nothing happens: a server that was stopped in
the middle of one must not hold its locks."""

Connection = psycopg.Connection[tuple[Any, ...]]


def connect(database: Database, name: str, *, statement_seconds: float | None = None) -> Connection:
    """Open a connection in autocommit mode. Blocks up to `CONNECT_SECONDS` for each address of the host.

    `name`: what PostgreSQL's administrator sees of it (`application_name`). `statement_seconds`: the longest
    that one statement may take; None: as long as it takes.

    Raises psycopg.Error.
    """
    settings = {
        "lock_timeout": f"{LOCK_SECONDS}s",
        "idle_in_transaction_session_timeout": f"{IDLE_IN_TRANSACTION_SECONDS}s",
        # A server whose machine is gone must not hold its locks.
        "tcp_keepalives_idle": f"{SILENCE_SECONDS}",
        "tcp_keepalives_interval": "1",
        "tcp_keepalives_count": "3",
        # What is acknowledged must be on the disk, also where the administrator's default is another.
        "synchronous_commit": "on",
        # To compile a statement takes longer than any of Ostler's takes.
        "jit": "off",
    }
    if statement_seconds is not None:
        settings["statement_timeout"] = f"{int(statement_seconds * 1000)}ms"
    return psycopg.connect(
        database.conninfo,
        autocommit=True,
        connect_timeout=CONNECT_SECONDS,
        application_name=name,
        client_encoding="UTF8",
        keepalives_idle=SILENCE_SECONDS,
        keepalives_interval=1,
        keepalives_count=3,
        tcp_user_timeout=SILENCE_SECONDS * 1000,
        options=" ".join(f"-c {name}={value}" for name, value in settings.items()),
    )
