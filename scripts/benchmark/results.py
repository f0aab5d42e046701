"""What a run has found: figures of targets, as a table, as JSON, as Markdown."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from scripts.benchmark.cases import Case, Figure, Unable
from supervisor.version import __version__

HEADS = {
    "ostler": "Ostler", "before": "before", "peer": "peer", "floor": "floor", "bare": "bare socket",
    "postgres": "PostgreSQL", "three": "3 servers",
}  # fmt: skip
GIT_SECONDS = 10.0
NOTHING = "-"
CANNOT = "cannot"
HEADLINES = frozenset(
    {
        "stored_kb", "live_kb", "hibernated_kb", "first_turn_ms", "interrupt_ms", "live_500_mb",
        "flood_p99_ms", "growth_cpu",
    }
)  # fmt: skip
"""Figures that the document shows although they have no goal."""


@dataclass
class Row:
    """One figure of all targets."""

    case: str
    figure: Figure
    values: dict[str, float] = field(default_factory=dict)
    unable: dict[str, str] = field(default_factory=dict)

    def add(self, target: str, found: float | Unable) -> None:
        """Note what a round has found: the best of all rounds counts."""
        if isinstance(found, Unable):
            self.unable[target] = str(found)
            return
        before = [self.values[target]] if target in self.values else []
        self.values[target] = self.figure.better([*before, found])

    def ratio(self, other: str = "peer") -> float | None:
        """How many times better Ostler is than the other; None where one of them has no figure."""
        mine, theirs = self.values.get("ostler"), self.values.get(other)
        if mine is None or theirs is None or mine <= 0 or theirs <= 0:
            return None
        return mine / theirs if self.figure.more_is_better else theirs / mine

    def missed(self) -> bool:
        """Whether there is an aim that Ostler does not reach."""
        value, aim = self.values.get("ostler"), self.figure.aim
        if value is None or aim is None:
            return False
        return value < aim if self.figure.more_is_better else value > aim

    def goal(self) -> str:
        """The aim, if there is one, and whether it is missed."""
        if self.figure.aim is None:
            return ""
        return number(self.figure.aim) + (" missed" if self.missed() else "")

    def cell(self, target: str) -> str:
        if target in self.values:
            return number(self.values[target])
        return CANNOT if target in self.unable else NOTHING


def number(value: float) -> str:
    """Three figures of it, and no more zeros than that."""
    if value == 0:
        return "0"
    size = abs(value)
    digits = 0 if size >= 100 else 1 if size >= 10 else 2 if size >= 1 else 3
    return f"{value:,.{digits}f}"


class Results:
    """All rows of a run, in the order of the cases."""

    def __init__(self, targets: Sequence[str], machine: Mapping[str, Any]) -> None:
        self.targets = list(targets)
        self.machine = dict(machine)
        self._rows: dict[str, Row] = {}

    @property
    def rows(self) -> list[Row]:
        return list(self._rows.values())

    def prepare(self, case: Case) -> None:
        """Give the case its rows, so that they stand in this order whenever it is measured."""
        for figure in case.figures:
            self._rows.setdefault(figure.key, Row(case.name, figure))

    def add(self, case: Case, target: str, found: Mapping[str, float | Unable]) -> None:
        """Note the figures of one round."""
        self.prepare(case)
        for key, value in found.items():
            self._rows[key].add(target, value)

    def fail(self, case: Case, target: str, reason: str) -> None:
        """Note that a target had no figures for a case."""
        self.add(case, target, {figure.key: Unable(reason) for figure in case.figures})

    def table(self) -> str:
        """For people, with the reasons below for what a target cannot do."""
        head = ["", *(HEADS[name] for name in self.targets), "unit"]
        shown = ["peer"] * ("peer" in self.targets) + ["before"] * ("before" in self.targets)
        head += [f"x {HEADS[name]}" for name in shown] + ["goal"]
        lines = [head]
        for row in self.rows:
            ratios = [times(row.ratio(name)) for name in shown]
            goal = row.goal() or NOTHING
            cells = [row.cell(name) for name in self.targets]
            lines.append([row.figure.words, *cells, row.figure.unit, *ratios, goal])
        return "\n".join([*aligned(lines), "", *self.reasons()])

    def reasons(self) -> list[str]:
        """A line for each thing that a target cannot do."""
        found: dict[tuple[str, str], list[str]] = {}
        for row in self.rows:
            for target, reason in row.unable.items():
                if target not in row.values:
                    found.setdefault((target, reason), []).append(row.figure.words)
        return [
            f"{HEADS[target]} cannot: {'; '.join(words)}: {reason}"
            for (target, reason), words in found.items()
        ]

    def markdown(self) -> str:
        """The table of the document: what has a goal, and what most people ask for."""
        targets = [name for name in self.targets if name not in ("before", "bare")]
        lines = [["", *(HEADS[name] for name in targets), "goal"]]
        for row in self.rows:
            if row.figure.aim is not None or row.figure.key in HEADLINES:
                cells = [row.cell(name) for name in targets]
                lines.append([f"{row.figure.words} ({row.figure.unit})", *cells, row.goal()])
        lines.insert(1, ["---", *["---:"] * (len(lines[0]) - 1)])
        return "\n".join("| " + " | ".join(line) + " |" for line in lines)

    def as_json(self) -> dict[str, Any]:
        """For programs: `figures` by key, each with its values by target."""
        return {
            "machine": self.machine,
            "targets": self.targets,
            "figures": {
                row.figure.key: {
                    "case": row.case,
                    "words": row.figure.words,
                    "unit": row.figure.unit,
                    "how": row.figure.how,
                    "more_is_better": row.figure.more_is_better,
                    "aim": row.figure.aim,
                    "values": row.values,
                    "unable": {name: why for name, why in row.unable.items() if name not in row.values},
                    "times_better_than_peer": row.ratio(),
                }
                for row in self.rows
            },
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Results:
        """The same from what `as_json` gave."""
        made = cls(found["targets"], found["machine"])
        for key, each in found["figures"].items():
            figure = Figure(
                key, each["words"], each["unit"], each["how"], each["more_is_better"], each["aim"]
            )
            made._rows[key] = Row(each["case"], figure, dict(each["values"]), dict(each["unable"]))
        return made


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table, with columns below each other: the first to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    text = []
    for line in lines:
        first, *others = (
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        text.append("  ".join([first, *others]).rstrip())
    return text


def times(ratio: float | None) -> str:
    return NOTHING if ratio is None else number(ratio)


def machine() -> dict[str, Any]:
    """What is known of this machine, and how busy it is with other things."""
    return {
        "version": version(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "processor": processor(),
        "processors": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load_before": round(os.getloadavg()[0], 2),
    }


def version() -> str:
    """The version measured, with its commit where this is a clone."""
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        commit = subprocess.run(
            command, capture_output=True, text=True, check=True, timeout=GIT_SECONDS
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return __version__
    return f"{__version__} ({commit.strip()})"


def processor() -> str:
    for line in _lines("/proc/cpuinfo"):
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _lines(path: str) -> Iterator[str]:
    try:
        with open(path) as file:
            yield from file
    except OSError:
        return
