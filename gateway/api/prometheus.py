"""The figures as Prometheus reads them, by its client library. Imported when they are first asked for."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import attrs
from prometheus_client import PROCESS_COLLECTOR
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector, CollectorRegistry

if TYPE_CHECKING:
    from gateway.api.metrics import Readings, WebhookFigures
    from supervisor.conversations.views import Figures

VERSIONS: Final = frozenset({"0.0.1", "0.0.4", "1.0.0"})
"""Format versions that may reach the library: it takes every later one for its own, and raises for versions
that are not numbers."""


def render(readings: Readings, accept: str = "") -> tuple[bytes, str]:
    """The exposition and its content type: the text format, or OpenMetrics if an Accept header asks for it.

    Reads /proc, so it blocks; for a thread.
    """
    registry = CollectorRegistry()
    registry.register(_Readings(readings))
    registry.register(_Process())
    encode, content_type = choose_encoder(_understood(accept))
    return encode(registry), content_type


def _understood(accept: str) -> str:
    """The parts of an Accept header that name no version, or one of VERSIONS."""
    return ",".join(part for part in accept.split(",") if _versions(part) <= VERSIONS)


def _versions(part: str) -> set[str]:
    pairs = (field.strip().split("=", 1) for field in part.split(";"))
    return {pair[1] for pair in pairs if pair[0] == "version" and len(pair) > 1}


@attrs.frozen(eq=False)
class _Readings(Collector):
    """The server's own figures."""

    of: Readings

    def collect(self) -> Iterator[Metric]:
        now = self.of
        info = {
            "version": now.version,
            "containment": now.containment,
            "walls": now.walls,
            "walls_mechanism": now.walls_mechanism,
        }
        yield InfoMetricFamily("ostler", "What runs here.", info)
        yield GaugeMetricFamily("ostler_uptime_seconds", "Since the start.", now.uptime)
        yield GaugeMetricFamily("ostler_sockets", "WebSockets that are open.", now.sockets)
        yield GaugeMetricFamily("ostler_connections", "Connections, open ones.", now.connections)
        yield GaugeMetricFamily("ostler_limit_connections", "The most there may be.", now.limit_connections)
        yield GaugeMetricFamily("ostler_conversations", "Conversations.", now.conversations)
        yield GaugeMetricFamily(
            "ostler_journal_degraded", "1 while events cannot be stored.", now.journal_degraded
        )
        yield GaugeMetricFamily(
            "ostler_journal_waiting_bytes",
            "Events that are not on the disk yet.",
            now.journal_waiting_bytes,
        )
        if now.webhooks is not None:
            yield from _webhooks(now.webhooks)
        if now.servers:
            yield from _servers(now.servers)
        yield from _agents(now.agents)


def _servers(servers: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    labels = ("server", "state")
    lease = GaugeMetricFamily(
        "ostler_server_lease_seconds", "Until each server counts as dead.", labels=labels
    )
    conversations = GaugeMetricFamily(
        "ostler_server_conversations", "Conversations of each server.", labels=labels
    )
    for each in servers:
        of = (each["name"], each["state"])
        lease.add_metric(of, each["lease_seconds"])
        conversations.add_metric(of, each["conversations"])
    yield lease
    yield conversations


def _webhooks(figures: WebhookFigures) -> Iterator[Metric]:
    events = CounterMetricFamily("ostler_webhook_events", "Events for webhooks.", labels=("outcome",))
    events.add_metric(("delivered",), figures.delivered)
    events.add_metric(("dropped",), figures.dropped)
    yield events
    yield CounterMetricFamily("ostler_webhook_failures", "Requests that failed.", figures.failures)
    yield GaugeMetricFamily("ostler_webhook_waiting", "Senders with something to send.", figures.waiting)


def _agents(figures: Figures) -> Iterator[Metric]:
    """What the supervisor counts. Counters get their `_total` from the library."""
    states = GaugeMetricFamily(
        "ostler_agents",
        "Agents by their state; those that start, and warm processes, are among the live ones.",
        labels=("state",),
    )
    states.add_metric(("live",), figures.live_agents)
    states.add_metric(("starting",), figures.starting)
    states.add_metric(("queued",), figures.queued)
    states.add_metric(("hibernated",), figures.hibernated)
    states.add_metric(("parked",), figures.parked)
    states.add_metric(("spare",), figures.warm_processes)
    yield states
    yield GaugeMetricFamily(
        "ostler_agents_resident_memory_bytes", "Memory of all agents' trees.", figures.rss_bytes
    )
    yield GaugeMetricFamily("ostler_turns_running", "Turns under way.", figures.turns_running)
    yield GaugeMetricFamily(
        "ostler_conversations_loaded", "Conversations in memory.", figures.conversations_loaded
    )
    yield CounterMetricFamily("ostler_agent_starts", "Agents that became ready.", figures.starts_total)
    yield CounterMetricFamily("ostler_agent_restarts", "Agents that came back.", figures.restarts_total)
    yield CounterMetricFamily(
        "ostler_agent_crashes", "Agents that ended by themselves.", figures.crashes_total
    )
    yield CounterMetricFamily(
        "ostler_spares_used", "Starts that took a process which waited for them.", figures.warm_used_total
    )
    yield CounterMetricFamily(
        "ostler_spares_lost", "Warm processes that ended by themselves.", figures.warm_lost_total
    )
    turns = CounterMetricFamily("ostler_turns", "Turns that ended, by the reason.", labels=("stop_reason",))
    for reason, count in sorted(figures.turns_total.items()):
        turns.add_metric((reason,), count)
    yield turns
    hooks = CounterMetricFamily("ostler_hooks", "Hooks that ran, by the outcome.", labels=("outcome",))
    for outcome, count in sorted(figures.hooks_total.items()):
        hooks.add_metric((outcome,), count)
    yield hooks
    if figures.limit_agents is not None:
        yield GaugeMetricFamily("ostler_limit_agents", "The most agents that may live.", figures.limit_agents)
    if figures.limit_memory_bytes is not None:
        yield GaugeMetricFamily(
            "ostler_limit_memory_bytes", "What all agents' trees may take.", figures.limit_memory_bytes
        )


class _Process(Collector):
    """The server's own process, under the names that exporters agree on."""

    def collect(self) -> Iterator[Metric]:
        found = list(PROCESS_COLLECTOR.collect())
        if not found:  # /proc is missing
            used = resource.getrusage(resource.RUSAGE_SELF)
            cpu = CounterMetricFamily(
                "process_cpu_seconds", "CPU time of the server.", used.ru_utime + used.ru_stime
            )
            found.append(cpu)
        yield from found
