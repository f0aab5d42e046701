"""Which server has a conversation: claimed, released, looked up.

Each function is a short exchange over a connection, and blocks; they raise psycopg.Error. A conversation is
free when no server owns it, or one that is dead or has left. Several that claim it at the same time wait for
each other at its row, and one gets it.

"Free" is written so that PostgreSQL finds it false when it looks again at a row that another server has just
claimed: it still has the row of the owner before, or the numbers of those that had ended, and the new one
does not fit. So a row that is missing must not count as a dead owner, and none is removed that owns
conversations.

Live work is found by the index of heads that are `live`, by owner: few are, and many may be free, since idle
ones of earlier servers stay so. The mark says nothing of the owner, so it needs no change when that one dies.
Nor can it come too late: a commit of a dead server counts until another has claimed the conversation.

An answer may be lost with the connection after the database has stored the claim. The sets `unsure` gather
the conversations for which that can be, and `settle` finds out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import attrs
from psycopg.rows import class_row

from supervisor.database.connection import Connection
from supervisor.machines.errors import OwnedElsewhere, Place
from supervisor.machines.membership import hint

Why = Literal["died", "drained", "restarted"]

WAITING: Final = """
live AND coalesce(owner, 0) = ANY (ARRAY(
    SELECT 0 UNION ALL SELECT id FROM servers WHERE state IN ('dead', 'left')
))
"""
"""Of heads: live work that is free, as their index has it. An array, since a join would read all live
work."""

_ALLOWED: Final = "(%(only)s::text IS NULL OR key = (SELECT key FROM conversations WHERE id = %(only)s))"

UNKNOWN_NAME: Final = "another server"
"""Of a server that ended so long ago that its row is gone."""


@attrs.frozen
class Moved:
    """A conversation came to this server. `from_name`: the server that had it before. `why`: it died, gave
    its conversations up in order, or was this server before a restart."""

    from_name: str
    why: Why


@attrs.frozen
class Claimant:
    """This server. `only`: the conversation that it may have."""

    server: int
    instance: str
    only: str | None = None


def acquire(
    connection: Connection, claimant: Claimant, conversation_id: str, unsure: set[str], *, last: bool = False
) -> Moved | Literal["raced", "refused"] | None:
    """Claim a conversation if it is free. One exchange.

    Returns Moved when it was claimed from another server; None when it was this server's already, had none
    before, or is unknown; "raced" when its owner changed meanwhile; "refused" when it is free and this server
    may not claim it: its lease has ended, or it is draining. With `last` a draining server claims too.

    Raises OwnedElsewhere.
    """
    unsure.add(conversation_id)
    row = connection.execute(
        """
        WITH me AS (
            SELECT expires > now() AND (state = 'alive' OR (%(last)s AND state = 'draining'))
                AND (only_conversation IS NULL OR only_conversation = %(conversation)s) AS may
            FROM servers WHERE id = %(server)s
        ), head AS (
            SELECT heads.* FROM heads JOIN conversations USING (key) WHERE id = %(conversation)s
        ), claimed AS (
            UPDATE heads SET owner = %(server)s, generation = heads.generation + 1,
                former = coalesce(heads.owner, heads.former)
            FROM me, head LEFT JOIN servers earlier ON earlier.id = head.owner
            WHERE heads.key = head.key AND heads.owner IS NOT DISTINCT FROM head.owner
                AND (head.owner IS NULL OR earlier.state IN ('dead', 'left')) AND me.may
            RETURNING heads.key
        )
        SELECT head.owner, coalesce(head.owner, head.former),
            head.owner IS NULL OR earlier.state IN ('dead', 'left'), EXISTS (SELECT FROM claimed),
            coalesce((SELECT may FROM me), false),
            earlier.name, earlier.address, earlier.state, earlier.instance
        FROM head LEFT JOIN servers earlier ON earlier.id = coalesce(head.owner, head.former)
        """,
        {"server": claimant.server, "conversation": conversation_id, "last": last},
    ).fetchone()
    unsure.discard(conversation_id)
    if row is None:
        return None
    owner, former, free, claimed, may, name, address, state, instance = row
    if owner == claimant.server:
        return None
    if claimed:
        return _moved(claimant, former, name, state, instance)
    if not free:
        place = Place(server=owner, name=name, address=address, state=state)
        raise OwnedElsewhere(conversation_id, place)
    return "raced" if may else "refused"


def _moved(
    claimant: Claimant, former: int | None, name: str | None, state: str | None, instance: str | None
) -> Moved | None:
    """How it came from the server of this row; None if there was none, or it was this server."""
    if former is None or former == claimant.server:
        return None
    if instance == claimant.instance:
        return Moved(name or UNKNOWN_NAME, "restarted")
    return Moved(name or UNKNOWN_NAME, "died" if state == "dead" else "drained")


def waiting(connection: Connection, claimant: Claimant) -> int:
    """How many conversations with live work are free."""
    row = connection.execute(
        f"SELECT count(*) FROM heads WHERE {WAITING} AND {_ALLOWED}".encode(),  # noqa: S608
        {"only": claimant.only},
    ).fetchone()
    assert row is not None
    return int(row[0])


def claim(connection: Connection, claimant: Claimant, most: int, unsure: set[str]) -> int:
    """Claim up to `most` conversations with live work that are free, put them into `unsure`, and return how
    many they are. Rows that others are claiming are left to them. A server that is draining, or whose lease
    has ended, gets none."""
    # The answer comes before the commit, so that they are known if that one's answer is lost.
    with connection.transaction():
        rows = connection.execute(
            f"""
            WITH found AS MATERIALIZED (
                SELECT key FROM heads WHERE {WAITING} AND {_ALLOWED} AND EXISTS (
                    SELECT FROM servers WHERE id = %(server)s AND state = 'alive' AND expires > now()
                )
                LIMIT %(most)s FOR UPDATE SKIP LOCKED
            )
            UPDATE heads SET owner = %(server)s, generation = generation + 1, former = coalesce(owner, former)
            FROM found JOIN conversations USING (key) WHERE heads.key = found.key
            RETURNING conversations.id
            """.encode(),  # noqa: S608
            {"only": claimant.only, "server": claimant.server, "most": most},
        ).fetchall()
        unsure.update(conversation for (conversation,) in rows)
    return len(rows)


def settle(connection: Connection, claimant: Claimant, unsure: set[str]) -> list[tuple[str, Moved | None]]:
    """Return those of `unsure` that this server has and that have live work, and empty it."""
    rows = connection.execute(
        """
        SELECT conversations.id, former, earlier.name, earlier.state, earlier.instance
        FROM conversations JOIN heads USING (key) LEFT JOIN servers earlier ON earlier.id = former
        WHERE conversations.id = ANY(%s) AND live AND owner = %s
        """,
        (list(unsure), claimant.server),
    ).fetchall()
    unsure.clear()
    return [(conversation, _moved(claimant, *rest)) for conversation, *rest in rows]


def release(connection: Connection, claimant: Claimant, conversation_ids: Sequence[str] | None) -> None:
    """Give conversations up that this server has, None: all. Wakes the others if any has live work."""
    row = connection.execute(
        """
        WITH freed AS (
            UPDATE heads SET owner = NULL, former = owner FROM conversations
            WHERE heads.key = conversations.key AND owner = %(server)s
                AND (%(ids)s::text[] IS NULL OR conversations.id = ANY(%(ids)s))
            RETURNING live
        )
        SELECT count(*) FROM freed WHERE live
        """,
        {
            "server": claimant.server,
            "ids": None if conversation_ids is None else list(conversation_ids),
        },
    ).fetchone()
    if row is not None and row[0]:
        hint(connection)


def place_of(connection: Connection, conversation_id: str) -> Place | None:
    """The server that has a conversation; None if none has."""
    with connection.cursor(row_factory=class_row(Place)) as cursor:
        return cursor.execute(
            """
            SELECT servers.id AS server, name, address, state FROM conversations JOIN heads USING (key)
            JOIN servers ON servers.id = owner WHERE conversations.id = %s
            """,
            (conversation_id,),
        ).fetchone()


def best_other(connection: Connection, server: int) -> Place | None:
    """The other server that would take a conversation: the one with the most free memory."""
    with connection.cursor(row_factory=class_row(Place)) as cursor:
        return cursor.execute(
            """
            SELECT id AS server, name, address, state FROM servers
            WHERE state = 'alive' AND expires > now() AND id <> %s AND only_conversation IS NULL
            ORDER BY free_bytes DESC, id LIMIT 1
            """,
            (server,),
        ).fetchone()
