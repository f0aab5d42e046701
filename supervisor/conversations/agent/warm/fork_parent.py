"""A running program that forks an agent's processes, so that they share the memory of its imports."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import attrs
import structlog
import trio

from supervisor.agents.containment.marker import Snapshot
from supervisor.agents.endings import StopPolicy
from supervisor.agents.spawning.forker import Forker, open_forker
from supervisor.conversations.agent.launch.plan import Plan
from supervisor.patience import ended_by

log = structlog.get_logger(__name__)


@attrs.define(eq=False)
class ForkParent:
    """A parent process, which belongs to no conversation and is planned like a warm process.

    `scope`: cancelling it ends the parent, not its forks. `gone`: set when its process tree has ended.
    `decided`: set when it is known whether it can fork.
    """

    name: str
    agent: str
    fingerprint: bytes
    key: bytes
    """The key of the processes that it forks (`process.key_of`)."""
    born: float = attrs.field(factory=trio.current_time)
    scope: trio.CancelScope = attrs.field(factory=trio.CancelScope)
    gone: trio.Event = attrs.field(factory=trio.Event)
    decided: trio.Event = attrs.field(factory=trio.Event)
    forker: Forker | None = None
    rss_bytes: int = 0
    cpu_seconds: float = 0.0
    processes: int = 0

    @property
    def idle_since(self) -> float | None:
        """The time since which it runs, for admission, which stops it for room like a warm process."""
        return None if self.scope.cancel_called else self.born

    @property
    def usable(self) -> bool:
        """Whether it can fork."""
        return self.forker is not None and self.forker.usable and not self.scope.cancel_called

    async def measure(self, seen: Snapshot | None = None) -> None:
        """Measure memory and CPU time."""
        if self.usable and self.forker is not None:
            usage = await self.forker.process.usage(seen)
            self.rss_bytes, self.cpu_seconds, self.processes = (
                usage.rss_bytes,
                usage.cpu_seconds,
                usage.processes,
            )

    async def hibernate(self, reason: str) -> None:
        """End it; its forks continue."""
        log.info("ending the parent of forked agents", agent=self.agent, reason=reason)
        self.scope.cancel()
        await self.gone.wait()

    async def run(self, plan: Plan, argv: Sequence[str], stop: StopPolicy, spawn_seconds: float) -> None:
        """Run it until it ends, stops answering (it may be suspended), or the scope is cancelled. Raises
        SpawnError."""
        try:
            async with open_forker(
                argv, cwd=plan.cwd, env=plan.start_environment, stop=stop, seconds=spawn_seconds
            ) as forker:
                self.forker = forker
                self.decided.set()
                async with ended_by(forker.process.exited.wait):
                    await forker.gone.wait()
        finally:
            self.decided.set()


def parent_command(plan: Plan) -> list[str] | None:
    """The command that runs the parent in place of the plan's program; None if it has none. Blocking."""
    if plan.descriptor.forks is None:
        return None
    for index, word in enumerate(plan.argv):
        parent = Path(word, plan.descriptor.forks)
        if parent.is_file():
            return [*plan.argv[:index], str(parent), *plan.argv[index + 1 :]]
    return None
