"""Figures in the text format that Prometheus reads. Values come from their owners; nothing is kept here."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import attrs

if TYPE_CHECKING:
    from supervisor.conversations.views import Figures

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

PROC_SELF: Final = Path("/proc/self")

Labels = Mapping[str, str]


@attrs.frozen
class Metric:
    """A figure with its samples, by their labels. Seconds and bytes, and names that say so."""

    name: str
    kind: Literal["gauge", "counter"]
    about: str
    samples: tuple[tuple[Labels, float], ...]


def gauge(name: str, about: str, value: float) -> Metric:
    """A figure that goes up and down."""
    return Metric(name, "gauge", about, (({}, value),))


def counter(name: str, about: str, value: float) -> Metric:
    """A figure that only grows, until the server ends."""
    return Metric(name, "counter", about, (({}, value),))


def render(metrics: Iterable[Metric]) -> bytes:
    """The exposition."""
    lines: list[str] = []
    for metric in metrics:
        lines.append(f"# HELP {metric.name} {_escaped(metric.about)}")
        lines.append(f"# TYPE {metric.name} {metric.kind}")
        for labels, value in metric.samples:
            pairs = ",".join(f'{name}="{_escaped(text, quotes=True)}"' for name, text in labels.items())
            lines.append(f"{metric.name}{'{' + pairs + '}' if pairs else ''} {_number(value)}")
    return ("\n".join(lines) + "\n").encode()


def _escaped(text: str, *, quotes: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def of_agents(figures: Figures) -> list[Metric]:
    """What the supervisor counts."""
    states = {
        "live": figures.live_agents,
        "starting": figures.starting,
        "queued": figures.queued,
        "hibernated": figures.hibernated,
        "parked": figures.parked,
    }
    found = [
        Metric(
            "ostler_agents",
            "gauge",
            "Agents by where they are; those that start are among the live ones.",
            tuple(({"state": state}, count) for state, count in states.items()),
        ),
        gauge("ostler_agents_resident_memory_bytes", "Memory of all agents' trees.", figures.rss_bytes),
        gauge("ostler_turns_running", "Turns under way.", figures.turns_running),
        gauge("ostler_conversations_loaded", "Conversations in memory.", figures.conversations_loaded),
        counter("ostler_agent_starts_total", "Agents that became ready.", figures.starts_total),
        counter("ostler_agent_restarts_total", "Agents that came back.", figures.restarts_total),
        counter("ostler_agent_crashes_total", "Agents that ended by themselves.", figures.crashes_total),
        Metric(
            "ostler_turns_total",
            "counter",
            "Turns that ended, by the reason.",
            tuple(({"stop_reason": reason}, count) for reason, count in sorted(figures.turns_total.items())),
        ),
    ]
    limits = {
        "ostler_limit_agents": ("The most agents that may live.", figures.limit_agents),
        "ostler_limit_memory_bytes": ("What all agents' trees may take.", figures.limit_memory_bytes),
    }
    found += [gauge(name, about, limit) for name, (about, limit) in limits.items() if limit is not None]
    return found


def of_process() -> list[Metric]:
    """The server's own process, under the names that exporters agree on. Reads /proc, where there is one."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    found = [counter("process_cpu_seconds_total", "CPU time of the server.", used.ru_utime + used.ru_stime)]
    try:
        pages = int((PROC_SELF / "statm").read_text().split()[1])
        descriptors = len(list((PROC_SELF / "fd").iterdir()))
    except OSError:
        return found
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return [
        *found,
        gauge("process_resident_memory_bytes", "Memory of the server.", pages * os.sysconf("SC_PAGE_SIZE")),
        gauge("process_open_fds", "File descriptors that the server has open.", descriptors),
        gauge("process_max_fds", "The most that it may have.", most),
    ]
