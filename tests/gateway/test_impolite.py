"""Clients that end their connections in every impolite way, against a real server: it keeps nothing of them."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import trio
from support.impolite import LEAVING, SENT, visit, ways
from support.server import running_server

KEY = "the-key"
ROUNDS = int(os.environ.get("OSTLER_TEST_ROUNDS", "3"))
"""How often each way is gone; 30 make ten thousand connections."""

AT_ONCE = 60
"""Connections at the same time."""

GONE_SECONDS = 15.0
"""After so long nothing is left of a client that left; what it may hold up is bounded by the settings below."""

ENVIRONMENT = {
    "OSTLER_SESSION_API_KEY": KEY,
    "OSTLER_ATTACHABLE": "1",  # so that the test may count its descriptors
    "OSTLER_STALL_SECONDS": "2",
    "OSTLER_BODY_SECONDS": "2",
    "OSTLER_AUTH_SECONDS": "2",
}


def descriptors(server):
    """How many the server's process has, and what they are."""
    pid = int((server.state / "server.pid").read_text())
    found = []
    for entry in os.scandir(f"/proc/{pid}/fd"):
        try:
            found.append(os.readlink(entry.path))
        except FileNotFoundError:
            continue
    return found


def sockets(server):
    return sum(name.startswith("socket:") for name in descriptors(server))


async def settled(server, before, seconds=GONE_SECONDS):
    """How many sockets are left after a while, beyond those of before."""
    until = time.monotonic() + seconds
    while (left := sockets(server) - before) > 0 and time.monotonic() < until:
        await trio.sleep(0.1)
    return left


def connector(server):
    host, port = server.url.removeprefix("http://").split(":")

    async def connect():
        return await trio.open_tcp_stream(host, int(port))

    return connect


async def authorised(server):
    response = await server.rest.http.get("/api/conversations/count", headers={"X-Session-API-Key": KEY})
    return response.status_code


@pytest.fixture
async def server(tmp_path: Path):
    async with running_server(tmp_path, ENVIRONMENT) as started:
        await authorised(started)
        yield started


async def visit_all(server, which, rounds):
    limit = trio.CapacityLimiter(AT_ONCE)

    async def one(way):
        async with limit:
            await visit(connector(server), *way)

    async with trio.open_nursery() as nursery:
        for _ in range(rounds):
            for way in which:
                nursery.start_soon(one, way)


async def test_nothing_is_kept_of_clients_that_leave_in_any_way(server):
    before = sockets(server)
    statuses = []
    async with trio.open_nursery() as nursery:

        async def ask():
            while True:
                statuses.append(await authorised(server))
                await trio.sleep(0.1)

        nursery.start_soon(ask)
        await visit_all(server, list(ways()), ROUNDS)
        nursery.cancel_scope.cancel()
    left = await settled(server, before)
    assert left <= 0, f"{left} of {ROUNDS * len(SENT) * len(LEAVING)} connections were kept"
    assert set(statuses) == {200}
    assert await authorised(server) == 200
    log = server.output.read_text()
    assert "Traceback" not in log, log[-3000:]
