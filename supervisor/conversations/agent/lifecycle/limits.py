"""Watches the limits of an agent's process tree with what admission measures, and ends an agent above one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

import trio

from supervisor.agents.endings import TreeUsage
from supervisor.agents.limits.disk import disk_use
from supervisor.agents.limits.hits import LimitHit
from supervisor.agents.limits.mechanisms import Mechanism
from supervisor.agents.limits.values import Limit
from supervisor.conversations.agent.incarnation import Incarnation
from supervisor.conversations.agent.launch.homes import OWN_PATHS
from supervisor.conversations.agent.shared import Shared
from supervisor.patience import PathTimeout, in_time

DISK_SECONDS: Final = 30.0
"""Seconds between two walks through an agent's home: one may look at 200,000 entries."""


class LimitWatch:
    """The limits of one conversation's agent, over all its incarnations."""

    def __init__(self, shared: Shared) -> None:
        self._id = shared.record.id
        self._publisher = shared.publisher
        self._logger = shared.recorder.logger
        self._walked = "", 0.0
        """The marker of the process whose home was walked last, and when (Trio's clock)."""

    def look(self, run: Incarnation, usage: TreeUsage) -> None:
        """Judge a measurement. An agent above a limit is ended by a task of the incarnation."""
        if not _works(run):
            return
        self._act(run, run.process.limits.look(usage))
        marker, at = self._walked
        first = marker != run.process.marker
        due = first or trio.current_time() - at >= DISK_SECONDS
        if due and run.process.limits.holding.holds(Limit.DISK, Mechanism.POLLING) and _works(run):
            self._walked = run.process.marker, trio.current_time()
            run.nursery.start_soon(self._walk, run, first)

    async def _walk(self, run: Incarnation, first: bool) -> None:
        """Measure the agent's home. `first`: of this process; what is unknown is logged then."""
        most = run.process.limits.holding.most(Limit.DISK, Mechanism.POLLING)
        assert most is not None
        walk = partial(disk_use, run.plan.own_directories, most)
        try:
            found = await in_time(walk, "to measure the agent's home", limiter=OWN_PATHS.of(self._id))
        except PathTimeout as error:
            if first:
                self._logger.warning("the disk use of an agent is unknown", reason=str(error))
            return
        self._walked = run.process.marker, trio.current_time()
        if not _works(run):
            return
        hits = run.process.limits.look_at_disk(found.bytes)
        if first and not hits and not found.whole:
            self._logger.warning("the disk use of an agent is known in part", at_least=found.bytes)
        self._act(run, hits)

    def _act(self, run: Incarnation, hits: Sequence[LimitHit]) -> None:
        for hit in hits:
            if not hit.ended:
                self._logger.warning("agent hit a limit", **hit.dump())
                self._publisher.limit_hit(hit, in_turn=False)
        if any(hit.ended for hit in hits):
            run.nursery.start_soon(self._end, run)

    async def _end(self, run: Incarnation) -> None:
        """End an agent that is above a limit: SIGTERM, then the usual stop. It counts as a crash."""
        assert run.process.limits.hit is not None
        self._logger.warning("ending an agent above a limit", **run.process.limits.hit.dump())
        await run.process.terminate()
        run.scope.cancel()


def _works(run: Incarnation) -> bool:
    """Whether it is not being ended already, so that its nursery takes tasks."""
    return run.process.limits.hit is None and run.asked is None and run.usable
