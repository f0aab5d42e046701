"""Figures for Prometheus: the formats, the values, and who may read them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest
import trio
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as text_families

from gateway.api.metrics import Readings
from gateway.api.prometheus import render
from gateway.api.routes import agents
from supervisor.conversations.views import Figures

PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
    "application/openmetrics-text;version=0.0.1;q=0.5,"
    "text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
"""What Prometheus 3 says that it accepts."""

INFO = 'containment="tree",version="1",walls="guard",walls_mechanism="namespaces"'

PLAIN = "text/plain; version=0.0.4; charset=utf-8"

READINGS = Readings(
    version="1",
    containment="tree",
    walls="guard",
    walls_mechanism="namespaces",
    uptime=0.25,
    sockets=0,
    connections=3,
    limit_connections=12,
    conversations=1,
    journal_degraded=True,
    journal_waiting_bytes=123_456_789,
    agents=Figures(
        live_agents=3,
        starting=1,
        queued=2,
        hibernated=4,
        parked=1,
        turns_running=2,
        conversations_loaded=7,
        starts_total=20,
        restarts_total=5,
        crashes_total=6,
        turns_total={"end_turn": 30, 'say "hi"\\\n': 2},
        rss_bytes=900,
        limit_agents=None,
        limit_memory_bytes=4096,
    ),
)

KINDS = {
    "ostler_info": "gauge",
    "ostler_uptime_seconds": "gauge",
    "ostler_sockets": "gauge",
    "ostler_connections": "gauge",
    "ostler_limit_connections": "gauge",
    "ostler_conversations": "gauge",
    "ostler_journal_degraded": "gauge",
    "ostler_journal_waiting_bytes": "gauge",
    "ostler_agents": "gauge",
    "ostler_agents_resident_memory_bytes": "gauge",
    "ostler_turns_running": "gauge",
    "ostler_conversations_loaded": "gauge",
    "ostler_agent_starts_total": "counter",
    "ostler_agent_restarts_total": "counter",
    "ostler_agent_crashes_total": "counter",
    "ostler_spares_used_total": "counter",
    "ostler_spares_lost_total": "counter",
    "ostler_turns_total": "counter",
    "ostler_limit_memory_bytes": "gauge",
    "process_cpu_seconds_total": "counter",
    "process_resident_memory_bytes": "gauge",
    "process_open_fds": "gauge",
    "process_max_fds": "gauge",
}
"""What dashboards and alerts are built on."""


def samples(families):
    """Values by name and labels, as the text format writes them."""
    found = {}
    for family in families:
        for sample in family.samples:
            pairs = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()))
            found[sample.name + (f"{{{pairs}}}" if pairs else "")] = sample.value
    return found


def read(text):
    """Samples of the text format; fails on anything that is not the format."""
    return samples(text_families(text))


def test_names_and_kinds_are_those_of_before():
    body, content_type = render(READINGS, "")
    assert content_type == PLAIN
    typed = dict(line.split()[2:] for line in body.decode().splitlines() if line.startswith("# TYPE "))
    assert typed.items() >= KINDS.items()
    assert "ostler_limit_agents" not in typed
    found = read(body.decode())
    assert found[f"ostler_info{{{INFO}}}"] == 1
    assert found["ostler_journal_degraded"] == 1
    assert found["ostler_journal_waiting_bytes"] == 123_456_789
    assert found["ostler_uptime_seconds"] == 0.25
    assert found["ostler_limit_memory_bytes"] == 4096
    assert found['ostler_turns_total{stop_reason="say "hi"\\\n"}'] == 2


def test_both_formats_say_the_same():
    plain, _ = render(READINGS, "")
    body, content_type = render(READINGS, PROMETHEUS)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert body.endswith(b"# EOF\n")
    theirs = samples(openmetrics_families(body.decode()))
    ours = read(plain.decode())
    assert theirs.keys() == ours.keys()
    still = {name: value for name, value in ours.items() if not name.startswith("process_")}
    assert len(still) > 20
    assert still.items() <= theirs.items()


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("*/*", PLAIN),
        ("text/html", PLAIN),
        ("text/plain;version=1.0.0", "text/plain; version=1.0.0"),
        ("application/openmetrics-text", "application/openmetrics-text; version=1.0.0"),
        ("application/openmetrics-text; version=0.0.1", PLAIN),
        # Not ours to speak, whatever the library says.
        ("application/openmetrics-text; version=9.0.0", PLAIN),
        ("application/openmetrics-text; version=x", PLAIN),
        ("text/plain; version=x.y", PLAIN),
        ("text/plain; version=1.0.0; version=x", PLAIN),
        ("text/plain; version=" + "9" * 5000, PLAIN),
        (",;=,;;version=,version", PLAIN),
        ("application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited", PLAIN),
    ],
)
async def test_an_unknown_format_gets_the_plain_one(gateway, accept, kind):
    response, text = await scrape(gateway, {"Accept": accept})
    assert response.status_code == 200
    assert response.content_type.startswith(kind)
    assert "Accept" in ",".join(response.headers.getlist("Vary"))
    assert "ostler_conversations 0.0" in text


def test_the_server_itself():
    found = read(render(READINGS, "")[0].decode())
    assert 5e6 < found["process_resident_memory_bytes"] < 5e9
    assert 3 <= found["process_open_fds"] <= found["process_max_fds"]
    assert found["process_cpu_seconds_total"] > 0
    before = found["process_open_fds"]
    descriptors = [os.open(os.devnull, os.O_RDONLY) for _ in range(7)]
    after = read(render(READINGS, "")[0].decode())["process_open_fds"]
    for descriptor in descriptors:
        os.close(descriptor)
    assert after - before == 7


def test_a_server_without_proc_tells_its_processor_time(monkeypatch):
    monkeypatch.setattr("prometheus_client.PROCESS_COLLECTOR._btime", 0)
    found = read(render(READINGS, "")[0].decode())
    assert found["process_cpu_seconds_total"] > 0
    assert "process_open_fds" not in found


def test_the_library_is_imported_when_somebody_scrapes():
    code = "import sys, gateway.api.app; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


async def test_rendering_holds_up_nobody(gateway, monkeypatch):
    """A rendering that takes for ever, while another client asks."""
    begun, go_on = trio.Event(), threading.Event()

    def slow(readings, accept):
        trio.from_thread.run_sync(begun.set)
        assert go_on.wait(30)
        return render(readings, accept)

    monkeypatch.setattr(agents, "render", slow)
    with trio.fail_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scrape, gateway)
            await begun.wait()
            status, _ = await gateway.call("GET", "/alive")
            go_on.set()
    assert status == 200


async def scrape(gateway, headers=None):
    response = await gateway.app.test_client().get("/metrics", headers=headers or {})
    return response, await response.get_data(as_text=True)


async def test_what_is_told(gateway):
    await gateway.conversation()
    response, text = await scrape(gateway)
    assert response.status_code == 200
    assert response.content_type == "text/plain; version=0.0.4; charset=utf-8"
    found = read(text)
    expected = {
        'ostler_agents{state="live"}': 3,
        'ostler_agents{state="starting"}': 1,
        'ostler_agents{state="queued"}': 2,
        'ostler_agents{state="hibernated"}': 4,
        'ostler_agents{state="parked"}': 1,
        'ostler_agents{state="spare"}': 0,
        "ostler_spares_used_total": 0,
        "ostler_spares_lost_total": 0,
        "ostler_turns_running": 2,
        "ostler_conversations": 1,
        "ostler_conversations_loaded": 7,
        "ostler_agent_starts_total": 20,
        "ostler_agent_restarts_total": 5,
        "ostler_agent_crashes_total": 6,
        'ostler_turns_total{stop_reason="end_turn"}': 30,
        'ostler_turns_total{stop_reason="cancelled"}': 2,
        "ostler_agents_resident_memory_bytes": 900 * 1024 * 1024,
        "ostler_limit_agents": 8,
        "ostler_sockets": 0,
    }
    assert expected.items() <= found.items()
    assert "ostler_limit_memory_bytes" not in found
    assert any(name.startswith("ostler_info{") and "version=" in name for name in found)


async def test_sockets_are_counted(gateway):
    with gateway.services.subscribers.joined("a"), gateway.services.subscribers.joined("a"):
        assert read((await scrape(gateway))[1])["ostler_sockets"] == 2


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"X-Session-API-Key": "wrong"}, 401),
        ({"X-Session-API-Key": "k"}, 200),
        ({"Authorization": "Bearer k"}, 200),
        ({"Authorization": "bearer  k"}, 200),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Basic k"}, 401),
        ({"Authorization": "k"}, 401),
    ],
)
async def test_figures_need_the_key(gateway_with, headers, status):
    async with gateway_with(session_api_keys=("k",)) as gateway:
        assert (await scrape(gateway, headers))[0].status_code == status


async def test_a_bearer_opens_nothing_else(gateway_with):
    async with gateway_with(session_api_keys=("k",)) as gateway:
        status, _ = await gateway.call("GET", "/api/status", headers={"Authorization": "Bearer k"})
        assert status == 401


async def test_being_scraped_is_no_activity(gateway):
    gateway.services.activity._touched -= 100
    await scrape(gateway)
    assert gateway.services.activity.idle() > 99
    await gateway.call("GET", "/api/status")
    assert gateway.services.activity.idle() < 99
