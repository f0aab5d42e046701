"""One connection, from its first byte to its end."""

from __future__ import annotations

import json
import math
import os
import socket
import threading
import time
from contextlib import asynccontextmanager, suppress
from functools import partial
from types import SimpleNamespace

import pytest
import trio
import trio.testing
from hypercorn.config import Config as HypercornConfig

from gateway.configuration.config import Config
from gateway.http import client_connection as connection_module
from gateway.http.budgets import Received, Unsent
from gateway.http.client_connection import GATHER_BYTES, JOIN_BYTES, Connection
from gateway.http.listener import bind, serve_connections, url_of
from gateway.serving.late_application import LateApplication
from tests.gateway.harness import open_gateway
from tests.support.impolite import GET, HANDSHAKE, HOST, LARGE


def address(server):
    host, port = server.url.removeprefix("http://").split(":")
    return host, int(port)


def open_sockets():
    return sum(os.readlink(f"/proc/self/fd/{name}").startswith("socket:") for name in listing())


def listing():
    # Without the descriptor of the look itself.
    names = os.listdir("/proc/self/fd")
    return [name for name in names if os.path.islink(f"/proc/self/fd/{name}")]


SLOW = b"POST /api/conversations/%b/interrupt HTTP/1.1\r\n" + HOST + b"\r\n"


@pytest.mark.guarantee(name="other-machines")
@pytest.mark.parametrize("sent", [b"", GET * 3, LARGE * 50, HANDSHAKE, b"GET /alive HT"])
async def test_the_limit_counts_what_is_open(server_with, sent):
    """Whoever had to go is gone: also where its reader waits for something else than the client."""
    async with server_with(max_connections=10) as server:
        before = open_sockets()
        held = []
        for _ in range(60):
            stream = await trio.open_tcp_stream(*address(server))
            held.append(stream)
            with suppress(trio.BrokenResourceError):
                await stream.send_all(sent)
        await trio.sleep(0.3)
        assert len(server.services.connection_limits) <= 10
        assert open_sockets() - before - len(held) <= 10
        for stream in held:
            await trio.aclose_forcefully(stream)


async def test_refused_clients_count(server_with):
    async with server_with(max_connections=1) as server:
        conversation = await server.conversation()

        async def slow():
            await trio.sleep_forever()

        conversation.interrupt = slow
        before = open_sockets()
        async with await trio.open_tcp_stream(*address(server)) as busy:
            await busy.send_all(SLOW % conversation.id.encode())
            await trio.sleep(0.1)
            held = [await trio.open_tcp_stream(*address(server)) for _ in range(100)]
            limits = server.services.connection_limits
            with trio.fail_after(20):
                while limits.descriptors <= 1:
                    await trio.sleep(0.01)
            await trio.sleep(0.05)
            assert 1 < limits.descriptors <= 17
            assert open_sockets() - before - len(held) - 1 <= 17
            for stream in held:
                await trio.aclose_forcefully(stream)


@pytest.mark.guarantee(name="no-agent-starves-the-others")
async def test_a_client_that_resets_ends_its_request_though_more_wait_behind_it(server_with):
    """The reader waits for the answer's end then, and would never learn of it."""
    async with server_with() as server:
        conversation = await server.conversation()
        cancelled = trio.Event()

        async def slow():
            try:
                await trio.sleep_forever()
            finally:
                cancelled.set()

        conversation.interrupt = slow
        stream = await trio.open_tcp_stream(*address(server))
        await stream.send_all(SLOW % conversation.id.encode() + GET * 3)
        await trio.sleep(0.2)
        assert len(server.services.connection_limits) == 1
        stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        stream.socket.close()
        with trio.fail_after(30):
            await cancelled.wait()
        assert len(server.services.connection_limits) == 0


async def test_who_sends_no_more_gets_what_was_asked_for(server_with):
    """Half closed, with requests that wait in a row."""
    async with server_with() as server, await trio.open_tcp_stream(*address(server)) as stream:
        close = GET.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
        await stream.send_all(GET * 5 + close)
        await stream.send_eof()
        received = b""
        with trio.fail_after(30):
            async for data in stream:
                received += data
        assert received.count(b"HTTP/1.1 200") >= 5


@pytest.fixture
async def late(tmp_path):
    """A server whose application is not loaded yet, and that answers probes by itself."""
    async with open_gateway(tmp_path, port=0) as opened, trio.open_nursery() as nursery:
        config, services = opened.services.config, opened.services
        sockets = await bind(config)
        serve = partial(serve_connections, connection_limits=services.connection_limits)
        await nursery.start(serve, LateApplication(services), sockets, config, services.closing)
        yield SimpleNamespace(url=url_of(config, sockets), services=services)
        nursery.cancel_scope.cancel()


