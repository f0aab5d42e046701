"""What is measured: a case has a name, figures with units, and a function that takes them from a server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from scripts.benchmark.servers import Server


class Unable(Exception):
    """A server cannot do what the case asks; the message says why, for the table."""


@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    key: str
    words: str
    unit: str
    how: str
    """How it is measured, for the document."""
    more_is_better: bool = False
    aim: float | None = None

    def better(self, values: Iterable[float]) -> float:
        """The best of several rounds: what disturbs a measurement only ever makes it worse."""
        return max(values) if self.more_is_better else min(values)


@dataclass
class Target:
    """What is measured, and what runs it."""

    kind: type[Server]
    program: Path
    server: Server | None = None
    """The one that several cases share."""
    warm: list[str] = field(default_factory=list)
    """Conversations of that one whose agents are running and idle."""

    @property
    def name(self) -> str:
        return self.kind.name

    @property
    def slow(self) -> bool:
        """Whether it gets less to do, so that a run ends: rates and times of one thing stay comparable."""
        return self.name == "peer"

    def standing(self) -> Server:
        assert self.server is not None
        return self.server


class Measure(Protocol):
    """Takes the figures of a case from a target; `part` is how much of the full load there is."""

    def __call__(self, target: Target, part: float, /) -> Mapping[str, float]: ...


@dataclass(frozen=True)
class Case:
    """What is chosen by name on the command line."""

    name: str
    figures: Sequence[Figure]
    measure: Measure
    fresh: bool
    """Whether it starts servers of its own."""
    targets: frozenset[str]
    rounds: int | None = None
    """How often at most; None: as often as the run says."""
    slow_rounds: int = 1
    """How often at most for a target that is slow."""


EVERYBODY = frozenset({"ostler", "postgres", "before", "peer", "floor", "bare"})
AGENTS = EVERYBODY - {"bare"}
SERVERS = AGENTS - {"floor"}

CASES: dict[str, Case] = {}


def case(
    name: str,
    *figures: Figure,
    fresh: bool = False,
    targets: frozenset[str] = SERVERS,
    rounds: int | None = None,
    slow_rounds: int = 1,
) -> Callable[[Measure], Measure]:
    """Add the function as a case, after those that are there."""

    def add(measure: Measure) -> Measure:
        CASES[name] = Case(name, figures, measure, fresh, targets, rounds, slow_rounds)
        return measure

    return add


def chosen(names: Sequence[str]) -> Iterator[Case]:
    """The cases of these names, in their own order; all of them, where none is named. Raises KeyError."""
    for name in names:
        CASES[name]
    yield from (each for each in CASES.values() if not names or each.name in names)


def percentile(values: Iterable[float], percent: float) -> float:
    """The value that so many percent are not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
