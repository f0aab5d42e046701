"""Clients that ask for much and read nothing, against a real server: what waits for them is bounded, and
given back."""

from __future__ import annotations

import re
import socket
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trio

from tests.support.impolite import HANDSHAKE, LARGE
from tests.support.scripted import scripted_command
from tests.support.server import running_server
from tests.support.thorough import everyday

KEY = "the-key"

CLIENTS = everyday(150, 500)
PIPELINED = 90
STRANGERS_BYTES = 30_000_000
"""What strangers may take of the server's memory: 16 MiB of answers, and some for each connection, of which
there were no more than 40 with an answer. Without a bound 150 of them took 55 MB, and 500 took 190 MB."""

SOCKETS = 40
LOG_EVENTS, EVENT_BYTES = 40, 200_000
SOCKETS_BYTES = SOCKETS * 2_000_000
"""A socket reads a megabyte ahead, and has an event and the pieces of it under way. Each log is four times
that."""

LEFT_BYTES = 25_000_000
"""What may be left of it in the process: the end of the log is kept."""

GIVEN_BACK_S = 60.0


def resident(server):
    pid = int((server.state / "server.pid").read_text())
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", status)[1]) * 1024


@contextmanager
def deaf(server, count, request):
    """Clients that send this and never read."""
    host, port = server.url.removeprefix("http://").split(":")
    held = []
    try:
        for _ in range(count):
            client = socket.socket()
            held.append(client)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.settimeout(10)
            client.connect((host, int(port)))
            client.setblocking(False)
            with suppress(BlockingIOError):
                client.send(request)
        yield
    finally:
        for client in held:
            client.close()


async def largest(server, seconds):
    most, until = 0, time.monotonic() + seconds
    while time.monotonic() < until:
        most = max(most, resident(server))
        await trio.sleep(0.05)
    return most


async def settled(server):
    """The size that it stays at."""
    size, since = resident(server), time.monotonic()
    while time.monotonic() - since < 4:
        await trio.sleep(0.5)
        if abs(resident(server) - size) > 500_000:
            size, since = resident(server), time.monotonic()
    return size


async def given_back(server, before):
    until = time.monotonic() + GIVEN_BACK_S
    while (left := resident(server) - before) > LEFT_BYTES and time.monotonic() < until:
        await trio.sleep(0.5)
    return left


@pytest.mark.guarantee(name="nothing-hangs")
async def test_strangers_that_never_read_take_little_memory_and_give_it_back(tmp_path):
    async with running_server(tmp_path, {"OSTLER_SESSION_API_KEYS": KEY}) as server:
        assert len((await server.rest.http.get("/openapi.json")).content) > 250_000
        known = {"headers": {"X-Session-API-Key": KEY}}
        assert (await server.rest.http.get("/api/conversations/count", **known)).status_code == 200
        before = await settled(server)
        for _ in range(2):
            with deaf(server, CLIENTS, LARGE * PIPELINED):
                assert await largest(server, 3) - before < STRANGERS_BYTES
                assert (await server.rest.http.get("/api/conversations/count", **known)).status_code == 200
            assert await given_back(server, before) <= LEFT_BYTES


@pytest.mark.guarantee(name="nothing-hangs")
@pytest.mark.parametrize("kind", ["events", "session"])
async def test_sockets_that_never_read_do_not_hold_the_log(tmp_path, kind):
    async with running_server(tmp_path) as server:
        agent = {"acp_server": "custom", "acp_command": scripted_command(home=tmp_path / "agent")}
        created = await server.rest.create(tmp_path / "work", agent)
        for number in range(LOG_EVENTS):
            body = {"role": "user", "content": [{"type": "text", "text": f"{number} " + "x" * EVENT_BYTES}]}
            await server.rest.call("POST", f"/api/conversations/{created['id']}/events", body)
        before = await settled(server)
        query = {"events": b"events/%b?resend_mode=all", "session": b"session/%b?after_seq=-1"}[kind]
        path = b"/sockets/" + query % created["id"].encode()
        handshake = re.sub(rb"^GET \S+", b"GET " + path, HANDSHAKE)
        with deaf(server, SOCKETS, handshake):
            most = await largest(server, 5) - before
            assert SOCKETS * 100_000 < most < SOCKETS_BYTES
        assert await given_back(server, before) <= LEFT_BYTES
