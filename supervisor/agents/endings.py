"""The end of an agent's process as values: stop policy, stop report, exit status."""

from __future__ import annotations

import enum
import signal
from contextlib import suppress

import attrs

STDIN_GRACE_SECONDS = 1.0
"""Seconds from end of input to the first signal.

Well-behaved agents exit within 0.2 s; a busy one has time to save.
"""

TERM_GRACE_SECONDS = 0.5
"""Seconds from SIGTERM to SIGKILL.

Together with the grace above, no process is left two seconds after the stop.
"""

KILL_SECONDS = 2.0
"""Seconds of repeated killing, for processes that fork faster than they are found or hang in the kernel."""


@attrs.frozen(kw_only=True)
class StopPolicy:
    """The seconds that each step of ending a process may take."""

    stdin_grace: float = STDIN_GRACE_SECONDS
    term_grace: float = TERM_GRACE_SECONDS
    kill: float = KILL_SECONDS


class StopStep(enum.StrEnum):
    """The step after which no process was left."""

    EXITED = "exited"
    """It had ended before, without leaving a process."""
    STDIN = "stdin"
    """It exited by itself at the end of its input."""
    TERM = "term"
    KILL = "kill"


@attrs.frozen(kw_only=True)
class StopReport:
    """How a process and its tree ended."""

    step: StopStep
    outlived: int
    """How many processes were left when the agent had exited, or its time to do so was over."""
    survivors: tuple[int, ...]
    """PIDs that even SIGKILL did not end in time: processes stuck in the kernel, or of another user."""
    seconds: float


FROM_OUTSIDE = frozenset(
    {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, signal.SIGTERM, signal.SIGXCPU}
)
"""Signals from outside: from a person, a program, or the kernel for lack of memory or time. Before a fault of
its own (SIGSEGV, SIGABRT ...) a process often reports something."""

SIGNALLED = 128
"""A shell, and a wrapper that acts like one, exits with this plus the number of the signal that ended the
program."""


@attrs.frozen(kw_only=True)
class ExitStatus:
    """How the agent's own process ended: with an exit code or by a signal."""

    code: int | None
    signal: int | None
    uptime: float
    """Seconds since the spawn."""

    @property
    def from_outside(self) -> bool:
        """Whether a signal from outside ended it: its last output is then not the reason."""
        number = self.signal if self.signal is not None else (self.code or 0) - SIGNALLED
        return number in FROM_OUTSIDE

    def __str__(self) -> str:
        """Describe it in words."""
        if self.signal is None:
            return f"exited with code {self.code} after {self.uptime:.1f} s"
        with suppress(ValueError):
            return f"killed by {signal.Signals(self.signal).name} after {self.uptime:.1f} s"
        return f"killed by signal {self.signal} after {self.uptime:.1f} s"


@attrs.frozen(kw_only=True)
class TreeUsage:
    """The memory and CPU time of the agent and its descendants."""

    processes: int
    rss_bytes: int
    cpu_seconds: float
    """CPU seconds of the living processes, since each began."""
    threads: int = 0
    """Of all these processes together."""
