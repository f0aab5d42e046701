"""Admission control: how many agents live, how many start at a time, and which one is hibernated to make
room.

An agent's process tree takes 300 MB to several GB, and some file descriptors of the server. So agents,
concurrent starts, memory and descriptors are limited. At a limit, idle agents are hibernated, the one idle
longest first. If none is idle, a start waits in a queue, or is refused, as configured.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final, Protocol

import attrs
import structlog
import trio

from supervisor.agents.containment.marker import Snapshot, take_snapshot
from supervisor.agents.spawning.confinement import memory_limit
from supervisor.conversations.state.errors import AtCapacity

log = structlog.get_logger(__name__)

STARTS_AT_ONCE: Final = 8
"""Concurrent starts of agents: each takes a core for a second or so."""

IDLE_SECONDS: Final = 1800.0
"""Seconds without a turn after which an agent is hibernated; the next message brings it back in seconds."""

MEMORY_PART: Final = 0.8
"""Fraction of the machine's (or the cgroup's) memory that all agents together may use."""

SAMPLE_SECONDS: Final = 5.0
"""Seconds between two measurements of all agents' memory, and two searches for idle ones."""

CLOSE_SAMPLE_SECONDS: Final = 1.0
"""The same for agents whose limits only these measurements hold: what an agent takes too much in between is
not stopped. One look at /proc takes milliseconds."""

RETRY_AFTER_SECONDS: Final = 5.0
"""Seconds in the `Retry-After` header of a refusal."""

DEFAULT_WARM: Final[Mapping[str, int]] = {"openhands": 1}
"""Warm processes by agent key: the built-in agent takes seconds to import its library."""

WARM_MAX: Final = 16
"""The most warm processes of one agent: each is a process that may never be used."""

FULL_POLICIES: Final = ("queue", "refuse")


class Tenant(Protocol):
    """An agent, as admission sees it."""

    @property
    def idle_since(self) -> float | None:
        """The time since which it may be hibernated (Trio's clock); None while it is in use."""

    @property
    def rss_bytes(self) -> int:
        """Memory of its process tree at the last measurement, in bytes."""

    async def measure(self, seen: Snapshot | None = None) -> None:
        """Measure its process tree."""

    async def hibernate(self, reason: str) -> None:
        """Stop its process; its session can be restored."""


@attrs.frozen(kw_only=True)
class Limits:
    """The operator's limits.

    `agents` and `memory_bytes`: None means no such limit.

    `idle_seconds`: None keeps idle agents running until room is needed.

    `full`: what happens to a start beyond the limits.

    `agent_slots` and `terminals`: how many agents and terminals the server's file descriptors allow; None
    means no such limit.
    """

    agents: int | None = None
    starts: int = STARTS_AT_ONCE
    memory_bytes: int | None = None
    idle_seconds: float | None = IDLE_SECONDS
    full: str = "queue"
    agent_slots: int | None = None
    terminals: int | None = None

    @property
    def most_agents(self) -> int | None:
        """The most agents that may live, by the operator's limit and by the descriptors; None: no limit."""
        return min((each for each in (self.agents, self.agent_slots) if each is not None), default=None)


class Slots:
    """A counting semaphore that refuses instead of waiting. `limit` None: no limit."""

    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.taken = 0

    def take(self, held: int = 0) -> bool:
        """Take a slot, which the caller must release. False if none is free, or if the caller, which holds
        `held` slots, would hold more than are left for all others."""
        if self.limit is not None and self.taken + held >= self.limit:
            return False
        self.taken += 1
        return True

    def give(self) -> None:
        """Give a slot back."""
        self.taken -= 1


def memory_budget(root: Path = Path("/")) -> int | None:
    """The default memory limit for agents, in bytes: a fraction of `memory_limit`. None if that is
    unknown."""
    limit = memory_limit(root)
    return None if limit is None else int(limit * MEMORY_PART)


