"""When a crashed agent is restarted, and when it is parked. Pure: times in, decisions out.

The rule is OTP's `transient` child under `one_for_one`: an agent that ended abnormally is restarted alone,
with growing pauses, until its budget of crashes is used up. Then it is parked: a crash loop costs money and
does not help. Ends that are not crashes never come here: an orderly exit, a requested stop, missing
credentials, a rate limit.
"""

from __future__ import annotations

from typing import Final

import attrs

BUDGET_CRASHES: Final = 5
"""Crashes within BUDGET_SECONDS that are followed by a restart; one more parks the agent."""

BUDGET_SECONDS: Final = 60.0
"""The budget's window in seconds: an agent that runs longer than this between crashes is worth restarting."""

FIRST_PAUSE_SECONDS: Final = 0.5
"""Pause before the first restart, seconds: a file lock or a port of the dead process is free by then."""

LONGEST_PAUSE_SECONDS: Final = 15.0
"""Longest pause between restarts, seconds; the budget's window is longer than all pauses together."""

FACTOR: Final = 2.0
"""The factor by which each pause is longer than the one before."""

JITTER: Final = 0.25
"""Random part that is added to a pause: agents that crashed together do not restart together."""


@attrs.frozen(kw_only=True)
class RestartPolicy:
    """The restart limits of one server's agents.

    `parked_seconds`: after this time the next message may try a parked agent again; None: only an operator's
    restart does.
    """

    crashes: int = BUDGET_CRASHES
    seconds: float = BUDGET_SECONDS
    first_pause: float = FIRST_PAUSE_SECONDS
    longest_pause: float = LONGEST_PAUSE_SECONDS
    parked_seconds: float | None = None


@attrs.frozen
class Retry:
    """Restart it after `pause` seconds; it is restart number `attempt` within the window."""

    pause: float
    attempt: int


@attrs.frozen
class Parked:
    """The budget is spent: `crashes` within `seconds`."""

    crashes: int
    seconds: float


@attrs.define
class RestartBudget:
    """The crashes of one agent. `now` is a monotonic clock, in seconds; `chance` is in [0, 1)."""

    policy: RestartPolicy = attrs.field(factory=RestartPolicy)
    _crashes: list[float] = attrs.field(factory=list)
    _parked_at: float | None = None

    def crashed(self, now: float, chance: float) -> Retry | Parked:
        """Count a crash, and decide between restart and parking."""
        self._crashes = [at for at in (*self._crashes, now) if now - at <= self.policy.seconds]
        attempt = len(self._crashes)
        # A crash loop costs money, and the next start would end the same way.
        if attempt > self.policy.crashes:
            self._parked_at = now
            return Parked(attempt, self.policy.seconds)
        pause = min(self.policy.first_pause * FACTOR ** (attempt - 1), self.policy.longest_pause)
        return Retry(pause * (1 + JITTER * chance), attempt)

    def parked(self, now: float) -> bool:
        """Whether it is parked. Ends the parking if the policy lets it expire."""
        if self._parked_at is None:
            return False
        after = self.policy.parked_seconds
        if after is not None and now - self._parked_at >= after:
            self.forgive()
            return False
        return True

    def forgive(self) -> None:
        """Restore the whole budget: an operator restarts the agent."""
        self._crashes.clear()
        self._parked_at = None
