"""A debouncer: it fires soon after the last event, and at most some time after the first one."""

from __future__ import annotations

import math
from collections.abc import Callable

import trio


class Debouncer:
    """Calls `fire` when `quiet` seconds have passed since the last `note`, or `limit` since the first."""

    def __init__(self, quiet: float, limit: float, fire: Callable[[], None]) -> None:
        self._quiet = quiet
        self._limit = limit
        self._fire = fire
        self._since = self._until = math.inf
        self._noted = trio.Event()

    def note(self) -> None:
        """Note an event: restart the quiet period."""
        now = trio.current_time()
        self._since = min(self._since, now)
        self._until = min(now + self._quiet, self._since + self._limit)
        self._noted.set()

    async def run(self) -> None:
        """Run the timer until cancelled."""
        while True:
            await self._noted.wait()
            while trio.current_time() < self._until:  # noqa: ASYNC110 - it moves while we sleep
                await trio.sleep_until(self._until)
            self._noted = trio.Event()
            self._since = self._until = math.inf
            self._fire()
