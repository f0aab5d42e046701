"""This server among the others: it joins, holds its lease, and takes over what others leave."""

from __future__ import annotations

import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from random import SystemRandom
from typing import Final, TypeVar

import attrs
import psycopg
import structlog
import trio

from supervisor.database.address import VARIABLE, Database
from supervisor.database.connection import Connection
from supervisor.database.faults import first_line, refusal
from supervisor.machines import directory, membership
from supervisor.machines.directory import Claimant, Moved
from supervisor.machines.errors import (
    DatabaseAway,
    MachinesRefused,
    OwnedElsewhere,
    Place,
    Reserved,
    Unclaimed,
)
from supervisor.machines.hints import Hints
from supervisor.machines.identity import instance_of
from supervisor.machines.lease import next_attempt, next_claim, next_scan, share_to_claim
from supervisor.machines.membership import Joined, NameTaken, Profile, Seen, ServerView
from supervisor.machines.renewal import LATE, Callbacks, Renewals
from supervisor.machines.session import Session
from supervisor.machines.volumes import Volume, prove

log = structlog.get_logger(__name__)

_draw = SystemRandom().random

T = TypeVar("T")

Claimed = Callable[[Sequence[tuple[str, Moved | None]]], Awaitable[None]]
Busy = Callable[[], tuple[int, int]]
Provide = Callable[[str], Awaitable[Place]]
"""Returns the server that is to have a conversation. Raises NotNow."""


@attrs.frozen
class _Round:
    """What one look brought. `more`: it claimed some, and others wait."""

    seen: Seen
    claimed: list[tuple[str, Moved | None]]
    more: bool


LOOKS: Final = 3
"""Times that `acquire` looks while the owner changes under it."""

NAME_CHECKS: Final = 10
"""Looks within a TTL at another server of the same name: whether it lives."""


