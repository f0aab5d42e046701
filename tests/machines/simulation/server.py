"""A server of the simulation: it renews its lease, looks for dead ones, claims, and ends with its lease."""

from __future__ import annotations

import random

import trio
from attrs import define, field

from supervisor.machines import lease
from tests.machines.simulation.database import Database, Unreachable

CONNECTIONS = 5
"""That a server has: for events, for its lease, for hints, and two for reading."""

SILENCE = 5.0
"""Seconds after which a statement that gets no answer has failed (supervisor/database/connection.py)."""

DRIFT = 0.0005
"""By which part the clock of a server may be slow."""

GB = 1 << 30
AGENT = GB // 4
"""Bytes that a conversation with live work takes."""


@define(eq=False)
class Server:
    """`live` and `idle` are the conversations that it believes to own."""

    number: int
    database: Database
    drawn: random.Random
    free: int = field(init=False)
    live: int = 0
    idle: int = 0
    running: bool = True
    cut_off: bool = False
    deadline: float = 0.0
    """When its warden ends it, by a clock that is slow."""
    _hinted: trio.Event = field(factory=trio.Event, init=False)
    _scope: trio.CancelScope = field(factory=trio.CancelScope, init=False)

    def __attrs_post_init__(self) -> None:
        self.free = self.drawn.randrange(8, 65) * GB

    async def run(self) -> None:
        """Serve until the lease is lost or the server has left."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._renew)
                nursery.start_soon(self._look)
                nursery.start_soon(self._warden)

    def joined(self, sent: float) -> None:
        """It has a lease, by a statement that it sent at that time."""
        self.deadline = sent + self.database.ttl * (1 + self.drawn.random() * DRIFT)

    def end(self) -> None:
        self.running = False
        self.live = self.idle = 0
        self._scope.cancel()

    def hint(self) -> None:
        self._hinted.set()

    async def _reach(self) -> None:
        """Fail as a statement without an answer does, where this server is cut off."""
        if self.cut_off:
            await trio.sleep(SILENCE)
            raise Unreachable

    async def _warden(self) -> None:
        while trio.current_time() < self.deadline:
            await trio.sleep_until(self.deadline)
        self.end()

    async def _renew(self) -> None:
        ttl, failed = self.database.ttl, False
        await trio.sleep(lease.next_renewal(ttl, self.drawn.random()))
        while True:
            sent = trio.current_time()
            try:
                await self._reach()
                if failed:
                    await self.database.connect(CONNECTIONS)
                held = await self.database.renew(self.number, self.free)
                await self._reach()  # an answer that does not come does not count
            except Unreachable:
                failed = True
                await trio.sleep(lease.next_attempt(ttl, self.drawn.random()))
                continue
            if not held:
                self.end()
            self.joined(sent)
            failed = False
            await trio.sleep_until(sent + lease.next_renewal(ttl, self.drawn.random()))

    async def _look(self) -> None:
        ttl, servers = self.database.ttl, 1
        wait = lease.next_renewal(ttl, self.drawn.random())
        while True:
            with trio.move_on_after(wait):
                await self._hinted.wait()
                await trio.sleep(lease.next_claim(servers, self.drawn.random()))
            self._hinted = trio.Event()
            try:
                await self._reach()
                seen = await self.database.scan(self.number)
                late = any(each < -lease.AFTER_EXPIRY for each in seen.expiries)
                if late and lease.may_declare_dead(seen.own_age, ttl):
                    await self.database.declare()
                    seen = await self.database.scan(self.number)
                servers = seen.servers
                left = await self._claim(seen.free, seen.wanted)
            except Unreachable:
                wait = lease.next_attempt(ttl, self.drawn.random())
                continue
            wait = lease.next_scan(seen.expiries, servers, ttl, self.drawn.random())
            if left:
                wait = min(wait, lease.next_claim(servers, self.drawn.random()))

    async def _claim(self, all_free: int, wanted: int) -> int:
        """Claim this server's share, and return how many others it left."""
        share = lease.share_to_claim(self.free, all_free, wanted)
        got = await self.database.claim(self.number, share) if share else 0
        self.live += got
        self.free = max(0, self.free - got * AGENT)
        return wanted - share if got else 0
