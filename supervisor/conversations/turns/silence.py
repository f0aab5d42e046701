"""Tells a hung agent from a quiet one: how long a turn may be silent, and who is warned before it ends."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import attrs
import trio

from supervisor.conversations.agent.lifecycle import AgentLifecycle
from supervisor.conversations.recording.recorder import Recorder
from supervisor.conversations.recording.translate import Translator
from supervisor.conversations.state.deadlines import Deadlines
from supervisor.conversations.turns.permissions import Permissions

CPU_SHARE: Final = 0.05
"""CPU seconds per second of the whole process tree from which on an agent counts as working.

Idle Node.js processes use a hundredth of that.
"""

WAITING_PART: Final = 0.05
"""Part of the limit after which silence is checked again while a person is asked."""


@attrs.frozen(kw_only=True)
class Silence:
    """The inputs for judging a turn's silence. All times are on Trio's clock, in seconds.

    `touched`: the agent's last sign of life. `allowed`: how long it may be silent now (longer while a tool
    runs). `longest`: the absolute limit. `waiting`: whether a person or the journal is waited for, which does
    not count. `cpu`: the CPU time of the process tree. `warn`: called after the part `warning` of the limit,
    with the seconds of silence so far and the seconds left.
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
        """Wait from the warning to the limit. False if there was a sign of life. CPU use extends the time."""
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


class SilenceWatch:
    """Watches one conversation's agent during its turns. Signs of life come by `touch`; `permissions` knows
    when a person is asked."""

    def __init__(
        self,
        deadlines: Deadlines,
        lifecycle: AgentLifecycle,
        recorder: Recorder,
        translator: Translator,
        permissions: Permissions,
    ) -> None:
        self._deadlines = deadlines
        self._lifecycle = lifecycle
        self._recorder = recorder
        self._translator = translator
        self._permissions = permissions
        self._touched = 0.0

    def touch(self) -> None:
        """Note a sign of life: silence counts from here."""
        self._touched = trio.current_time()

    async def lasts_too_long(self) -> float:
        """Return, with the seconds of silence, once it has lasted too long. Ends by cancellation else.

        The limits are those that the conversation's settings have at its beginning.
        """
        limit = self._recorder.record.agent.acp_prompt_timeout or self._deadlines.silence
        longest = limit * self._deadlines.tool_factor
        silence = Silence(
            touched=lambda: max(self._touched, self._permissions.touched),
            allowed=lambda: longest if self._translator.calling else limit,
            longest=longest,
            warning=self._deadlines.silence_warning,
            waiting=lambda: (
                self._permissions.waiting
                or self._permissions.asking_hooks
                or self._recorder.log.trouble is not None
            ),
            cpu=self._cpu,
            warn=self._warn,
        )
        return await silence.lasts_too_long()

    async def _cpu(self) -> float:
        await self._lifecycle.measure()
        return self._lifecycle.cpu_seconds

    def _warn(self, silent: float, left: float) -> None:
        value = {"silent_seconds": round(silent, 1), "ends_in_seconds": round(left, 1)}
        self._recorder.write([self._recorder.state("agent_silent", value)])