async def tasks_of_who_reads_nothing(server, request):
    """How many tasks more there are while a client sends requests in a row and takes no answer."""
    before = trio.lowlevel.current_statistics().tasks_living
    most = 0
    with trio.socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        await client.connect(address(server))
        rest = memoryview(request * 500_000)
        # Until the server takes no more: its buffers are full, and it waits for the client.
        waited = False
        while not waited and most < 100:
            with trio.move_on_after(0.5) as scope:
                rest = rest[await client.send(rest) :]
            waited = scope.cancelled_caught
            most = max(most, trio.lowlevel.current_statistics().tasks_living - before)
        assert rest, "the server read everything"
    return most


MALFORMED = b"GET /alive HTTP/1.1\r\nHost: a..b\r\n\r\n"


@pytest.mark.guarantee(name="no-agent-starves-the-others")
async def test_requests_in_a_row_wait_for_a_client_that_reads_nothing(server):
    """Also those that are answered without the application's having begun."""
    assert await tasks_of_who_reads_nothing(server, MALFORMED) <= 10
    assert await tasks_of_who_reads_nothing(server, GET) <= 10


@pytest.mark.guarantee(name="no-agent-starves-the-others")
@pytest.mark.parametrize("request_bytes", [GET, MALFORMED])
async def test_so_do_probes_before_the_application_is_loaded(late, request_bytes):
    assert await tasks_of_who_reads_nothing(late, request_bytes) <= 10


@pytest.fixture
def written(monkeypatch):
    """What the server's connections write, each write by itself."""
    seen = []
    write = Connection._write

    async def note(self, data):
        if data:
            seen.append(bytes(data))
        await write(self, data)

    monkeypatch.setattr(Connection, "_write", note)
    return seen


@pytest.mark.parametrize("kept", [b"GET", b"HEAD"])
async def test_a_small_answer_is_written_at_once(server, written, kept):
    """Head and body go out in one system call, and another answer follows on the same connection."""
    async with await trio.open_tcp_stream(*address(server)) as stream:
        for number in range(2):
            await stream.send_all(GET.replace(b"GET", kept))
            received = await stream.receive_some()
            assert written[number:] == [received]
            assert received.startswith(b"HTTP/1.1 200 ")
            assert received.endswith(b"" if kept == b"HEAD" else b'{"status":"ok"}')


async def test_so_is_a_large_one_unless_it_is_very_large(server, monkeypatch, written):
    request = GET.replace(b"/alive", b"/openapi.json")
    close = request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")

    async def whole():
        async with await trio.open_tcp_stream(*address(server)) as stream:
            await stream.send_all(close)
            received = b"".join([data async for data in stream])
        head, _, body = received.partition(b"\r\n\r\n")
        assert f"content-length: {len(body)}\r\n".encode() in head + b"\r\n"
        return len(head) + 4, body

    head, body = await whole()
    assert GATHER_BYTES < len(body) < JOIN_BYTES
    assert list(map(len, written)) == [head + len(body)]
    monkeypatch.setattr(connection_module, "JOIN_BYTES", GATHER_BYTES)
    written.clear()
    assert await whole() == (head, body)
    assert list(map(len, written)) == [head, len(body)]


@asynccontextmanager
async def real_seconds(seconds):
    """A bound in real time, for a test whose clock stands still."""
    with trio.CancelScope() as scope:
        token = trio.lowlevel.current_trio_token()
        timer = threading.Timer(seconds, token.run_sync_soon, (scope.cancel,))
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()
    assert not scope.cancelled_caught, f"it took more than {seconds} s"


@pytest.fixture
async def unhurried(server_with):
    """A server with a handler that reads no body and takes its time."""
    async with server_with() as server:
        conversation = await server.conversation()
        begun, cancelled = trio.Event(), trio.Event()

        async def slow():
            begun.set()
            try:
                await trio.sleep_forever()
            finally:
                cancelled.set()

        conversation.interrupt = slow
        base = f"/api/conversations/{conversation.id}"
        path = f"{base}/interrupt"
        yield SimpleNamespace(server=server, base=base, path=path, begun=begun, cancelled=cancelled)


@pytest.mark.guarantee(name="nothing-hangs")
async def test_a_body_that_no_handler_reads_does_not_hide_that_the_client_leaves(unhurried, monkeypatch):
    # The reader learns of it, and not only the watch, some seconds later.
    monkeypatch.setattr(connection_module, "HALF_CLOSED_SECONDS", math.inf)
    size = 300_000
    async with await trio.open_tcp_stream(*address(unhurried.server)) as stream:
        head = f"POST {unhurried.path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n"
        await stream.send_all(head.encode() + bytes(size))
        with trio.fail_after(15):
            await unhurried.begun.wait()
    with trio.fail_after(15):
        await unhurried.cancelled.wait()


async def opened(server):
    """Its connections, once there is one."""
    while not (found := list(server.services.connection_limits._open)):
        await trio.lowlevel.checkpoint()
    return found


