"""The loopback proxy for MCP servers behind a login: what it holds of bodies, and what it passes on."""

from __future__ import annotations

import hashlib
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import h11
import httpx2
import pytest
import trio

from supervisor.mcp.proxy import HELD_BYTES, HOST, MAX_CONNECTIONS, Proxy, Target

PATH = "path"
PIECE = b"x" * 65536
LARGE = 31 * 1024 * 1024
MEMORY_BYTES = 40_000_000
"""For all connections: what is held of bodies, and the pieces that each has under way. With whole bodies it
was two gigabytes."""


class Server:
    """Answers with the size and the digest of what it got; `deaf`: reads nothing behind a head;
    `slow`: says nothing behind one until it may."""

    def __init__(self) -> None:
        self.deaf = False
        self.good = "good"
        self.lengths: list[bytes | None] = []
        self.chunked: list[bool] = []
        self.slow = False
        self.let_go = trio.Event()

    async def serve(self, stream: trio.SocketStream) -> None:
        http = h11.Connection(h11.SERVER)
        size, digest = 0, hashlib.sha256()
        token = ""
        while True:
            try:
                event = http.next_event()
            except h11.RemoteProtocolError:
                return  # who sent it has left
            if event is h11.NEED_DATA:
                try:
                    http.receive_data(await stream.receive_some(65536))
                except trio.BrokenResourceError:
                    return
            elif isinstance(event, h11.Request):
                headers = dict(event.headers)
                token = headers[b"authorization"].decode()
                self.lengths.append(headers.get(b"content-length"))
                self.chunked.append(b"transfer-encoding" in headers)
                if self.deaf:
                    await trio.sleep_forever()
            elif isinstance(event, h11.Data):
                size += len(event.data)
                digest.update(event.data)
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                return
        body = f"{size} {digest.hexdigest()}".encode()
        status = 200 if token == f"Bearer {self.good}" else 401
        head = [("Content-Length", str(len(body))), ("Connection", "close")]
        for part in (h11.Response(status_code=status, headers=head), h11.Data(data=body), h11.EndOfMessage()):
            await stream.send_all(http.send(part))
            if self.slow and isinstance(part, h11.Response):
                await self.let_go.wait()


@asynccontextmanager
async def proxied(server: Server) -> AsyncIterator[tuple[Proxy, list[str | None]]]:
    refused: list[str | None] = []

    async def token(which: str | None) -> str:
        refused.append(which)
        return "stale" if which is None and server.good == "renewed" and len(refused) == 1 else server.good

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, server.serve, 0, host=HOST))
        port = listeners[0].socket.getsockname()[1]
        proxy = Proxy({PATH: Target(f"http://{HOST}:{port}/mcp", token)})
        await nursery.start(proxy.serve)
        yield proxy, refused
        nursery.cancel_scope.cancel()


def head_of(proxy: Proxy) -> str:
    return f"POST /{PATH}/mcp HTTP/1.1\r\nHost: {HOST}:{proxy.port}\r\nContent-Length: {LARGE}\r\n\r\n"


async def given_back(proxy: Proxy) -> None:
    with trio.fail_after(20):
        while proxy.held_left != HELD_BYTES:
            await trio.sleep(0.01)


