"""Clients that end their connections in every impolite way: a real server keeps nothing of them."""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress

import pytest
import trio

from tests.support.client import rest_client
from tests.support.impolite import (
    GET,
    HANDSHAKE,
    LARGE,
    LEAVING,
    SENT,
    masked,
    visit,
    ways,
)
from tests.support.server import shared_server
from tests.support.thorough import everyday

KEY = "the-key"
ROUNDS = int(os.environ.get("OSTLER_TEST_ROUNDS", everyday("1", "3")))
"""How often each way is gone; 30 make ten thousand connections."""

AT_ONCE = 60
"""Connections at the same time."""

GONE_SECONDS = 15.0
"""After so long nothing is left of a client that left; the settings below bound what it may hold up."""

ENVIRONMENT = {
    "OSTLER_SESSION_API_KEY": KEY,
    "OSTLER_ATTACHABLE": "1",  # so that the test may count its descriptors
    "OSTLER_STALL_SECONDS": "2",
    "OSTLER_BODY_SECONDS": "2",
    "OSTLER_AUTH_SECONDS": "2",
    "OSTLER_KEEP_ALIVE_SECONDS": "3",
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


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory):
    """One server for all, and how many sockets it had at its start."""
    with shared_server(tmp_path_factory.mktemp("impolite"), ENVIRONMENT) as started:
        yield started, sockets(started)


@pytest.fixture
async def server(shared):
    """What the test before left is gone when a test begins."""
    started, before = shared
    assert await settled(started, before) <= 0
    logged = len(log_of(started))
    async with rest_client(started.url) as rest:
        started.rest = rest
        await authorised(started)
        yield started
    assert "Traceback" not in log_of(started)[logged:]


def log_of(server):
    return server.output.read_text()


async def visit_all(server, which, rounds):
    limit = trio.CapacityLimiter(AT_ONCE)

    async def one(way):
        async with limit:
            await visit(connector(server), *way)

    async with trio.open_nursery() as nursery:
        for _ in range(rounds):
            for way in which:
                nursery.start_soon(one, way)


@pytest.mark.guarantee(name="other-machines")
@pytest.mark.guarantee(name="nothing-hangs")
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


@pytest.mark.guarantee(name="other-machines")
@pytest.mark.guarantee(name="nothing-hangs")
@pytest.mark.parametrize("reads", [False, True])
async def test_nothing_is_kept_of_clients_that_stay(server, reads):
    """They hold their end; the server ends each in its time: it has no reason to wait for them."""
    before = sockets(server)
    connect = connector(server)

    async def stay(sent):
        stream = await connect()
        held.append(stream)
        with suppress(trio.BrokenResourceError):
            with trio.move_on_after(1):
                await stream.send_all(SENT[sent])
            while reads and await stream.receive_some():
                pass

    held = []
    async with trio.open_nursery() as nursery:
        for sent in SENT:
            nursery.start_soon(stay, sent)
        await trio.sleep(1)
        left = await settled(server, before)
        nursery.cancel_scope.cancel()
    assert left <= 0, f"{left} of {len(SENT)} connections are kept"
    for stream in held:
        stream.socket.close()


async def socket_pings(send):
    await send(HANDSHAKE)
    while True:
        await send(masked(9, b"?"))
        await trio.sleep(0.3)


async def head_after_head(send):
    await send(GET)
    for byte in GET * 10:
        await send(bytes([byte]))
        await trio.sleep(0.3)


LINGERING = [socket_pings, head_after_head]


@pytest.mark.guarantee(name="other-machines")
@pytest.mark.guarantee(name="nothing-hangs")
async def test_nobody_stays_by_doing_a_little_from_time_to_time(server):
    before = sockets(server)
    connect = connector(server)

    async def stay(doing):
        async with await connect() as stream, trio.open_nursery() as nursery:

            async def read():
                with suppress(trio.BrokenResourceError):
                    while await stream.receive_some():
                        pass

            nursery.start_soon(read)
            with suppress(trio.BrokenResourceError):
                await doing(stream.send_all)

    async def sip():
        """Reads answers a byte at a time."""
        async with await connect() as stream:
            stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            with trio.move_on_after(0.5):
                await stream.send_all(LARGE * 500)
            with suppress(trio.BrokenResourceError):
                while await stream.receive_some(1):
                    await trio.sleep(0.3)

    async with trio.open_nursery() as nursery:
        for doing in LINGERING:
            nursery.start_soon(stay, doing)
        nursery.start_soon(sip)
        await trio.sleep(1)
        left = await settled(server, before, 20)
        nursery.cancel_scope.cancel()
    assert left <= 0


FLOODS = {
    "pings": masked(9, b"ping") * 5000,
    "empty pieces": masked(0, b"", fin=False) * 5000,
    "chunks": b"1\r\nx\r\n" * 5000,
    "requests": GET * 1000,
}
BEFORE_FLOOD = {
    "pings": HANDSHAKE,
    "empty pieces": HANDSHAKE + masked(1, b"", fin=False),
    "chunks": b"GET /alive HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n",
    "requests": b"",
}

FLOODING_SECONDS = everyday(0.4, 1.5)
"""How long each flood goes on."""

PROMPT_SECONDS = 0.5
"""An answer meanwhile. Some ten milliseconds are usual; without giving way it takes seconds."""


@pytest.mark.guarantee(name="other-machines")
@pytest.mark.guarantee(name="nothing-hangs")
@pytest.mark.parametrize("kind", FLOODS)
async def test_a_flood_holds_up_nobody(server, kind):
    connect = connector(server)

    async def flood():
        while True:
            with suppress(trio.BrokenResourceError, OSError):
                async with await connect() as stream:
                    await stream.send_all(BEFORE_FLOOD[kind])
                    async with trio.open_nursery() as nursery:

                        async def read(stream=stream, scope=nursery.cancel_scope):
                            with suppress(trio.BrokenResourceError):
                                while await stream.receive_some():
                                    pass
                            scope.cancel()

                        nursery.start_soon(read)
                        with suppress(trio.BrokenResourceError):
                            while True:
                                await stream.send_all(FLOODS[kind])

    took = []
    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(flood)
        until = time.monotonic() + FLOODING_SECONDS
        while time.monotonic() < until:
            started = time.monotonic()
            assert await authorised(server) == 200
            took.append(time.monotonic() - started)
            await trio.sleep(0.02)
        nursery.cancel_scope.cancel()
    took.sort()
    assert took[len(took) // 2] < PROMPT_SECONDS, took