async def test_an_end_while_the_server_stops_is_quick(server_with):
    async with server_with(grace_seconds=5) as server:
        stream = await trio.open_tcp_stream(*address(server))
        await stream.send_all(GET)
        assert await stream.receive_some(65536)
        started = time.monotonic()
    assert time.monotonic() - started < 2
    await trio.aclose_forcefully(stream)


@pytest.mark.guarantee(name="nothing-hangs")
@pytest.mark.parametrize("end", ["grace over", "cancelled"])
async def test_what_the_end_of_the_server_says(tmp_path, end):
    """503 to each request whose answer has not begun, and nothing more to any other connection."""
    waits, begins = GET.replace(b"/alive", b"/waits"), GET.replace(b"/alive", b"/begins")
    begun = {"/waits": 0, "/begins": 0}
    received: dict[bytes, list[bytes]] = {waits: [], begins: [], waits[:-2]: []}

    async def application(scope, receive, send):
        if scope["path"] == "/begins":
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"piece", "more_body": True})
        begun[scope["path"]] += 1
        await trio.sleep_forever()

    async def ask(where, request):
        async with await trio.open_tcp_stream(*where) as stream:
            await stream.send_all(request)
            received[request].append(b"".join([data async for data in stream]))

    config, stop = Config(port=0, state=tmp_path, grace_seconds=0.01), trio.Event()
    sockets = await bind(config)
    async with trio.open_nursery() as clients, trio.open_nursery() as serving:
        await serving.start(serve_connections, application, sockets, config, stop)
        for request in [*received] * 10:
            clients.start_soon(ask, sockets[0].getsockname(), request)
        with trio.fail_after(15):
            while min(begun.values()) < 10:
                await trio.sleep(0.01)
        if end == "cancelled":
            serving.cancel_scope.cancel()
        stop.set()
    for answer in received[waits]:
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert f"\r\nContent-Length: {len(body)}\r\n".encode() in head
        assert json.loads(body)["detail"].startswith("The server is ending.")
    for answer in received[begins]:
        assert answer.startswith(b"HTTP/1.1 200 ")
        assert answer.endswith(b"\r\n5\r\npiece\r\n")
    assert set(received[waits[:-2]]) == {b""}


async def test_what_comes_behind_a_request_does_not_cost_its_answer(server_with):
    """However the two tasks take turns: the one that answers, and the one that finds no HTTP behind it."""
    async with server_with() as server:
        head = LARGE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")

        async def ask(garbage):
            async with await trio.open_tcp_stream(*address(server)) as stream:
                await stream.send_all(head)
                await trio.lowlevel.checkpoint()
                with suppress(trio.BrokenResourceError):
                    await stream.send_all(garbage)
                received = b""
                with trio.fail_after(30), suppress(trio.BrokenResourceError):
                    async for data in stream:
                        received += data
            answer, _, body = received.partition(b"\r\n\r\n")
            assert answer[:12] in (b"HTTP/1.1 200", b"HTTP/1.1 400"), received[:100]
            if answer.startswith(b"HTTP/1.1 200"):
                assert b"content-length: %d" % len(body) in answer.lower()

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(ask, b"GET garbage" * (number % 3))


@pytest.fixture
async def pair():
    """A connection, and the client's side of it."""
    ours, theirs = trio.socket.socketpair()
    stream, nothing = trio.SocketStream(ours), SimpleNamespace()
    config = HypercornConfig()
    connection = Connection(
        nothing,
        config,
        nothing,
        stream,
        stall_seconds=30,
        unsent=Unsent(),
        bodies=Received(),
        messages=Received(),
        gone=lambda _: None,
    )
    async with trio.SocketStream(theirs) as client:
        yield connection, client
    connection.end()


@asynccontextmanager
async def cancelled_while_it_waits_to_write(connection, first, second):
    """Two writes, of which the first fills the socket."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(connection._write, first)
        await trio.testing.wait_all_tasks_blocked()
        scope = trio.CancelScope()

        async def write():
            with scope:
                await connection._write(second)

        nursery.start_soon(write)
        await trio.testing.wait_all_tasks_blocked()
        scope.cancel()
        with trio.fail_after(15):
            yield


async def test_a_task_that_is_cancelled_while_it_waits_to_write_loses_nothing(pair):
    """Half a frame would be part of what both sides count: nothing after it could be read."""
    connection, client = pair
    first, second = bytes(2_000_000), b"x" * 1000
    async with cancelled_while_it_waits_to_write(connection, first, second):
        received = b""
        while len(received) < len(first + second):
            received += await client.receive_some(65536)
    assert received == first + second


async def test_the_end_of_a_connection_ends_who_waits_to_write(pair):
    connection, _ = pair
    async with cancelled_while_it_waits_to_write(connection, bytes(2_000_000), b"x" * 1000):
        connection.end()
    assert connection.send_lock.statistics().owner is None
