"""Listening, and HTTP as it comes over a real connection."""

from __future__ import annotations

import json
import socket
import time
from contextlib import AsyncExitStack, suppress

import pytest
import trio

from gateway.configuration.config import Config
from gateway.http.listener import BindError, bind, url_of


async def test_port_zero_picks_one(tmp_path):
    config = Config(port=0, state=tmp_path)
    sockets = await bind(config)
    try:
        port = sockets[0].getsockname()[1]
        assert port != 0
        assert url_of(config, sockets) == f"http://127.0.0.1:{port}"
        with pytest.raises(BindError, match=f"port {port} on 127.0.0.1 is in use"):
            await bind(Config(port=port, state=tmp_path))
    finally:
        for sock in sockets:
            sock.close()
    for sock in await bind(Config(port=port, state=tmp_path)):
        sock.close()


async def test_every_address_of_a_name_gets_the_same_port(tmp_path):
    sockets = await bind(Config(host="localhost", port=0, state=tmp_path))
    try:
        assert len({sock.getsockname()[1] for sock in sockets}) == 1
    finally:
        for sock in sockets:
            sock.close()


async def test_a_stalled_connection_has_a_limit(tmp_path):
    (sock,) = await bind(Config(port=0, state=tmp_path, stall_seconds=7))
    with sock:
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 7000
        assert not sock.get_inheritable()


@pytest.mark.parametrize("host", ["no-such-host.invalid", "192.0.2.1", "x" * 300, "a..b"])
async def test_addresses_of_others(tmp_path, host):
    with pytest.raises(BindError) as info:
        await bind(Config(host=host, port=0, state=tmp_path))
    assert "\n" not in str(info.value)


def address(server):
    host, port = server.url.removeprefix("http://").split(":")
    return host, int(port)


async def exchange(server, data, seconds=5, until_closed=False):
    """What comes back for raw bytes until a response is whole or the server closes."""
    stream = await trio.open_tcp_stream(*address(server))
    received = b""
    async with stream:
        with trio.move_on_after(seconds) as scope:
            await stream.send_all(data)
            async for chunk in stream:
                received += chunk
                head, _, body = received.partition(b"\r\n\r\n")
                if not until_closed and b"content-length: %d" % len(body) in head.lower():
                    break
    assert not (until_closed and scope.cancelled_caught), "the connection is still open"
    return received


async def test_odd_paths_are_json_404(server):
    for path in (b"/api//settings", b"/%ff", b"/%00", b"/..%2f..%2fetc/passwd", b"*"):
        received = await exchange(server, b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path)
        assert received.startswith(b"HTTP/1.1 404 Not Found\r\n"), (path, received)
        assert json.loads(received.partition(b"\r\n\r\n")[2]) == {"detail": "Not Found"}


async def test_no_spelling_of_a_path_gets_around_the_key(server_with):
    async with server_with(session_api_keys=("k",)) as server:
        for path in (b"//api/settings", b"///api/settings", b"/%61pi/settings", b"http://x/api/settings"):
            received = await exchange(server, b"GET %b HTTP/1.1\r\nHost: localhost\r\n\r\n" % path)
            assert received.startswith(b"HTTP/1.1 401 Unauthorized\r\n"), (path, received)


async def test_a_body_that_grows_too_large_is_413(server_with):
    async with server_with(max_body_bytes=10_000) as server:
        head = b"POST /api/conversations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        chunked = head + b"Transfer-Encoding: chunked\r\n\r\n" + b"1000\r\n" + b"x" * 0x1000 + b"\r\n"
        received = await exchange(server, chunked + (b"1000\r\n" + b"x" * 0x1000 + b"\r\n") * 5)
        assert received.startswith(b"HTTP/1.1 413")
        declared = await exchange(server, head + b"Content-Length: 100000000000\r\n\r\n")
        assert declared.startswith(b"HTTP/1.1 413")


async def test_connections_are_kept(server, http):
    for _ in range(5):
        response = await http.get(f"{server.url}/alive")
        assert response.json() == {"status": "ok"}
        assert "server" not in response.headers
        assert "connection" not in response.headers


