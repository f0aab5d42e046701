"""An agent as it is now: its phase, its process, since when it is idle, what it takes.

Views, admission and the parts of a turn read it; `lifecycle` changes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import trio

from supervisor.acp import method_offered
from supervisor.agents.catalog import Descriptor
from supervisor.agents.containment.marker import Snapshot
from supervisor.agents.walls.wall import Wall
from supervisor.conversations.agent.incarnation import Incarnation
from supervisor.conversations.agent.lifecycle.last_output import LastOutput
from supervisor.conversations.agent.lifecycle.limits import LimitWatch
from supervisor.conversations.agent.lifecycle.restarts import Restarts
from supervisor.conversations.agent.shared import Shared
from supervisor.conversations.agent.side.registry import SideSession
from supervisor.conversations.state.status import AgentPhase


class AgentPresence:
    """What there is of one conversation's agent, with or without a process."""

    def __init__(self, shared: Shared) -> None:
        self._context = shared.context
        self._record = shared.record
        self._publisher = shared.publisher
        self._queue = shared.queue
        self.ready: Incarnation | None = None
        """The incarnation that can take a prompt."""
        self.current: Incarnation | None = None
        """The incarnation that has a process, ready or not."""
        self.phase = AgentPhase.NONE
        self.restarts = Restarts(shared.context)
        self.output = LastOutput(shared.record)
        self._limits = LimitWatch(shared)
        self._used_at = 0.0
        self._borrowed = 0
        self.last_exit: str | None = None
        self.started_at: float | None = None
        self.rss_bytes = self.processes = 0
        self.cpu_seconds = 0.0

    @property
    def live(self) -> bool:
        """Whether there is a process, ready or not."""
        return self.current is not None

    def side_of(self, params: Any) -> SideSession | None:
        """The side session that a message of the agent is about, if any."""
        return None if self.current is None else self.current.side_of(params)

    @property
    def pid(self) -> int | None:
        """Process id of the agent, ready or not."""
        return None if self.current is None else self.current.pid

    @property
    def walls(self) -> str | None:
        """What it can reach of the machine; None: it does not run."""
        if self.current is None:
            return None
        enclosure = self.current.plan.enclosure
        return (Wall.OFF if enclosure is None else enclosure.wall).value

    @property
    def walls_mechanism(self) -> str | None:
        """What its wall is made of; None: it has none, or does not run."""
        enclosure = None if self.current is None else self.current.plan.enclosure
        return None if enclosure is None else enclosure.mechanism.value

    @property
    def descriptor(self) -> Descriptor:
        """The descriptor of this kind of agent."""
        return self._context.launcher.descriptor(self._record)

    def set_phase(self, phase: AgentPhase) -> None:
        """Set the agent's phase, and publish it."""
        if self.phase is not phase:
            self.phase = phase
            self._publisher.phase(phase)

    @property
    def idle_since(self) -> float | None:
        """The time since which it is idle (Trio's clock): the end of its last turn, side question, terminal
        or start. None while it is in use."""
        run = self.ready
        if run is None or self.phase is not AgentPhase.READY or self._queue.busy or run.serves_terminals:
            return None
        if run.sides or self._borrowed:
            return None
        return max(self._used_at, run.services.released_at)

    def touch(self) -> None:
        """Note that it was in use until now."""
        self._used_at = trio.current_time()

    async def measure(self, seen: Snapshot | None = None) -> None:
        """Measure memory and CPU time of the process tree, in the snapshot `seen` or in a new one, and judge
        them by its limits."""
        run = self.current
        if run is not None and not run.process.exited.is_set():
            usage = await run.process.usage(seen)
            self.rss_bytes, self.cpu_seconds, self.processes = (
                usage.rss_bytes,
                usage.cpu_seconds,
                usage.processes,
            )
            self._limits.look(run, usage)

    async def changed_secrets(self, current: Mapping[str, str] | None) -> tuple[str, ...]:
        """The names of secrets that changed since the live agent started.

        `current`: the launcher's `global_secrets`.

        Changes apply from the agent's next start: before the next turn if its session can be restored and no
        side question is open, else when an operator restarts it.
        """
        run = self.current
        if run is None:
            return ()
        return await self._context.launcher.changed_secrets(self._record, run.plan, current)

    @property
    def restorable(self) -> bool:
        """Whether the agent's next process can resume its session, and at once."""
        return self.ready is not None and _restores(self.ready) and not self.descriptor.sessions_by_minute

    async def outdated(self, run: Incarnation) -> bool:
        """Whether changed secrets require a restart, and a restart loses nothing, not even a side
        question."""
        restorable = not self._record.now.session_used or _restores(run)
        if not restorable or run.serves_terminals or run.sides or self._borrowed:
            return False
        return bool(await self.changed_secrets(await self._context.launcher.global_secrets()))


def _restores(run: Incarnation) -> bool:
    assert run.initialized is not None
    return any(method_offered(run.initialized, each) for each in ("session/resume", "session/load"))
