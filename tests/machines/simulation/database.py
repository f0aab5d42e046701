"""A PostgreSQL as a queue: processors that serve one statement each, and one log that is flushed for all.

Statements take effect in the order in which they come, and answer when they have been served. `live`
conversations have work under way or queued; `idle` ones wait until somebody asks.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable

import trio
from attrs import define, field

from supervisor.machines import lease
from tests.machines.simulation import costs

BIN = 0.1
"""Seconds over which load is summed up."""

MOST_OF_JOURNAL = 0.95
"""The part of the processors that commits of events take at most in the model: then they wait, and grow."""


class Unreachable(Exception):
    """The statement, or its answer, did not come through."""


@define
class Row:
    """A living server in `servers`, and what it owns."""

    number: int
    expires: float
    since: float
    free: int
    live: int = 0
    idle: int = 0


@define
class Seen:
    """What a scan sees: `expiries` are the seconds to the ends of suspected leases."""

    servers: int
    free: int
    own_age: float
    expiries: list[float]
    wanted: int


@define
class Database:
    """`events` are those that one live conversation makes in a second."""

    processors: int
    ttl: float
    events: float
    rows: dict[int, Row] = field(factory=dict)
    wanted: int = 0
    """Live conversations that are to be claimed now."""
    free_idle: int = 0
    """Idle conversations without a living owner."""
    coming: int = 0
    """Live conversations whose clients will ask for them."""
    reachable: bool = True
    on_hint: Callable[[], None] = lambda: None
    on_death: Callable[[Row], None] = lambda row: None
    load: defaultdict[str, Counter[int]] = field(factory=lambda: defaultdict(Counter))
    """Processor seconds of each kind of statement, by bin."""
    calls: defaultdict[str, Counter[int]] = field(factory=lambda: defaultdict(Counter))
    slowest: Counter[int] = field(factory=Counter)
    """The longest wait for a processor in each bin, in seconds."""
    _free_at: list[float] = field(init=False)
    _flush: tuple[float, float] = (0.0, 0.0)
    _journal: float = 0.0

    def __attrs_post_init__(self) -> None:
        self._free_at = [0.0] * self.processors

    def journal(self) -> float:
        """Account for the commits of events in this bin, and return how many processors they keep busy.

        Other statements become slower by their part. A server whose commits take longer than the time between
        two events writes several events with one.
        """
        servers = [row.live * self.events for row in self.rows.values() if row.live and self.reachable]
        wait = costs.ROUND_TRIP + 1.5 * costs.FLUSH + self.slowest[self.bin() - 1]
        commits = sum(min(rate, 1 / wait) for rate in servers)
        busy = min(
            commits * costs.COMMIT + sum(servers) * costs.COMMITTED_ROW, self.processors * MOST_OF_JOURNAL
        )
        self._journal = busy / self.processors
        self.load["commits"][self.bin()] += busy * BIN
        self.calls["commits"][self.bin()] += round(commits * BIN)
        return busy

    @staticmethod
    def bin() -> int:
        return int(trio.current_time() / BIN)

    async def renew(self, number: int, free: int) -> bool:
        """False: this server has been declared dead."""
        now = self._now()
        row = self.rows.get(number)
        if row is not None:
            row.since = now if row.expires < now else row.since
            row.expires, row.free = now + self.ttl, free
        await self._serve("renewals", costs.RENEWAL, durable=True)
        return row is not None

    async def scan(self, number: int) -> Seen:
        now = self._now()
        below = now + lease.suspected_below(self.ttl)
        own = self.rows.get(number)
        seen = Seen(len(self.rows), 0, now - own.since if own else 0.0, [], self.wanted)
        for row in self.rows.values():
            seen.free += row.free
            if row.expires < below:
                seen.expiries.append(row.expires - now)
        count = costs.COUNT + costs.COUNT_OF_A_CONVERSATION * seen.wanted
        await self._serve("scans", costs.SCAN_OF_A_SERVER * seen.servers + count)
        return seen

    async def declare(self) -> None:
        """Declare those dead whose leases have ended."""
        now = self._now()
        dead = [row for row in self.rows.values() if row.expires < now - lease.AFTER_EXPIRY]
        for row in dead:
            del self.rows[row.number]
            self.wanted += row.live
            self.free_idle += row.idle
            self.on_death(row)
        await self._serve("deaths", costs.DEATH, durable=bool(dead))
        if dead:
            self.hint()

    async def claim(self, number: int, most: int) -> int:
        """How many conversations the server got."""
        row = self.rows.get(number)
        got = 0
        if row is not None:
            got = min(most, self.wanted)
            self.wanted -= got
            row.live += got
        await self._serve("claims", costs.CLAIM if got else costs.EMPTY_CLAIM, durable=got > 0)
        return got

    async def take(self, number: int, *, live: bool) -> None:
        """Claim one conversation without an owner, for a client."""
        if live:
            self.coming -= 1
            self.rows[number].live += 1
        else:
            self.free_idle -= 1
            self.rows[number].idle += 1
        await self._serve("clients", costs.QUESTION + costs.TAKING, durable=True)

    async def release(self, number: int, queued: float) -> int:
        """A drained server leaves. Of what was live, the part `queued` has more work; for the others clients
        will ask: how many are returned."""
        row = self.rows.pop(number)
        wanted = int(row.live * queued)
        self.wanted += wanted
        self.coming += row.live - wanted
        self.free_idle += row.idle
        await self._serve("drains", costs.RELEASE * (row.live + row.idle), durable=True)
        self.hint()
        return row.live - wanted

    async def join(self, number: int, free: int, connections: int) -> None:
        now = self._now()
        self.rows[number] = Row(number, now + self.ttl, now, free)
        await self._serve("drains", costs.RENEWAL + connections * costs.CONNECTION, durable=True)

    async def connect(self, connections: int) -> None:
        await self._serve("connections", connections * costs.CONNECTION)

    def hint(self) -> None:
        """A NOTIFY: every backend passes it on."""
        listeners = len(self.rows)
        heard = listeners * costs.HINT_HEARD / self.processors
        now = trio.current_time()
        self._free_at = [max(now, each) + heard for each in self._free_at]
        self._count("hints", listeners * (costs.HINT + costs.HINT_HEARD))
        self.on_hint()

    def _now(self) -> float:
        """The database's `now()` of a statement that is sent now. Raises Unreachable."""
        if not self.reachable:
            raise Unreachable
        return max(trio.current_time() + costs.ROUND_TRIP / 2, self._free_at[0])

    def _count(self, kind: str, seconds: float) -> None:
        self.load[kind][self.bin()] += seconds
        self.calls[kind][self.bin()] += 1

    async def _serve(self, kind: str, seconds: float, *, durable: bool = False) -> None:
        if not self.reachable:
            raise Unreachable
        arrives = trio.current_time() + costs.ROUND_TRIP / 2
        begins = max(arrives, self._free_at[0])
        ends = begins + seconds / (1 - self._journal)
        heapq.heapreplace(self._free_at, ends)
        self._count(kind, seconds)
        self.slowest[self.bin()] = max(self.slowest[self.bin()], begins - arrives)
        await trio.sleep_until((self._flushed(ends) if durable else ends) + costs.ROUND_TRIP / 2)

    def _flushed(self, ready: float) -> float:
        """When what is ready then is on the disk: with the flush that begins next."""
        begins, ends = self._flush
        if ready > begins:
            begins = max(ready, ends)
            self._flush = begins, begins + costs.FLUSH
        return self._flush[1]
