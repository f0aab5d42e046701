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
"""How long killing is repeated for processes that fork faster than they are found or hang in the kernel."""


@attrs.frozen(kw_only=True)
class StopPolicy:
    """The seconds that each step of ending a process may take."""

    stdin_grace: float = STDIN_GRACE_SECONDS
    term_grace: float = TERM_GRACE_SECONDS
    kill: float = KILL_SECONDS


class StopStep(enum.StrEnum):
    """The step after which nothing was left."""

    EXITED = "exited"
    """It had ended before, and had left nothing."""
    STDIN = "stdin"
    """It left by itself at the end of its input."""
    TERM = "term"
    KILL = "kill"


@attrs.frozen(kw_only=True)
class StopReport:
    """How a process and its tree ended."""

    step: StopStep
    outlived: int
    """How many processes were still there after the agent itself had left or had been given its time to."""
    survivors: tuple[int, ...]
    """Pids that even SIGKILL did not end in time; empty but for processes stuck in the kernel or not ours."""
    seconds: float


FROM_OUTSIDE = frozenset(
    {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGKILL, signal.SIGTERM, signal.SIGXCPU}
)
"""Signals that somebody else sends: a person, a program, the kernel for lack of memory or time. Of its own
faults (SIGSEGV, SIGABRT ...) a process often says something before."""

SIGNALLED = 128
"""A shell, and what wraps a program as a shell does, exits with this plus the number of the signal that ended
the program."""


@attrs.frozen(kw_only=True)
class ExitStatus:
    """How the agent's own process ended: with an exit code or by a signal."""

    code: int | None
    signal: int | None
    uptime: float
    """Seconds since the spawn."""

    @property
    def from_outside(self) -> bool:
        """Whether somebody else ended it: what it wrote last is then not the reason."""
        number = self.signal if self.signal is not None else (self.code or 0) - SIGNALLED
        return number in FROM_OUTSIDE

    def __str__(self) -> str:
        """In words."""
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
    """Of the living processes, since each began."""