async def test_get_with_a_body(server, http):
    conversation = await server.conversation()
    url = f"{server.url}/api/conversations/{conversation.id}/events"
    response = await http.request("GET", url, json=["a", "b"])
    assert (response.status_code, response.json()) == (200, [None, None])
    response = await http.request("GET", url)
    assert response.json()["detail"][0]["type"] == "missing"


async def test_a_broken_connection_does_not_hurt_the_server(server, http):
    for data in (
        b"\x16\x03\x01\x00garbage",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
        b"POST /api/settings HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\nabc",
        b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
        b"GET /sockets/events/x HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade\r\nHTTP2-Settings: ?\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nnonsense",
    ):
        await exchange(server, data, seconds=0.3)
        assert (await http.get(f"{server.url}/alive")).status_code == 200, data


async def test_requests_under_way_are_finished_at_the_end(server_with, http):
    results = []
    async with server_with(grace_seconds=5) as server:
        conversation = await server.conversation()
        going = trio.Event()

        async def slow():
            going.set()
            await trio.sleep(0.2)

        conversation.interrupt = slow

        async def ask():
            url = f"{server.url}/api/conversations/{conversation.id}/interrupt"
            results.append((await http.post(url)).status_code)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await going.wait()
            server.services.closing.set()
            started = time.monotonic()
    assert results == [200]
    assert time.monotonic() - started < 2


async def test_idle_connections_are_closed(server_with):
    async with server_with(keep_alive_seconds=0.1) as server:
        received = await exchange(server, b"GET /alive HTTP/1.1\r\nHost: x\r\n\r\n", until_closed=True)
        assert received.startswith(b"HTTP/1.1 200")


async def test_idle_connections_do_not_delay_the_end(server_with, http):
    async with server_with(grace_seconds=5) as server:
        await http.get(f"{server.url}/alive")
        started = time.monotonic()
    assert time.monotonic() - started < 2


