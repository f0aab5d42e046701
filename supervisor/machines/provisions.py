"""Servers that OSTLER_PROVISION starts for one conversation each: which there are, and who runs the command.

Each function is a short exchange over a connection, and blocks; they raise psycopg.Error. At most one server
runs the command for a conversation: the one that has claimed its row, until a time that the database's clock
judges. If that server ends, or the time passes, another may.
"""

from __future__ import annotations

from typing import Final

from psycopg.rows import class_row

from supervisor.database.connection import Connection
from supervisor.machines.directory import WAITING
from supervisor.machines.errors import Place

KILLED: Final = "10 seconds"
"""How long a server that was declared dead is waited for: its warden starts it again."""

STOPS: Final = 2
"""Times that the command is asked to stop a server."""

AGAIN: Final = "10 seconds"
"""How long after the first time that failed."""


def place_for(connection: Connection, conversation_id: str) -> Place | None:
    """The server that has a conversation, or was started for it; None if none lives."""
    with connection.cursor(row_factory=class_row(Place)) as cursor:
        return cursor.execute(
            """
            WITH head AS (SELECT owner FROM heads JOIN conversations USING (key) WHERE id = %(conversation)s)
            SELECT id AS server, name, address, state FROM servers
            WHERE state = 'alive' AND expires > now()
                AND (only_conversation = %(conversation)s OR id = (SELECT owner FROM head))
            ORDER BY id = (SELECT owner FROM head) DESC NULLS LAST, id DESC LIMIT 1
            """,
            {"conversation": conversation_id},
        ).fetchone()


def claim(connection: Connection, server: int, conversation_id: str, seconds: float) -> bool:
    """Whether this server may now start one for a conversation, for so many seconds: none lives, and no other
    server is about it."""
    row = connection.execute(
        """
        INSERT INTO provisions AS known (conversation, server, until)
        SELECT %(conversation)s, %(server)s, now() + make_interval(secs => %(seconds)s)
        WHERE NOT EXISTS (
            SELECT FROM servers WHERE only_conversation = %(conversation)s AND state IN ('alive', 'draining')
        )
        ON CONFLICT (conversation) DO UPDATE
        SET server = excluded.server, until = excluded.until, failed = 0
        WHERE known.until < now()
            OR NOT EXISTS (SELECT FROM servers WHERE id = known.server AND state IN ('alive', 'draining'))
        RETURNING conversation
        """,
        {"conversation": conversation_id, "server": server, "seconds": seconds},
    ).fetchone()
    return row is not None


def started(connection: Connection, server: int, conversation_id: str) -> None:
    """The command has ended, or is given up."""
    connection.execute(
        "UPDATE provisions SET until = '-infinity' WHERE conversation = %s AND server = %s",
        (conversation_id, server),
    )


def claim_ended(connection: Connection, server: int, most: int, seconds: float) -> list[str]:
    """Claim up to `most` conversations whose servers have ended, to stop them within so many seconds."""
    rows = connection.execute(
        """
        UPDATE provisions SET server = %(server)s, until = now() + make_interval(secs => %(seconds)s)
        WHERE conversation IN (
            SELECT conversation FROM provisions WHERE until < now() AND NOT EXISTS (
                SELECT FROM servers WHERE only_conversation = conversation AND (
                    state IN ('alive', 'draining')
                    OR (state = 'dead' AND expires > now() - %(killed)s::interval)
                )
            )
            LIMIT %(most)s FOR UPDATE SKIP LOCKED
        )
        RETURNING conversation
        """,
        {"server": server, "seconds": seconds, "killed": KILLED, "most": most},
    ).fetchall()
    return [conversation for (conversation,) in rows]


def unattended(connection: Connection, most: int) -> list[str]:
    """Up to `most` conversations with live work that no server has."""
    rows = connection.execute(
        f"""
        SELECT id FROM conversations JOIN (
            SELECT key FROM heads WHERE {WAITING} ORDER BY random() LIMIT %s
        ) AS found USING (key)
        """.encode(),  # noqa: S608
        (most,),
    ).fetchall()
    return [conversation for (conversation,) in rows]


def stopped(connection: Connection, server: int, conversation_id: str, *, done: bool) -> bool:
    """The command has stopped a server, or failed to. Returns whether it is asked once more; a start may come
    first."""
    row = connection.execute(
        """
        WITH again AS (
            UPDATE provisions SET failed = failed + 1, until = now() + %(again)s::interval, server = 0
            WHERE NOT %(done)s AND conversation = %(conversation)s AND server = %(server)s
                AND failed + 1 < %(stops)s
            RETURNING conversation
        ), ended AS (
            DELETE FROM provisions WHERE conversation = %(conversation)s AND server = %(server)s
                AND (%(done)s OR failed + 1 >= %(stops)s)
        )
        SELECT count(*) FROM again
        """,
        {
            "server": server,
            "conversation": conversation_id,
            "done": done,
            "again": AGAIN,
            "stops": STOPS,
        },
    ).fetchone()
    return bool(row is not None and row[0])
