"""Runs the tools of one step of the model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

from openhands.sdk.agent.parallel_executor import ParallelToolExecutor
from openhands.sdk.event import ActionEvent, Event

ACTING: ContextVar[str | None] = ContextVar("acting", default=None)
"""The event of the action for which a tool runs; a sub-agent that the tool starts inherits it."""


class Executor(ParallelToolExecutor):
    """Runs the tools of a step; an interrupt does not wait for tools that do not stop.

    The SDK's executor waits in the event loop for every thread of a batch, and takes threads for single calls
    from a small pool, which tools that never end would exhaust.
    """

    async def aexecute_batch(
        self,
        action_events: Sequence[ActionEvent],
        tool_runner: Callable[[ActionEvent], list[Event]],
        tools: Any = None,
        cancel_token: Any = None,
        span_owner: object | None = None,
    ) -> list[list[Event]]:
        """Run the tools of a batch, as many at once as the agent may; results in the order of the actions."""

        def run(action: ActionEvent) -> list[Event]:
            ACTING.set(action.id)  # each call runs in a separate context
            return tool_runner(action)

        pool = ThreadPoolExecutor(max(1, self._max_workers), thread_name_prefix="tool")
        try:
            return list(
                await asyncio.gather(
                    *(
                        self._arun_safe(
                            action,
                            run,
                            tools.get(action.tool_name) if tools else None,
                            cancel_token,
                            pool,
                            span_owner,
                        )
                        for action in action_events
                    )
                )
            )
        finally:
            pool.shutdown(wait=False)
