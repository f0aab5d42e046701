"""Which mechanism holds which limit. Pure, except for `namespace_counts`.

A control group holds the tree as a whole, without gaps. Where there is none, resource limits hold each
process by itself, and Ostler measures the tree from time to time and ends an agent above a limit. Between two
measurements such an agent can exceed it.
"""

from __future__ import annotations

import enum
import os
import shutil
from collections.abc import Mapping
from typing import Any, Final

import attrs

from supervisor.agents.limits.values import AgentLimits, Limit

PRLIMIT: Final = "prlimit"
"""The program of util-linux that sets a resource limit and becomes another program."""


class Mechanism(enum.StrEnum):
    """What holds a limit."""

    CGROUP = "cgroup"
    """A control group of the agent's own: all its processes together."""

    RLIMIT = "rlimit"
    """A resource limit: each of its processes by itself."""

    NAMESPACE = "namespace"
    """A resource limit that is set inside a user namespace of the agent's own, where the kernel counts only
    the processes in there: all of them together."""

    POLLING = "polling"
    """Ostler measures all of them together, and ends an agent that is above the limit."""


CONTROLLERS: Final[Mapping[Limit, str]] = {
    Limit.MEMORY: "memory",
    Limit.PROCESSES: "pids",
    Limit.CPUS: "cpu",
}
"""The controllers of control groups."""

OTHERS: Final[Mapping[Limit, tuple[Mechanism, ...]]] = {
    # The resource limit stops one process that grows at once, which the next measurement would find too late.
    # Claude Code, Codex, Gemini CLI and OpenCode start within 1 GiB for each process, although OpenCode's
    # runtime reserves 74 GB where it may (measured 2026-11-28).
    Limit.MEMORY: (Mechanism.RLIMIT, Mechanism.POLLING),
    # RLIMIT_NPROC counts all processes of the user outside of a namespace, so it would fail for others' sake.
    Limit.PROCESSES: (Mechanism.POLLING,),
    Limit.CPUS: (),
    Limit.FILE_SIZE: (Mechanism.RLIMIT,),
    Limit.OPEN_FILES: (Mechanism.RLIMIT,),
    Limit.DISK: (Mechanism.POLLING,),
}
"""What holds a limit without a control group."""


@attrs.frozen(kw_only=True)
class Available:
    """What there is to hold limits with.

    `controllers`: those that are enabled for agents' control groups. `namespace`: whether the agent runs in a
    user namespace of its own or with a user id of its own, as another user than root.
    """

    controllers: frozenset[str] = frozenset()
    namespace: bool = False


@attrs.frozen
class Holding:
    """Limits, and what holds each."""

    limits: AgentLimits
    by: Mapping[Limit, tuple[Mechanism, ...]]

    def holds(self, limit: Limit, mechanism: Mechanism) -> bool:
        """Whether this mechanism is among those that hold this limit."""
        return mechanism in self.by.get(limit, ())

    def most(self, limit: Limit, mechanism: Mechanism) -> float | None:
        """The value of a limit, if this mechanism holds it."""
        return self.limits.most(limit) if self.holds(limit, mechanism) else None

    @property
    def polled(self) -> bool:
        """Whether the tree has to be measured often."""
        return any(Mechanism.POLLING in mechanisms for mechanisms in self.by.values())

    @property
    def unheld(self) -> tuple[Limit, ...]:
        """The limits that nothing holds."""
        return tuple(limit for limit, mechanisms in self.by.items() if not mechanisms)

    def refusal(self) -> str | None:
        """Why these limits cannot be kept, and what to do; None if they can."""
        for limit in self.unheld:
            return (
                f"{self.limits.named(limit)} is unavailable: only a control group holds a share of "
                f"processors, and the controller {CONTROLLERS[limit]!r} is not enabled for agents' groups. "
                "Start the server with OSTLER_CONTAINMENT=cgroup in a delegated group (Delegate=yes in a "
                "systemd unit), or unset the limit"
            )
        return None

    def dump(self) -> dict[str, Any]:
        """As JSON: by the name of each limit its value, what sets it, and what holds it."""
        return {
            limit.value: {
                "most": most,
                "set_by": self.limits.named(limit),
                "held_by": [mechanism.value for mechanism in self.by[limit]],
            }
            for limit, most in self.limits
        }


def hold(limits: AgentLimits, available: Available) -> Holding:
    """Choose what holds each limit that is set."""
    return Holding(limits, {limit: _mechanisms(limit, available) for limit, _ in limits})


def _mechanisms(limit: Limit, available: Available) -> tuple[Mechanism, ...]:
    if CONTROLLERS.get(limit) in available.controllers:
        return (Mechanism.CGROUP,)
    if limit is Limit.PROCESSES and available.namespace:
        # The agent's terminals run elsewhere, so the sum is measured, too.
        return (Mechanism.NAMESPACE, Mechanism.POLLING)
    return OTHERS[limit]


def namespace_counts(user: int | None = None) -> bool:
    """Whether a limit on processes that is set where an agent's are counted alone binds: the kernel exempts
    root, and the limit is set by a program that may be missing. `user`: the agent's; this process's if
    None."""
    return (os.getuid() if user is None else user) != 0 and shutil.which(PRLIMIT) is not None


def namespace_prefix(holding: Holding) -> list[str]:
    """The words before a command inside the agent's user namespace, which limit its processes there; none
    where the namespace does not hold that limit."""
    most = holding.most(Limit.PROCESSES, Mechanism.NAMESPACE)
    return [] if most is None else [PRLIMIT, f"--nproc={most:g}", "--"]
