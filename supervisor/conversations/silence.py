"""Telling a hung agent from a quiet one: how long a turn may be silent, and who is told before it ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio

CPU_SHARE: Final = 0.05
"""CPU seconds per second, of the whole process tree, from which an agent counts as working. Idle Node
processes use a hundredth of that."""

WAITING_PART: Final = 0.05
"""While a person is waited for, silence is looked at again after this part of its limit."""


@attrs.frozen(kw_only=True)
class Silence:
    """What a turn's silence is judged by. All times are on Trio's clock, in seconds.

    `touched` is when the agent gave the last sign of life; `allowed` how long it may be silent now (longer
    while a tool runs) and `longest` at the very most; `waiting` whether a person is waited for, which does
    not count; `cpu` the CPU time of the process tree; `warn` is told how long it has been silent and how
    much is left, after the part `warning` of what is allowed.
    """

    touched: Callable[[], float]
    allowed: Callable[[], float]
    longest: float
    warning: float
    waiting: Callable[[], bool]
    cpu: Callable[[], Awaitable[float]]
    warn: Callable[[float, float], None]

    async def lasts_too_long(self) -> float:
        """Return, with the seconds of silence, once it has lasted too long. Ends by cancellation else."""
        while True:
            begin, allowed = self.touched(), self.allowed()
            await trio.sleep_until(begin + allowed * self.warning)
            if self.waiting():
                await trio.sleep(allowed * WAITING_PART)
            elif self.touched() == begin and await self._goes_on(begin, allowed):
                return trio.current_time() - begin

    async def _goes_on(self, begin: float, allowed: float) -> bool:
        """From the warning to the end: False when there was a sign of life. Work on the CPU buys time."""
        since, end, cap = begin + allowed * self.warning, begin + allowed, begin + self.longest
        spent = await self.cpu()
        self.warn(since - begin, end - since)
        while True:
            await trio.sleep_until(end)
            if self.touched() != begin or self.waiting():
                return False
            now = await self.cpu()
            if now - spent < (end - since) * CPU_SHARE or end >= cap:
                return True
            spent, since, end = now, end, min(end + allowed, cap)