class Machines:
    """This server among the others, made by `open_machines`.

    `server`: the number of its row, which is the epoch of its journal. `draining`: it is to be emptied.
    `lost`: its lease is lost, and it is about to be ended. `only`: the one conversation that it takes; None:
    any; FRONT: none. `provision` then has a server started for one.

    Methods that ask the database raise DatabaseAway, and are not cancelled in the middle of a statement.
    """

    def __init__(
        self,
        database: Database,
        session: Session,
        profile: Profile,
        joined: Joined,
        until: float,
        on_lease: Callable[[float], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.server = joined.server
        self.name = profile.name
        self.instance = profile.instance
        self.only = profile.only_conversation
        self.provision: Provide | None = None
        self.draining = trio.Event()
        self.lost = False
        self._ttl = profile.ttl
        self._taken = joined.taken
        self._session = session
        self._claimant = Claimant(joined.server, profile.instance, profile.only_conversation)
        self._on_lease = on_lease
        self._on_lost = on_lost
        self._unsure: set[str] = set()
        """Conversations that may have been claimed, and are not handed over; see directory.py."""
        self._hint = trio.Event()
        self._servers = 1
        self._failing = False
        self._token = trio.lowlevel.current_trio_token()
        self._losing = threading.Lock()
        self._renewals = Renewals(
            database,
            joined.server,
            profile.ttl,
            until,
            Callbacks(renewed=on_lease, draining=lambda: self._soon(self.draining.set), lost=self.lose),
        )
        self._hints = Hints(database, profile.ttl, lambda: self._soon(lambda: self._hint.set()))

    async def acquire(self, conversation_id: str) -> Moved | None:
        """Make sure that this server has a conversation, in one exchange.

        Returns Moved if it was claimed now from a server that died or gave it up; None if it was this
        server's, or is unknown. A draining server claims only what no other one could take.

        Raises OwnedElsewhere if another server has it, or has to take it; Unclaimed if the lease of this
        server has ended; NotNow where no server can be started for it.
        """
        found = await self._acquire(conversation_id)
        for _ in range(LOOKS):
            if found != "raced":
                break
            found = await self._acquire(conversation_id)
        if found == "refused" and self.provision is not None:
            raise OwnedElsewhere(conversation_id, await self.provision(conversation_id))
        if found == "refused":
            place = await self.ask(partial(directory.best_other, server=self.server))
            if place is not None:
                raise OwnedElsewhere(conversation_id, place)
            found = await self._acquire(conversation_id, last=True)
        if isinstance(found, str):
            raise Unclaimed(conversation_id)
        return found

    async def _acquire(self, conversation_id: str, *, last: bool = False) -> Moved | str | None:
        return await self.ask(
            lambda connection: directory.acquire(
                connection, self._claimant, conversation_id, self._unsure, last=last
            )
        )

    async def accept_new(self, conversation_id: str, parent: str | None = None) -> None:
        """Check that a new conversation may be made here. Otherwise it asks nothing.

        Raises OwnedElsewhere with another server while this one is to be emptied, if there is another, or
        with the one that is started for it, or for its `parent`; NotNow where none can be started, and where
        this one takes another conversation alone.
        """
        if self.provision is not None:
            raise OwnedElsewhere(conversation_id, await self.provision(parent or conversation_id))
        if self.only is not None and self.only not in (conversation_id, parent):
            raise Reserved(self.only)
        if not self.draining.is_set():
            return
        place = await self.ask(partial(directory.best_other, server=self.server))
        if place is not None:
            raise OwnedElsewhere(conversation_id, place)

    async def ask(self, work: Callable[[Connection], T]) -> T:
        """Run `work` over the connection of this server."""
        try:
            return await self._session.run(work)
        except psycopg.Error as error:
            raise DatabaseAway(first_line(error)) from error

    async def release(self, conversation_ids: Sequence[str] | None) -> None:
        """Give up those of these conversations that this server has, None: all of them. If any has live work,
        the others look at once."""
        await self.ask(partial(directory.release, claimant=self._claimant, conversation_ids=conversation_ids))

    async def place_of(self, conversation_id: str) -> Place | None:
        """The server that has a conversation, perhaps a dead one; None if none has."""
        return await self.ask(partial(directory.place_of, conversation_id=conversation_id))

    async def servers(self) -> list[ServerView]:
        """All servers by name: those that live, and those that ended within a day."""
        return await self.ask(partial(membership.views, server=self.server))

    async def drain(self, name: str) -> bool:
        """Ask the server of this name to empty itself. Returns False if none of that name lives."""
        return await self.ask(partial(membership.drain, name=name))

    async def run(self, claimed: Claimed, busy: Busy) -> None:
        """Declare dead servers dead, and claim conversations with live work; endless.

        `claimed` gets those that came to this server, each with where it was; None: no server had it. A
        client may have come first, so that one is loaded already. It returns soon: until then no look is
        taken. `busy` returns the free bytes of memory and the number of conversations of this server.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            if self._taken:
                await claimed([(each, Moved(self.name, "restarted")) for each in self._taken])
            wait = 0.0
            while True:
                with trio.move_on_after(wait):
                    await self._hint.wait()
                    await trio.sleep(next_claim(self._servers, _draw()))
                self._hint = trio.Event()
                wait = await self._look(claimed, busy)

    async def _look(self, claimed: Claimed, busy: Busy) -> float:
        """Look once, and return the seconds until the next look."""
        self._renewals.figures = busy()
        try:
            found = await self._session.run(partial(self._round, free=self._renewals.figures[0]))
        except psycopg.Error as error:
            if not self._failing:
                log.warning("cannot see the other servers; trying again", reason=str(error).strip())
            self._failing = True
            return next_attempt(self._ttl, _draw())
        self._failing = False
        seen = found.seen
        self._servers = seen.servers
        if seen.died:
            log.warning("servers did not renew their leases, and are declared dead", servers=seen.died)
        if seen.state == "draining":
            self.draining.set()
        if seen.state in (None, "dead"):
            self.lose("others declared it dead")
        if found.claimed:
            await claimed(found.claimed)
        if found.more:
            return next_claim(seen.servers, _draw())
        return next_scan(seen.to_expiries, seen.servers, self._ttl, _draw())

    def _round(self, connection: Connection, free: int) -> _Round:
        seen = membership.look(connection, self.server, self._ttl)
        if seen.died:
            membership.hint(connection)
        waiting = directory.waiting(connection, self._claimant) if seen.state == "alive" else 0
        most = share_to_claim(free, free + seen.free_elsewhere, waiting)
        got = directory.claim(connection, self._claimant, most, self._unsure) if most else 0
        claimed = directory.settle(connection, self._claimant, self._unsure) if self._unsure else []
        return _Round(seen, claimed, more=0 < got < waiting)

    async def _watch(self) -> None:
        """End this server when its lease ends, also while the thread of the renewals hangs in one."""
        while not self.lost:
            left = self._renewals.until + LATE - time.monotonic()
            if left <= 0:
                self.lose("its lease ended")
            await trio.sleep(max(0.0, left))

    def lose(self, why: str) -> None:
        """End this server as if it had been killed: others take over what it has. In any thread."""
        with self._losing:
            if self.lost:
                return
            self.lost = True
        log.error("this server ends at once", reason=why)
        self._on_lost()

    def _soon(self, call: Callable[[], object]) -> None:
        """Call it on the Trio side, from a thread."""
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(call)

    def start(self) -> None:
        """Begin to renew and to listen. For `open_machines`."""
        self._renewals.start()
        self._hints.start()

    async def leave(self) -> None:
        """End the membership: what this server still has is free for others. For `open_machines`.

        Each step has a deadline, so that a database that is away delays the end by some seconds alone.
        """
        await trio.to_thread.run_sync(self._renewals.stop)
        self._hints.end()  # the hint that it leaves wakes its own thread too
        if not self.lost:
            try:
                await self._session.run(partial(membership.leave, server=self.server))
            except psycopg.Error as error:
                log.warning("cannot leave; the others wait for the lease to end", reason=str(error).strip())
        self._on_lease(0.0)
        await trio.to_thread.run_sync(self._hints.join)


@asynccontextmanager
async def open_machines(
    database: Database,
    *,
    state: Path,
    name: str,
    address: str,
    labels: Mapping[str, str],
    ttl: float,
    version: str,
    on_lease: Callable[[float], None],
    on_lost: Callable[[], None],
    volumes: Sequence[Volume] = (),
    only_conversation: str | None = None,
) -> AsyncIterator[Machines]:
    """Join the other servers; leave them at the end, when everything of this server has ended.

    `state`: the state directory, whose lock the caller holds. `ttl`: seconds of a lease. `volumes`: each is
    proved by its marker. `on_lease` gets the end of the lease in seconds of CLOCK_MONOTONIC, and 0 when there
    is none any more. `on_lost` has to end this process. Both may be called in another thread, and must not
    block.

    A server of the same name that has not left is waited for until its lease has ended, if it does not renew
    it.

    Raises MachinesRefused, DatabaseAway for what passes, OSError for the state directory.
    """
    profile = Profile(
        name=name,
        instance=await trio.to_thread.run_sync(instance_of, state),
        address=address,
        version=version,
        labels=labels,
        ttl=ttl,
        only_conversation=only_conversation,
    )
    session = Session(database, "ostler machines")
    try:
        try:
            await session.run(partial(membership.prepare, database=database))
            await session.run(partial(prove, volumes=volumes))
            joined, until = await _join(session, profile)
        except psycopg.Error as error:
            why = refusal(error)
            if why is None:
                raise DatabaseAway(first_line(error)) from error
            raise MachinesRefused(f"{VARIABLE}: {why} ({database.shown})") from None
        machines = Machines(database, session, profile, joined, until, on_lease, on_lost)
        on_lease(until)
        machines.start()
        try:
            yield machines
        finally:
            with trio.CancelScope(shield=True):
                await machines.leave()
    finally:
        with trio.CancelScope(shield=True):
            await session.aclose()


async def _join(session: Session, profile: Profile) -> tuple[Joined, float]:
    """Enter the row, and return it with the end of the lease in seconds of CLOCK_MONOTONIC."""
    first: NameTaken | None = None
    until = 0.0
    while True:
        sent, found = await session.run(partial(_enter, profile=profile))
        if isinstance(found, Joined):
            return found, sent + profile.ttl
        if first is None:
            first, until = found, trio.current_time() + found.ttl
            log.warning("a server of this name has not left; waiting for its lease to end", name=profile.name)
        elif found.expires != first.expires:
            raise MachinesRefused(
                f"OSTLER_SERVER_NAME: another server has the name {profile.name}; give this one another name"
            )
        elif found.ended and trio.current_time() >= until:
            # The database answered for a whole TTL, so it would have renewed its lease.
            await session.run(partial(membership.bury, taken=first))
            continue
        await trio.sleep(profile.ttl / NAME_CHECKS)


def _enter(connection: Connection, profile: Profile) -> tuple[float, Joined | NameTaken]:
    sent = time.monotonic()
    return sent, membership.join(connection, profile)
