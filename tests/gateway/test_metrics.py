"""Figures for Prometheus: the text format, the values, and who may read them."""

from __future__ import annotations

import os
import re

import pytest

from gateway import metrics
from gateway.metrics import Metric, counter, gauge, render

SAMPLE = re.compile(r'([a-z_]+)((?:\{[a-z_]+="[^"]*"(?:,[a-z_]+="[^"]*")*\})?) (\S+)')


def read(text):
    """Samples by name and labels; fails on anything that is not the format."""
    found, described = {}, {}
    for line in text.splitlines():
        if line.startswith("# HELP "):
            described[line.split()[2]] = None
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            assert name in described
            assert kind in ("gauge", "counter")
            assert (kind == "counter") == name.endswith("_total")
            described[name] = kind
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            assert described[match[1]]
            found[match[1] + match[2]] = float(match[3])
    return found


def test_the_format():
    metrics_given = [
        gauge("a_bytes", "About\na \\.", 12.0),
        counter("b_total", "B.", 0.25),
        Metric("c", "gauge", "C.", (({"x": 'say "hi"\\\n', "y": "ü"}, 1), ({"x": "", "y": ""}, 1e300))),
        Metric("d", "gauge", "None of it.", ()),
    ]
    assert render(metrics_given).decode() == (
        "# HELP a_bytes About\\na \\\\.\n# TYPE a_bytes gauge\na_bytes 12\n"
        "# HELP b_total B.\n# TYPE b_total counter\nb_total 0.25\n"
        '# HELP c C.\n# TYPE c gauge\nc{x="say \\"hi\\"\\\\\\n",y="ü"} 1\n'
        f'c{{x="",y=""}} {int(1e300)}\n'
        "# HELP d None of it.\n# TYPE d gauge\n"
    )


def test_the_server_itself():
    found = read(render(metrics.of_process()).decode())
    assert 5e6 < found["process_resident_memory_bytes"] < 5e9
    assert 3 <= found["process_open_fds"] <= found["process_max_fds"]
    assert found["process_cpu_seconds_total"] > 0
    before = found["process_open_fds"]
    descriptors = [os.open(os.devnull, os.O_RDONLY) for _ in range(7)]
    after = read(render(metrics.of_process()).decode())["process_open_fds"]
    for descriptor in descriptors:
        os.close(descriptor)
    assert after - before == 7


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
    assert any(name.startswith("ostler_info{version=") for name in found)


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
