"""The limits of an agent's process tree as values. Pure."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Any, Final

import attrs

UNITS: Final = ("bytes", "KiB", "MiB", "GiB", "TiB")
STEP: Final = 1024
"""How many of one unit are one of the next."""


class Limit(enum.StrEnum):
    """What is limited, by its name in the settings (`acp_limits`)."""

    MEMORY = "memory"
    """Bytes of all its processes together, or of each process, as the mechanism can."""

    PROCESSES = "processes"
    """Processes with their threads, as the kernel counts them."""

    CPUS = "cpus"
    """Processors' time per time, such as 1.5."""

    FILE_SIZE = "file_size"
    """Bytes of a file that one of its processes writes."""

    OPEN_FILES = "open_files"
    """Open files of each process."""

    DISK = "disk"
    """Bytes on the disk below its own home and its directory for temporary files."""

    @property
    def variable(self) -> str:
        """The operator's variable."""
        return VARIABLES[self]

    @property
    def setting(self) -> str:
        """The field of an agent's settings."""
        return f"{SETTING}.{self.value}"

    def amount(self, value: float) -> str:
        """The value with its unit, for people."""
        match self:
            case Limit.MEMORY | Limit.FILE_SIZE | Limit.DISK:
                return size(value)
            case Limit.PROCESSES:
                return f"{value:g} processes and threads"
            case Limit.CPUS:
                return f"{value:g} processors"
            case Limit.OPEN_FILES:
                return f"{value:g} open files"


VARIABLES: Final[Mapping[Limit, str]] = {
    Limit.MEMORY: "OSTLER_AGENT_MEMORY",
    Limit.PROCESSES: "OSTLER_AGENT_PROCESSES",
    Limit.CPUS: "OSTLER_AGENT_CPUS",
    Limit.FILE_SIZE: "OSTLER_AGENT_FILE_SIZE",
    Limit.OPEN_FILES: "OSTLER_AGENT_OPEN_FILES",
    Limit.DISK: "OSTLER_AGENT_DISK",
}

SETTING: Final = "acp_limits"


def size(count: float) -> str:
    """Bytes in the largest unit of which there is at least one, with two digits at most behind the point."""
    unit = 0
    while count >= STEP and unit < len(UNITS) - 1:
        count, unit = count / STEP, unit + 1
    return f"{count:.2f}".rstrip("0").rstrip(".") + f" {UNITS[unit]}"


@attrs.frozen(kw_only=True)
class AgentLimits:
    """The limits of one agent; None is no limit. Units: `Limit`.

    `own`: those that its settings set, below the operator's.
    """

    memory: int | None = None
    processes: int | None = None
    cpus: float | None = None
    file_size: int | None = None
    open_files: int | None = None
    disk: int | None = None
    own: frozenset[Limit] = frozenset()

    def most(self, limit: Limit) -> float | None:
        """The value of one limit."""
        value: float | None = getattr(self, limit.value)
        return value

    def __iter__(self) -> Iterator[tuple[Limit, float]]:
        """The limits that are set."""
        for limit in Limit:
            most = self.most(limit)
            if most is not None:
                yield limit, most

    def __bool__(self) -> bool:
        return next(iter(self), None) is not None

    def named(self, limit: Limit) -> str:
        """The name of what sets this limit: the operator's variable, or the field of the settings."""
        return limit.setting if limit in self.own else limit.variable

    def lowered(self, wanted: Mapping[str, float | None]) -> AgentLimits:
        """These limits, lowered to what an agent's settings say. A higher value changes nothing."""
        lower = {
            limit: value
            for limit in Limit
            if (value := wanted.get(limit.value)) is not None
            and ((most := self.most(limit)) is None or value < most)
        }
        values: dict[str, Any] = {limit.value: value for limit, value in lower.items()}
        return attrs.evolve(self, **values, own=self.own | lower.keys())

    def exceeded(self, wanted: Mapping[str, float | None]) -> Iterator[tuple[Limit, float]]:
        """The limits that an agent's settings would raise, with the highest value that is allowed."""
        for limit, most in self:
            value = wanted.get(limit.value)
            if value is not None and value > most:
                yield limit, most


NO_LIMITS: Final = AgentLimits()