async def pieces(size: int) -> AsyncIterator[bytes]:
    for _ in range(size // len(PIECE)):
        yield PIECE


def told(size: int) -> str:
    return f"{size} {hashlib.sha256(b'x' * size).hexdigest()}"


@pytest.mark.parametrize("size", [0, 65536, HELD_BYTES, 4 * HELD_BYTES])
@pytest.mark.parametrize("measured", [True, False])
async def test_a_body_of_any_size_arrives_whole(size: int, measured: bool) -> None:
    server = Server()
    async with proxied(server) as (proxy, _), httpx2.AsyncClient(timeout=30) as client:
        for _ in range(2):
            content = b"x" * size if measured else pieces(size)
            answer = await client.post(proxy.url(PATH), content=content)
            assert (answer.status_code, answer.text) == (200, told(size))
        if measured:
            assert server.lengths == [str(size).encode()] * 2
        await given_back(proxy)


async def test_a_token_that_ends_early_is_renewed_and_what_is_held_is_sent_again() -> None:
    server = Server()
    server.good = "renewed"
    async with proxied(server) as (proxy, refused), httpx2.AsyncClient(timeout=30) as client:
        answer = await client.post(proxy.url(PATH), content=b"x" * 65536)
        assert (answer.status_code, answer.text) == (200, told(65536))
        assert refused == [None, "stale"]


async def test_a_body_that_was_passed_on_in_pieces_is_to_be_sent_once_more() -> None:
    server = Server()
    server.good = "renewed"
    async with proxied(server) as (proxy, refused), httpx2.AsyncClient(timeout=30) as client:
        answer = await client.post(proxy.url(PATH), content=b"x" * (2 * HELD_BYTES))
        assert (answer.status_code, answer.text) == (503, "the login was renewed; try again")
        assert refused == [None, "stale"]
        answer = await client.post(proxy.url(PATH), content=b"x" * (2 * HELD_BYTES))
        assert answer.status_code == 200


@pytest.mark.guarantee(name="what-holds-how-much")
async def test_all_connections_together_hold_little(autojump_clock: None) -> None:
    server = Server()
    server.deaf = True
    async with proxied(server) as (proxy, _), trio.open_nursery() as nursery:
        head = head_of(proxy)
        sent = 0

        async def send() -> None:
            nonlocal sent
            async with await trio.open_tcp_stream(HOST, proxy.port) as stream:
                await stream.send_all(head.encode())
                for _ in range(LARGE // len(PIECE)):
                    await stream.send_all(PIECE)
                    sent += len(PIECE)

        tracemalloc.start()
        try:
            for _ in range(MAX_CONNECTIONS):
                nursery.start_soon(send)
            await trio.sleep(5)  # until nobody gets any further
            _, most = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert sent > 3 * HELD_BYTES  # what the kernel holds, and what the proxy does
        assert most < MEMORY_BYTES
        nursery.cancel_scope.cancel()
    assert proxy.held_left == HELD_BYTES


async def test_an_agent_that_leaves_in_the_middle_of_a_body_leaves_nothing() -> None:
    server = Server()
    async with proxied(server) as (proxy, _):
        for size in (100_000, 2 * HELD_BYTES):
            head = head_of(proxy)
            async with await trio.open_tcp_stream(HOST, proxy.port) as stream:
                await stream.send_all(head.encode() + b"x" * size)
            with trio.fail_after(20):
                while proxy._limit.borrowed_tokens:
                    await trio.sleep(0.01)
            await given_back(proxy)


async def test_without_room_a_short_request_is_sent_again_all_the_same() -> None:
    server = Server()
    server.good = "renewed"
    async with proxied(server) as (proxy, refused), httpx2.AsyncClient(timeout=30) as client:
        proxy.held_left = 0
        for method in ("GET", "DELETE"):
            refused.clear()
            answer = await client.request(method, proxy.url(PATH))
            assert (answer.status_code, answer.text) == (200, told(0))
            assert refused == [None, "stale"]
        assert server.lengths == [None] * 4
        assert server.chunked == [False] * 4
        assert proxy.held_left == 0


async def test_what_an_answer_does_not_need_is_given_back_before_it_ends() -> None:
    server = Server()
    server.slow = True
    async with (
        proxied(server) as (proxy, _),
        httpx2.AsyncClient(timeout=30) as client,
        client.stream("POST", proxy.url(PATH), content=b"x" * 65536) as answer,
    ):
        assert answer.status_code == 200
        await given_back(proxy)
        server.let_go.set()
        assert (await answer.aread()).decode() == told(65536)
