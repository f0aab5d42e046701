"""What is said when an agent hits a limit. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from supervisor.agents.endings import SIGNALLED, ExitStatus
from supervisor.agents.limits.mechanisms import Holding, Mechanism
from supervisor.agents.limits.values import AgentLimits, Limit

REFUSALS: Final[Mapping[Limit, re.Pattern[str]]] = {
    Limit.MEMORY: re.compile(
        r"\bMemoryError\b|\bout of memory\b|Cannot allocate memory|\bENOMEM\b|\bbad_alloc\b"
        r"|Allocation failed|memory allocation of \d+ bytes failed",
        re.IGNORECASE,
    ),
    Limit.PROCESSES: re.compile(
        r"can't start new thread|Cannot fork|fork: (retry: )?Resource temporarily"
        r"|pthread_create.*(EAGAIN|failed)|\b(spawn|uv_thread_create|clone3?|fork)\b.*\bEAGAIN\b",
        re.IGNORECASE,
    ),
    Limit.OPEN_FILES: re.compile(r"Too many open files|\bEMFILE\b", re.IGNORECASE),
    Limit.FILE_SIZE: re.compile(r"File too large|\bEFBIG\b|File size limit exceeded", re.IGNORECASE),
}
"""What programs write when the kernel refuses them more, in their own words or those of strerror(3)."""

REFUSING: Final = (Mechanism.RLIMIT, Mechanism.NAMESPACE)
"""Mechanisms with which the kernel refuses, and only the process itself learns of it."""

WITHOUT_A_WORD: Final = (signal.SIGABRT, signal.SIGTRAP, signal.SIGILL)
"""Signals by which runtimes end themselves, some without a word, when they get no memory: glibc and V8 by the
first, Bun by the second (OpenCode 1.18 within 512 MiB, measured), Rust by the third. Other faults have them,
too."""

ADVICE: Final[Mapping[Limit, str]] = {
    Limit.MEMORY: "Raise the limit, or give the agent a smaller task.",
    Limit.PROCESSES: "Raise the limit, or let the agent start less at a time.",
    Limit.CPUS: "Raise the limit.",
    Limit.FILE_SIZE: "Raise the limit, or let the agent write smaller files.",
    Limit.OPEN_FILES: "Raise the limit, or let the agent open fewer files at a time.",
    Limit.DISK: "Raise the limit, or delete what the home does not need.",
}
"""What a person can do about each."""

USED: Final[Mapping[Limit, str]] = {
    Limit.MEMORY: "The agent used {used} of memory",
    Limit.PROCESSES: "The agent had {used}",
    Limit.CPUS: "The agent used {used}",
    Limit.FILE_SIZE: "The agent wrote a file of {used}",
    Limit.OPEN_FILES: "A process of the agent had {used}",
    Limit.DISK: "The agent's home has {used}",
}

REFUSED: Final[Mapping[Limit, str]] = {
    Limit.MEMORY: "A process of the agent got no more memory",
    Limit.PROCESSES: "The agent could start no more processes",
    Limit.CPUS: "The agent got no more time of processors",
    Limit.FILE_SIZE: "A file of the agent could not grow",
    Limit.OPEN_FILES: "A process of the agent could open no more files",
    Limit.DISK: "The agent's home is full",
}
"""The same where the use is unknown."""

ENDED: Final[Mapping[Mechanism, str]] = {
    Mechanism.CGROUP: " The kernel ended it.",
    Mechanism.RLIMIT: " The kernel ended it.",
    Mechanism.NAMESPACE: "",
    Mechanism.POLLING: " Ostler ended it.",
}
"""Who ended the agent."""

CONTINUES: Final[Mapping[Limit, str]] = {
    Limit.MEMORY: " The kernel ended a process of it; the agent continues.",
    Limit.PROCESSES: " It could start no more; the agent continues.",
}
"""What happened instead, where the agent continues."""


@attrs.frozen(kw_only=True)
class LimitHit:
    """An agent hit a limit. Units: `Limit`.

    `used`: None if it is unknown. `how`: what held the limit. `named`: what sets it. `ended`: whether this
    ended the agent.
    """

    limit: Limit
    most: float
    used: float | None
    how: Mechanism
    named: str
    ended: bool = True

    @property
    def text(self) -> str:
        """The limit and the use in words, and what to do."""
        if self.used is None:
            # The process ended by itself, for what it did not get.
            said, then = REFUSED[self.limit], ""
        else:
            said, then = USED[self.limit].format(used=self.limit.amount(self.used)), ENDED[self.how]
            if self.how is Mechanism.CGROUP and self.limit is Limit.PROCESSES:
                then = " It could start no more, and ended."  # by itself: the kernel ends nothing for that
        if not self.ended:
            then = CONTINUES.get(self.limit, "")
        most = self.limit.amount(self.most)
        each = " for each process" if self.how is Mechanism.RLIMIT and self.limit is Limit.MEMORY else ""
        return f"{said}; the limit is {most}{each} ({self.named}).{then} {ADVICE[self.limit]}"

    def dump(self) -> dict[str, Any]:
        """As JSON, for clients."""
        return {
            "limit": self.limit.value,
            "most": self.most,
            "used": self.used,
            "held_by": self.how.value,
            "set_by": self.named,
            "ended": self.ended,
            "text": self.text,
        }


def hit_of(
    limits: AgentLimits, limit: Limit, used: float | None, how: Mechanism, *, ended: bool = True
) -> LimitHit:
    """The hit of a limit that is set."""
    most = limits.most(limit)
    assert most is not None
    return LimitHit(limit=limit, most=most, used=used, how=how, named=limits.named(limit), ended=ended)


def by_signal(holding: Holding, status: ExitStatus) -> LimitHit | None:
    """The hit that the agent's exit status tells of: the kernel ends a process whose file would grow beyond
    its limit by SIGXFSZ."""
    most = holding.most(Limit.FILE_SIZE, Mechanism.RLIMIT)
    if _number(status) != signal.SIGXFSZ or most is None:
        return None
    return hit_of(holding.limits, Limit.FILE_SIZE, most, Mechanism.RLIMIT)


def by_output(holding: Holding, status: ExitStatus, lines: Sequence[str]) -> LimitHit | None:
    """The hit that the last output of an agent tells of, which ended by a fault of its own.

    Where a resource limit makes the kernel refuse more, only the process itself learns of it.
    """
    if status.from_outside or (status.code == 0 and status.signal is None):
        return None
    text = "\n".join(lines)
    for limit, words in REFUSALS.items():
        how = next((each for each in REFUSING if holding.holds(limit, each)), None)
        if how is not None and words.search(text):
            return hit_of(holding.limits, limit, None, how)
    return None


def suspicion(holding: Holding, status: ExitStatus) -> str | None:
    """What may have been the reason of an end that nothing explains: each process has its limit of memory,
    and ended itself as runtimes do without any more. None if nothing suggests that."""
    most = holding.most(Limit.MEMORY, Mechanism.RLIMIT)
    if most is None or _number(status) not in WITHOUT_A_WORD:
        return None
    size, name = Limit.MEMORY.amount(most), holding.limits.named(Limit.MEMORY)
    return f"It may have got no more memory; the limit is {size} for each process ({name})."


def _number(status: ExitStatus) -> int:
    """The number of the signal that ended it, also where a wrapper turned that into an exit code; 0 or less
    if none did."""
    return status.signal if status.signal is not None else (status.code or 0) - SIGNALLED