async def test_a_body_that_does_not_come_is_408(server_with):
    async with server_with(body_seconds=0.2) as server:
        head = b"PATCH /api/settings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        received = await exchange(server, head + b"Content-Length: 100\r\n\r\n{", until_closed=True)
        assert received.startswith(b"HTTP/1.1 408")
        assert json.loads(received.partition(b"\r\n\r\n")[2]) == {"detail": "Request Timeout"}


async def dribble(server, data, pause=0.02):
    """Send a byte at a time until the server closes; the seconds that it took."""
    stream = await trio.open_tcp_stream(*address(server))
    started = time.monotonic()
    async with stream, trio.open_nursery() as nursery:

        async def send():
            with suppress(trio.BrokenResourceError):
                for byte in data:
                    await stream.send_all(bytes([byte]))
                    await trio.sleep(pause)

        nursery.start_soon(send)
        with trio.fail_after(30), suppress(trio.BrokenResourceError):
            while await stream.receive_some():
                pass
        nursery.cancel_scope.cancel()
    return time.monotonic() - started


async def test_a_head_that_comes_slowly_is_cut_off(server_with, http):
    async with server_with(keep_alive_seconds=0.3) as server:
        assert await dribble(server, b"GET /alive HTTP/1.1\r\n" + b"X-A: b\r\n" * 100) < 2
        assert (await http.get(f"{server.url}/alive")).status_code == 200


async def test_a_body_that_comes_slowly_is_cut_off(server_with):
    async with server_with(body_seconds=0.3) as server:
        head = b"PATCH /api/settings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        assert await dribble(server, head + b"Content-Length: 1000\r\n\r\n" + b" " * 1000, pause=0.002) < 3


async def test_a_refused_body_is_not_waited_for(server_with):
    async with server_with(session_api_keys=("k",)) as server:
        head = b"PATCH /api/settings HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"
        received = await exchange(server, head, until_closed=True)
        assert received.startswith(b"HTTP/1.1 401")


@pytest.mark.guarantee(name="other-machines")
async def test_idle_connections_keep_nobody_out(server_with):
    """More of them than there is room for: who asks for something gets in, the longest idle has to go."""
    async with server_with(max_connections=10) as server:
        held = [await trio.open_tcp_stream(*address(server)) for _ in range(50)]
        await trio.sleep(0.05)
        received = await exchange(server, b"GET /alive HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert received.startswith(b"HTTP/1.1 200")
        for stream in held:
            await trio.aclose_forcefully(stream)


@pytest.mark.guarantee(name="other-machines")
async def test_strangers_go_before_those_who_were_let_in(server_with):
    async with server_with(max_connections=3, session_api_keys=("k",)) as server:
        ask = b"GET /api/settings HTTP/1.1\r\nHost: localhost\r\nX-Session-API-Key: %b\r\n\r\n"
        async with AsyncExitStack() as open_ones:

            async def connect(key):
                stream = await open_ones.enter_async_context(await trio.open_tcp_stream(*address(server)))
                await answered(stream, key)
                return stream

            async def answered(stream, key):
                await stream.send_all(ask % key)
                received = b""
                while not received.endswith(b"}"):
                    received += await stream.receive_some()
                assert received.startswith(b"HTTP/1.1 200" if key == b"k" else b"HTTP/1.1 401")

            known = await connect(b"k")
            for _ in range(10):
                await connect(b"wrong")
            await answered(known, b"k")


async def test_no_room_is_said(server_with):
    """Each connection is at work for somebody who was let in."""
    async with server_with(max_connections=2) as server:
        conversation = await server.conversation()
        release = trio.Event()

        async def slow():
            await release.wait()

        conversation.interrupt = slow
        ask = f"POST /api/conversations/{conversation.id}/interrupt HTTP/1.1\r\nHost: localhost\r\n\r\n"
        async with (
            await trio.open_tcp_stream(*address(server)) as first,
            await trio.open_tcp_stream(*address(server)) as second,
        ):
            for stream in (first, second):
                await stream.send_all(ask.encode())
            await trio.sleep(0.1)
            received = await exchange(server, b"GET /alive HTTP/1.1\r\nHost: x\r\n\r\n", until_closed=True)
            assert received.startswith(b"HTTP/1.1 503")
            assert b"\r\nX-Content-Type-Options: nosniff\r\n" in received
            assert json.loads(received.partition(b"\r\n\r\n")[2]) == {"detail": "Too many connections"}
            release.set()
            for stream in (first, second):
                assert (await stream.receive_some()).startswith(b"HTTP/1.1 200")
        received = await exchange(server, b"GET /alive HTTP/1.1\r\nHost: x\r\n\r\n")
        assert received.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("host", ["0.0.0.0", "localhost"])
async def test_an_open_server_listens_on_this_machine_alone(tmp_path, monkeypatch, host):
    """Also when the name has changed its meaning since the arguments were read."""
    elsewhere = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("0.0.0.0", 0))]

    async def resolve(*_args, **_kwargs):
        return elsewhere

    monkeypatch.setattr(trio.socket, "getaddrinfo", resolve)
    with pytest.raises(BindError, match="OSTLER_ALLOW_OPEN=1"):
        await bind(Config(host=host, port=0, state=tmp_path))
    for more in ({"allow_open": True}, {"session_api_keys": ("k",)}):
        for sock in await bind(Config(host=host, port=0, state=tmp_path, **more)):
            sock.close()


@pytest.mark.guarantee(name="nothing-hangs")
@pytest.mark.parametrize("path", [b"/alive", b"/openapi.json", b"/api/conversations/count"])
async def test_an_upgrade_to_http2_is_ignored(server, path):
    """RFC 9110, 7.8: the client gets its answer in HTTP/1.1, and goes on in it."""
    upgrade = b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
    answer = await exchange(server, b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\n" + upgrade + b"\r\n")
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"upgrade" not in answer.partition(b"\r\n\r\n")[0].lower()


@pytest.mark.guarantee(name="nothing-hangs")
@pytest.mark.parametrize("behind", [b"", b"SM\r\n\r\n", b"SM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])])
async def test_http2_without_an_upgrade_is_refused(server, behind):
    answer = await exchange(server, b"PRI * HTTP/2.0\r\n\r\n" + behind)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 505 ")
    assert b"connection: close" in head.lower()
    assert json.loads(body) == {"detail": "Only HTTP/1.1 is spoken here."}
    with trio.fail_after(20):
        while len(server.services.connection_limits):
            await trio.sleep(0.01)