def memory_left(root: Path = Path("/")) -> int | None:
    """Memory available for new processes, in bytes: the machine's, or what the cgroup's limit leaves.

    Reads /proc/meminfo and the cgroup's files (version 2). None if neither is known. Blocking.
    """
    found: list[int] = []
    group = root / "sys/fs/cgroup"
    try:
        limit, used = ((group / name).read_text().strip() for name in ("memory.max", "memory.current"))
        if limit.isdigit():
            caches = [
                line for line in (group / "memory.stat").read_text().splitlines() if "inactive_file" in line
            ]
            found.append(int(limit) - int(used) + sum(int(line.split()[1]) for line in caches[:1]))
    except (OSError, ValueError):
        pass
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        found += [int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")]
    except (OSError, ValueError):
        pass
    return min(found) if found else None


class Admission:
    """The agents that live, and the queue of those that wait to start. One per server."""

    def __init__(self, limits: Limits, terminals: Slots | None = None) -> None:
        self.limits = limits
        self._tenants: set[Tenant] = set()
        self._warm: set[Tenant] = set()
        """The tenants that are warm processes: they are stopped first to make room."""
        self._close: set[Tenant] = set()
        """The tenants that are measured more often."""
        self._first_close = trio.Event()
        """Set while there are such tenants."""
        self._starts = trio.CapacityLimiter(limits.starts)
        self._left = trio.Event()
        self._line = trio.Lock()
        self.queued = 0
        self.terminals = terminals or Slots(limits.terminals)
        """Slots for the terminals of all agents, and for clients' commands."""

    @property
    def live(self) -> int:
        """The number of agents that live or start."""
        return len(self._tenants)

    @property
    def starting(self) -> int:
        """The number of starts in progress."""
        return self._starts.borrowed_tokens

    @property
    def warm_processes(self) -> int:
        """The number of warm processes among them."""
        return len(self._warm)

    @property
    def over_memory(self) -> bool:
        """Whether the agents use their memory budget or more."""
        limit = self.limits.memory_bytes
        return limit is not None and self.rss_bytes >= limit

    @property
    def rss_bytes(self) -> int:
        """Memory of all agents at the last measurement, in bytes."""
        return sum(tenant.rss_bytes for tenant in self._tenants)

    def check(self) -> None:
        """Refuse a start that would have to wait. Raises AtCapacity if the operator chose that."""
        if self.limits.full == "refuse" and self._full() and self._idle() is None:
            raise AtCapacity("the server is at its limit of agents; try again later", RETRY_AFTER_SECONDS)

    @asynccontextmanager
    async def tenancy(self, tenant: Tenant, waiting: Callable[[], None]) -> AsyncIterator[None]:
        """Hold a slot for an agent while the block runs.

        `waiting`: called if no slot is free at once.

        Starts wait in order of arrival. Cancellation leaves the queue.
        """
        if self._line.locked() or self._full():
            waiting()
        self.queued += 1
        try:
            # One at a time, in order of arrival: a small agent must not pass one that waits for room.
            async with self._line:
                await self._make_room()
                self._tenants.add(tenant)
        finally:
            self.queued -= 1
        try:
            yield
        finally:
            self._tenants.discard(tenant)
            self._left.set()

    def warm_room(self, expected_bytes: int, slots: int = 1) -> bool:
        """Whether `slots` speculative processes may start: a slot stays free, no start waits, and the memory
        suffices."""
        limits = self.limits
        if self.queued or self._line.locked():
            return False
        if limits.most_agents is not None and len(self._tenants) + slots + 1 > limits.most_agents:
            return False
        return limits.memory_bytes is None or self.rss_bytes + expected_bytes <= limits.memory_bytes

    @contextmanager
    def count_warm(self, process: Tenant) -> Iterator[None]:
        """Count a warm process while the block runs. It does not wait for a slot."""
        self._tenants.add(process)
        self._warm.add(process)
        try:
            yield
        finally:
            self._warm.discard(process)
            self._tenants.discard(process)
            self._left.set()

    @asynccontextmanager
    async def succession(self, warm: Tenant, tenant: Tenant) -> AsyncIterator[None]:
        """Transfer a warm process's slot to the tenant, which has its process now, while the block runs."""
        self._warm.discard(warm)
        self._tenants.discard(warm)
        self._tenants.add(tenant)
        try:
            yield
        finally:
            self._tenants.discard(tenant)
            self._left.set()

    @asynccontextmanager
    async def closely(self, tenant: Tenant, wanted: bool) -> AsyncIterator[None]:
        """Measure a tenant often while the block runs, if that is wanted."""
        if wanted:
            self._close.add(tenant)
            self._first_close.set()
        try:
            yield
        finally:
            self._close.discard(tenant)
            if not self._close and self._first_close.is_set():
                self._first_close = trio.Event()

    @asynccontextmanager
    async def start(self) -> AsyncIterator[None]:
        """Hold a slot for concurrent starts while the block runs."""
        async with self._starts:
            yield

    def look_again(self) -> None:
        """Wake waiting starts: an agent has become idle, and may be hibernated for one of them."""
        self._left.set()

    async def _make_room(self) -> None:
        while self._full():
            self._left = trio.Event()
            tenant = self._idle()
            if tenant is not None:
                await tenant.hibernate("another agent needs its slot")
            else:
                with trio.move_on_after(SAMPLE_SECONDS):
                    await self._left.wait()

    def _full(self) -> bool:
        limits = self.limits
        if limits.most_agents is not None and len(self._tenants) >= limits.most_agents:
            return True
        # One agent is always admitted: a budget too small for any would otherwise block all silently.
        return bool(self._tenants) and self.over_memory

    def _idle(self) -> Tenant | None:
        """The tenant to stop for room: the oldest warm process, else the agent that has been idle longest."""
        return longest_idle(self._warm) or longest_idle(self._tenants)

    async def watch(self) -> None:
        """Measure all agents and hibernate those idle for too long, until cancelled. The supervisor's
        task."""
        due = trio.current_time() + SAMPLE_SECONDS
        while True:
            everyone = await self._next_look(due)
            try:
                measured = self._tenants if everyone else self._close
                if measured:
                    # One look at /proc for all of them: each takes milliseconds.
                    seen = await take_snapshot()
                    for tenant in list(measured):
                        await tenant.measure(seen)
                if everyone:
                    await self._hibernate_idle()
            except Exception:
                # All agents depend on this task: a fault with one of them must not end it.
                log.exception("hibernation check failed")
            if everyone:
                due = trio.current_time() + SAMPLE_SECONDS

    async def _next_look(self, due: float) -> bool:
        """Wait for the next look at those that are measured often, or at the latest at `due` (Trio's clock)
        at all. Returns whether it is that of all."""
        with trio.move_on_at(due):
            await self._first_close.wait()
            await trio.sleep(CLOSE_SAMPLE_SECONDS)
            return False
        return True

    async def _hibernate_idle(self) -> None:
        patience = self.limits.idle_seconds
        while patience is not None:
            # Warm processes are idle by nature, and the pool ends them by their age.
            tenant = longest_idle(self._tenants - self._warm)
            if tenant is None or tenant.idle_since is None:
                return
            if trio.current_time() - tenant.idle_since < patience:
                return
            await tenant.hibernate("idle time is over")


def longest_idle(tenants: Iterable[Tenant]) -> Tenant | None:
    """Return the tenant that has been idle longest, of those that may be hibernated."""
    idle = [(tenant.idle_since, tenant) for tenant in tenants if tenant.idle_since is not None]
    return min(idle, key=lambda pair: pair[0])[1] if idle else None
