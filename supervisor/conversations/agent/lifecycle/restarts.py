"""An agent's crashes and restarts: how long the next start waits, when the agent is parked, the task that
restarts it."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable

import trio

from supervisor.agents.restart import Parked, RestartBudget
from supervisor.conversations.agent.context import Context
from supervisor.conversations.state.errors import AgentFailure


class Restarts:
    """The crashes and restarts of one conversation's agent."""

    def __init__(self, context: Context) -> None:
        self._counters = context.counters
        self._budget = RestartBudget(context.restart)
        self.not_before = -math.inf
        """The time (Trio's clock) before which no start begins."""
        self.crashes = 0
        self.count = 0
        """How often it was restarted."""
        self.active = False
        """Whether it restarts by itself after a crash."""
        self._came_back = trio.Event()
        self._coming_back = trio.CancelScope()

    @property
    def parked(self) -> bool:
        """Whether the agent crashed too often to be started."""
        return self._budget.parked(trio.current_time())

    def crashed(self) -> Parked | None:
        """Count a crash. Returns a value when the budget is spent."""
        self.crashes += 1
        self._counters.crashes += 1
        now = trio.current_time()
        # The random part keeps agents that one cause has ended from starting together.
        decision = self._budget.crashed(now, random.random())  # noqa: S311 - no secret, a pause
        if isinstance(decision, Parked):
            return decision
        self.not_before = now + decision.pause
        return None

    def begin(
        self, nursery: trio.Nursery, restart: Callable[[], Awaitable[None]], ended: Callable[[], None]
    ) -> None:
        """Restart the crashed agent as a task, so that the next message finds it ready: OTP's `transient`.
        `ended` is called at the end of the task."""
        self.active = True
        self._came_back = trio.Event()
        # Made before its task runs, so that an immediate stop cancels it.
        self._coming_back = trio.CancelScope()
        nursery.start_soon(self._run, restart, ended)

    async def _run(self, restart: Callable[[], Awaitable[None]], ended: Callable[[], None]) -> None:
        try:
            with self._coming_back:
                await restart()
        finally:
            self.active = False
            self._came_back.set()
            ended()

    async def over(self) -> None:
        """Wait for the end of a restart in progress."""
        while self.active:
            await self._came_back.wait()

    async def call_off(self) -> None:
        """Cancel a restart in progress, and wait for its end."""
        if self.active:
            self._coming_back.cancel()
            await self._came_back.wait()

    def restarted(self) -> None:
        """Count a restart, after a crash or at an operator's request."""
        self.count += 1
        self._counters.restarts += 1

    def forgive(self) -> None:
        """Reset the crash budget, since an operator restarts the agent."""
        self._budget.forgive()
        self.not_before = -math.inf


def parked(last_exit: str | None) -> AgentFailure:
    """The failure of a start while the agent is parked."""
    return AgentFailure(
        "AgentParked",
        "The agent crashed too often and is parked. Restart it with `ostler restart` to continue. "
        f"Last exit: {last_exit}",
        kind="internal",
        retryable=False,
        user_action="none",
    )
