"""Days of many servers: a quiet one, a rack that is lost, a deploy, an outage of the database.

Invariants are checked in every tenth of a second and at each death; `Report.violations` names what broke.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import count
from typing import Final

import trio
from attrs import define, field
from trio.testing import MockClock

from tests.machines.simulation.database import BIN, Database, Row
from tests.machines.simulation.server import CONNECTIONS, Server

LIVE: Final = 0.05
"""The part of conversations that have live work."""

WATCHED: Final = 0.05
"""The part of a server's idle conversations that clients watch: they ask for them when it is gone."""

RETURN: Final = 10.0
"""Seconds over which clients come back after their server is gone."""

QUEUED: Final = 0.1
"""The part of live conversations with more work queued when a drain ends."""

AWAY: Final = 10.0
"""Seconds between the end of a drained server and its next start."""

TURNS_END: Final = 30.0
"""Seconds that a drain takes at most."""


@define
class Plan:
    """What happens, in seconds from the begin.

    `processors`: of the database. `events`: of a live conversation, in a second.
    """

    servers: int
    conversations: int
    seconds: float
    ttl: float = 15.0
    processors: int = 16
    events: float = 0.5
    lost: int = 0
    lost_at: float = 30.0
    power: bool = False
    """Lost servers end at once. Else they are only cut off, and run on until their leases end."""
    deploy: float = 0.0
    """Seconds of a deploy: all servers are drained and started again, evenly over this time."""
    outage: tuple[float, float] | None = None
    """When the database goes away, and comes back."""
    seed: int = 1


@define
class Report:
    plan: Plan
    database: Database
    violations: list[str] = field(factory=list)
    unowned: list[int] = field(factory=list)
    """For each bin: live conversations that no living server owns."""
    deaths: int = 0
    claimed_after: float | None = None
    """Seconds from the loss of servers until all of their live conversations are claimed."""

    def bins(self) -> range:
        """Those that count: before, servers are still coming into the steady state."""
        return range(int(10 / BIN), int(self.plan.seconds / BIN))

    def kinds(self) -> list[str]:
        return sorted(self.database.load)

    def load(self, kind: str) -> list[float]:
        """Processors that statements of this kind kept busy, by bin."""
        return [self.database.load[kind][each] / BIN for each in self.bins()]

    def rates(self, *kinds: str) -> list[float]:
        """Statements in a second, by bin."""
        return [sum(self.database.calls[kind][each] for kind in kinds) / BIN for each in self.bins()]

    def waits(self) -> list[float]:
        """The longest wait for a processor of the database, by bin."""
        return [self.database.slowest[each] for each in self.bins()]


def simulate(plan: Plan) -> Report:
    """Play it. It takes no time but that of the processor."""
    world = World(plan)
    trio.run(world.run, clock=MockClock(autojump_threshold=0))
    return world.report


class World:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.drawn = random.Random(plan.seed)
        self.database = Database(plan.processors, plan.ttl, plan.events)
        self.database.on_hint, self.database.on_death = self.hint, self.died
        self.report = Report(plan, self.database)
        self.servers: dict[int, Server] = {}
        self.nursery: trio.Nursery

    async def run(self) -> None:
        plan = self.plan
        async with trio.open_nursery() as self.nursery:
            for number in range(plan.servers):
                self.begin_with(number)
            self.nursery.start_soon(self.watch)
            if plan.lost:
                self.nursery.start_soon(self.lose)
            if plan.deploy:
                self.nursery.start_soon(self.deploy)
            if plan.outage:
                self.nursery.start_soon(self.outage, *plan.outage)
            await trio.sleep(plan.seconds)
            self.nursery.cancel_scope.cancel()

    def begin_with(self, number: int) -> None:
        """A server that has been there for long, with its part of the conversations."""
        plan = self.plan
        part = plan.conversations // plan.servers
        live = int(part * LIVE)
        made = Server(number, self.database, self.drawn, live=live, idle=part - live)
        row = Row(number, plan.ttl, -plan.ttl, made.free, made.live, made.idle)
        self.servers[number], self.database.rows[number] = made, row
        made.joined(0.0)
        self.nursery.start_soon(made.run)

    def hint(self) -> None:
        for each in self.running():
            each.hint()

    def running(self) -> Iterator[Server]:
        return (each for each in self.servers.values() if each.running)

    def died(self, row: Row) -> None:
        self.report.deaths += 1
        if self.servers[row.number].running:
            self.violation(f"server {row.number} was declared dead while it ran")
        watched = int(self.plan.conversations // self.plan.servers * (1 - LIVE) * WATCHED)
        self.nursery.start_soon(self.clients, 0, watched)

    def violation(self, words: str) -> None:
        self.report.violations.append(f"{trio.current_time():.3f} s: {words}")

    async def clients(self, live: int, idle: int) -> None:
        """They ask any server for conversations whose server has gone."""
        kinds = [True] * live + [False] * idle
        self.drawn.shuffle(kinds)
        for each in kinds:
            await trio.sleep(RETURN / len(kinds) * 2 * self.drawn.random())
            server = self.drawn.choice([each for each in self.running() if not each.cut_off])
            await self.database.take(server.number, live=each)
            if each:
                server.live += 1
            else:
                server.idle += 1

    async def watch(self) -> None:
        """In each bin: account for the events' commits, check the invariants, note what is unowned."""
        plan, lost = self.plan, False
        for each in count():
            await trio.sleep_until((each + 0.5) * BIN)
            self.database.journal()
            self.check()
            rows = self.database.rows
            orphans = sum(
                row.live for row in rows.values() if row.live and not self.servers[row.number].running
            )
            unowned = orphans + self.database.wanted
            self.report.unowned.append(unowned)
            lost = lost or (plan.lost > 0 and self.report.deaths > 0)
            if lost and unowned == 0 and self.report.deaths == plan.lost and not self.report.claimed_after:
                self.report.claimed_after = trio.current_time() - plan.lost_at

    def check(self) -> None:
        database, plan = self.database, self.plan
        owned = sum(row.live + row.idle for row in database.rows.values())
        everything = owned + database.wanted + database.free_idle + database.coming
        if everything != plan.conversations // plan.servers * plan.servers:
            self.violation(f"there are {everything} conversations")
        for each in self.running():
            row = database.rows.get(each.number)
            if row is None:
                self.violation(f"server {each.number} runs, and was declared dead")
            elif each.live > row.live or each.idle > row.idle:
                self.violation(f"server {each.number} believes to own more than it does")

    async def lose(self) -> None:
        await trio.sleep(self.plan.lost_at)
        for each in list(self.running())[: self.plan.lost]:
            each.cut_off = True
            if self.plan.power:
                each.end()

    async def outage(self, begins: float, ends: float) -> None:
        await trio.sleep_until(begins)
        self.database.reachable = False
        await trio.sleep_until(ends)
        self.database.reachable = True

    async def deploy(self) -> None:
        for each in list(self.running()):
            self.nursery.start_soon(self.replace, each)
            await trio.sleep(self.plan.deploy / self.plan.servers)

    async def replace(self, old: Server) -> None:
        await trio.sleep(TURNS_END * self.drawn.random())
        watched = int(old.idle * WATCHED)
        old.end()
        del self.servers[old.number]
        live = await self.database.release(old.number, QUEUED)
        self.nursery.start_soon(self.clients, live, watched)
        await trio.sleep(AWAY)
        number, sent = old.number + self.plan.servers, trio.current_time()
        new = Server(number, self.database, self.drawn)
        await self.database.join(number, new.free, CONNECTIONS)
        self.servers[number] = new
        new.joined(sent)
        self.nursery.start_soon(new.run)
