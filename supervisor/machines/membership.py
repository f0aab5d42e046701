"""The row of a server in the database: it joins, renews its lease, declares others dead, and leaves.

Each function is a short exchange over a connection, and blocks. All compare with the database's clock, never
with a machine's. They raise psycopg.Error.

Leases: `expires` is the end of a server's lease, `since` the beginning of the time over which it has been
unbroken. A server declares others dead only if its own lease holds, and has for a whole TTL. So after an
outage of the database, or a jump of its clock, all can renew first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import attrs
import psycopg
import trio
from psycopg.errors import UniqueViolation
from psycopg.rows import class_row

from supervisor.database.address import VARIABLE, Database
from supervisor.database.connection import Connection, connect
from supervisor.database.faults import first_line, refusal
from supervisor.database.schema import COPY, ForeignDatabase, NewerDatabase, migrate
from supervisor.machines.errors import MachinesRefused
from supervisor.machines.lease import AFTER_EXPIRY, suspected_below

HINTS: Final = "ostler"
"""The channel of NOTIFY on which servers wake each other. It carries no content: who wakes looks."""

FRONT: Final = ""
"""The `only_conversation` of a server that takes none, and has others started for them."""

KEPT: Final = "1 day"
"""How long the row of a server that has ended stays, unless conversations still name it."""

REPORT_SECONDS: Final = 10.0
"""Seconds between two reports of a database that is away at the start."""

RETRY_SECONDS: Final = 1.0
"""Seconds between two attempts to reach it."""


@attrs.frozen(kw_only=True)
class Profile:
    """What a server says of itself. `instance`: the id of its state directory. `ttl`: seconds of its lease.
    `only_conversation`: it was started for this one alone; FRONT: it takes none."""

    name: str
    instance: str
    address: str
    version: str
    labels: Mapping[str, str]
    ttl: float
    only_conversation: str | None = None


@attrs.frozen
class Joined:
    """`server`: the number of its row. `taken`: ids of conversations with live work that an earlier server of
    the same state directory left."""

    server: int
    taken: tuple[str, ...]


@attrs.frozen
class NameTaken:
    """Another server has the name. `expires`: the end of its lease, a text that each renewal changes.
    `ended`: whether that is in the past. `ttl`: its length in seconds."""

    server: int
    expires: str
    ended: bool
    ttl: float


@attrs.frozen
class Seen:
    """What a look at the servers shows. `state`: this one's, None without a row. `died`: names of those that
    it declared dead just now. `servers`: how many live, this one among them. `free_elsewhere`: the free
    bytes of the others. `to_expiries`: seconds to the ends of the leases of others that missed a renewal."""

    state: str | None
    died: tuple[str, ...]
    servers: int
    free_elsewhere: int
    to_expiries: tuple[float, ...]


@attrs.frozen(kw_only=True)
class ServerView:
    """A server for people. `lease_seconds`: what is left of its lease, negative after its end. `started`: ISO
    8601 in UTC. `this`: it is the one that was asked."""

    server: int
    name: str
    address: str
    version: str
    labels: Mapping[str, str]
    state: str
    free_bytes: int
    conversations: int
    lease_seconds: float
    started: str
    this: bool


async def await_database(database: Database, report: Callable[[str], None]) -> None:
    """Return when the database works, with a schema that is up to date. While it is away, `report` gets a
    line at once and each `REPORT_SECONDS`.

    Raises MachinesRefused for what no waiting mends: a wrong password, an unknown database, a newer schema.
    Cancellation leaves nothing open.
    """
    reported = float("-inf")
    while True:
        try:
            await trio.to_thread.run_sync(partial(_try, database), abandon_on_cancel=True)
        except psycopg.Error as error:
            why = refusal(error)
            if why is not None:
                raise MachinesRefused(f"{VARIABLE}: {why} ({database.shown})") from None
            if trio.current_time() - reported >= REPORT_SECONDS:
                report(f"waiting for the database {database.shown}: {_line(error, database)}")
                reported = trio.current_time()
        else:
            return
        await trio.sleep(RETRY_SECONDS)


def _try(database: Database) -> None:
    with connect(database, "ostler start") as connection:
        _migrate(connection, database)


def _line(error: psycopg.Error, database: Database) -> str:
    text = first_line(error)
    for secret in database.secrets:
        text = text.replace(secret, "***")
    return text


def prepare(connection: Connection, database: Database) -> None:
    """Bring the schema up to date. Raises MachinesRefused."""
    _migrate(connection, database)
    if connection.execute("SELECT FROM meta WHERE name = %s", (COPY,)).fetchone() is not None:
        raise MachinesRefused(
            f"{VARIABLE}: a copy into the database has not ended; run `ostler database copy` again, or empty "
            f"the database ({database.shown})"
        )


def _migrate(connection: Connection, database: Database) -> None:
    try:
        migrate(connection)
    except (NewerDatabase, ForeignDatabase) as error:
        raise MachinesRefused(f"{VARIABLE}: {error} ({database.shown})") from None


def stored(connection: Connection, name: str, value: str) -> str:
    """Return the value of that name in `meta`, which is `value` if there was none before."""
    connection.execute("INSERT INTO meta VALUES (%s, %s) ON CONFLICT DO NOTHING", (name, value))
    row = connection.execute("SELECT value FROM meta WHERE name = %s", (name,)).fetchone()
    assert row is not None
    return str(row[0])


def join(connection: Connection, profile: Profile) -> Joined | NameTaken:
    """Enter this server, in one transaction. Earlier servers of the same state directory have ended, since
    the caller holds its lock: they are declared dead, and this one has their conversations."""
    try:
        with connection.transaction():
            return _join(connection, profile)
    except UniqueViolation:  # another one of that name was faster
        taken = _taken(connection, profile)
        return join(connection, profile) if taken is None else taken


def _join(connection: Connection, profile: Profile) -> Joined | NameTaken:
    taken = _taken(connection, profile)
    if taken is not None:
        return taken
    connection.execute(
        """
        DELETE FROM servers WHERE state IN ('left', 'dead') AND expires < now() - %s::interval
        AND NOT EXISTS (SELECT FROM heads WHERE owner = servers.id)
        """,
        (KEPT,),
    )
    connection.execute(
        "UPDATE servers SET state = 'dead' WHERE instance = %s AND state IN ('alive', 'draining')",
        (profile.instance,),
    )
    row = connection.execute(
        """
        INSERT INTO servers (name, instance, address, version, labels, ttl, only_conversation, expires)
        VALUES (%(name)s, %(instance)s, %(address)s, %(version)s, %(labels)s, %(ttl)s, %(only_conversation)s,
            now() + make_interval(secs => %(ttl)s))
        RETURNING id
        """,
        {**attrs.asdict(profile), "labels": json.dumps(dict(profile.labels))},
    ).fetchone()
    assert row is not None
    (server,) = row
    found = connection.execute(
        """
        WITH taken AS (
            UPDATE heads SET owner = %(server)s, generation = generation + 1, former = owner
            WHERE owner IN (SELECT id FROM servers WHERE instance = %(instance)s AND id <> %(server)s)
                AND %(only)s IS DISTINCT FROM %(front)s
            RETURNING key, live
        )
        SELECT id FROM conversations JOIN taken USING (key) WHERE live
        """,
        {
            "server": server,
            "instance": profile.instance,
            "only": profile.only_conversation,
            "front": FRONT,
        },
    ).fetchall()
    return Joined(server, tuple(conversation for (conversation,) in found))


def _taken(connection: Connection, profile: Profile) -> NameTaken | None:
    row = connection.execute(
        """
        SELECT id, expires::text, expires < now(), ttl FROM servers
        WHERE name = %s AND instance <> %s AND state IN ('alive', 'draining')
        """,
        (profile.name, profile.instance),
    ).fetchone()
    return None if row is None else NameTaken(*row)


def bury(connection: Connection, taken: NameTaken) -> None:
    """Declare a server dead that did not renew its lease since it was seen. The caller has looked on for a
    whole TTL of it."""
    connection.execute(
        """
        UPDATE servers SET state = 'dead'
        WHERE id = %s AND state IN ('alive', 'draining') AND expires::text = %s AND expires < now()
        """,
        (taken.server, taken.expires),
    )


def renew(connection: Connection, server: int, free_bytes: int, conversations: int) -> str | None:
    """Extend the lease, and store figures. Return the state of the server; None when it was declared dead."""
    row = connection.execute(
        """
        UPDATE servers SET expires = now() + make_interval(secs => ttl),
            since = CASE WHEN expires < now() OR since > now() THEN now() ELSE since END,
            free_bytes = %s, conversations = %s
        WHERE id = %s AND state IN ('alive', 'draining') RETURNING state
        """,
        (free_bytes, conversations, server),
    ).fetchone()
    return None if row is None else str(row[0])


def look(connection: Connection, server: int, ttl: float) -> Seen:
    """Declare those dead whose lease ended `AFTER_EXPIRY` ago, if this server may, and say how others are.

    A lease that ends later than its TTL from now shows that the clock went back: it then ends one TTL from
    now. (One second of tolerance: `now()` is the start of a statement, and another may have been faster.)
    """
    row = connection.execute(
        """
        WITH me AS (
            SELECT state, state IN ('alive', 'draining') AND expires > now()
                AND since <= now() - make_interval(secs => %(ttl)s) AS may
            FROM servers WHERE id = %(server)s
        ), died AS (
            UPDATE servers SET state = 'dead' FROM me
            WHERE servers.state IN ('alive', 'draining') AND me.may
                AND servers.expires < now() - make_interval(secs => %(after)s)
            RETURNING servers.name
        ), set_right AS (
            UPDATE servers SET expires = now() + make_interval(secs => ttl)
            WHERE state IN ('alive', 'draining') AND expires > now() + make_interval(secs => ttl + 1)
        )
        SELECT (SELECT state FROM me), ARRAY(SELECT name FROM died), count(*),
            coalesce(sum(free_bytes) FILTER (WHERE id <> %(server)s), 0)::bigint,
            coalesce(array_agg(extract(epoch FROM expires - now())::float8) FILTER (
                WHERE id <> %(server)s AND expires < now() + make_interval(secs => %(suspected)s)
            ), '{}')
        FROM servers WHERE state IN ('alive', 'draining')
        """,
        {"server": server, "ttl": ttl, "suspected": suspected_below(ttl), "after": AFTER_EXPIRY},
    ).fetchone()
    assert row is not None
    state, died, servers, free, to_expiries = row
    return Seen(state, tuple(died), servers, free, tuple(to_expiries))


def leave(connection: Connection, server: int) -> None:
    """End the membership in order: what this server still has is free for others at once."""
    connection.execute(
        """
        UPDATE servers SET state = 'left', expires = now()
        WHERE id = %s AND state IN ('alive', 'draining')
        """,
        (server,),
    )
    hint(connection)


def drain(connection: Connection, name: str) -> bool:
    """Ask a server to empty itself. Return False if none of this name lives."""
    row = connection.execute(
        """
        UPDATE servers SET state = 'draining' WHERE name = %s AND state IN ('alive', 'draining') RETURNING id
        """,
        (name,),
    ).fetchone()
    hint(connection)
    return row is not None


def views(connection: Connection, server: int) -> list[ServerView]:
    """The last server of each name: those that live, and those that ended within `KEPT`."""
    with connection.cursor(row_factory=class_row(ServerView)) as cursor:
        return cursor.execute(
            """
            SELECT server, name, address, version, labels, state, free_bytes, conversations,
                extract(epoch FROM expires - now())::float8 AS lease_seconds,
                to_char(started AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') AS started,
                server = %s AS this
            FROM (SELECT DISTINCT ON (name) id AS server, * FROM servers ORDER BY name, id DESC) AS last
            WHERE state IN ('alive', 'draining') OR expires > now() - %s::interval
            """,
            (server, KEPT),
        ).fetchall()


def hint(connection: Connection) -> None:
    """Wake the other servers. In a statement of its own: NOTIFY in a write transaction would serialise the
    commits of all servers."""
    connection.execute("SELECT pg_notify(%s, '')", (HINTS,))
