"""Answers that are there before the request's body: a client that sends all of it first gets them."""

from __future__ import annotations

import contextlib
import select
from collections.abc import AsyncIterator

import pytest
import trio

from gateway.api import app as app_module

EARLY = {
    "unknown route": ("POST", "/api/nothing", {}, 404),
    "unknown below a known one": ("POST", "/api/conversations/x/nothing", {}, 404),
    "no key": ("POST", "/api/conversations", {"X-Session-API-Key": "wrong"}, 401),
    "wrong method": ("PUT", "/api/conversations", {}, 405),
    "too large": ("POST", "/api/conversations", {}, 413),
    "wrong type": ("POST", "/api/conversations", {"Content-Type": "text/plain"}, 415),
    "no host of ours": ("POST", "/api/conversations", {"Host": "a..b"}, 400),
}
MOST = 200_000
KEY = "the-key"


@contextlib.asynccontextmanager
async def connected(url: str) -> AsyncIterator[trio.SocketStream]:
    host, _, port = url.removeprefix("http://").rpartition(":")
    async with await trio.open_tcp_stream(host, int(port)) as stream:
        yield stream


def head(method: str, path: str, more: dict[str, str]) -> bytes:
    headers = {"Host": "localhost", "X-Session-API-Key": KEY, "Content-Type": "application/json", **more}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def answer_of(stream: trio.SocketStream) -> bytes:
    """An answer with a length."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = await stream.receive_some(65536)
        assert piece, data
        data += piece
    start, _, rest = data.partition(b"\r\n\r\n")
    lines = start.lower().split(b"\r\n")
    length = next(int(line[15:]) for line in lines if line.startswith(b"content-length"))
    while len(rest) < length:
        rest += await stream.receive_some(65536)
    return start + b"\r\n\r\n" + rest


@pytest.mark.guarantee(name="nothing-hangs")
@pytest.mark.parametrize("what", EARLY)
@pytest.mark.parametrize("expect", [False, True])
async def test_a_body_in_chunks_is_read_before_the_answer(server_with, what, expect):
    method, path, more, status = EARLY[what]
    size = 2 * MOST if status == 413 else MOST - 50_000
    more = {**more, "Transfer-Encoding": "chunked", **({"Expect": "100-continue"} if expect else {})}
    async with (
        server_with(session_api_keys=(KEY,), max_body_bytes=MOST) as server,
        connected(server.url) as stream,
    ):
        await stream.send_all(head(method, path, more))
        if expect:
            assert (await stream.receive_some(65536)).startswith(b"HTTP/1.1 100 ")
        for _ in range(size // 10_000):
            await trio.sleep(0.002)  # slower than an answer: it must not overtake the body
            assert select.select([stream.socket.fileno()], [], [], 0)[0] == []
            await stream.send_all(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
        await stream.send_all(b"0\r\n\r\n")
        answer = await answer_of(stream)
        assert answer.startswith(f"HTTP/1.1 {status} ".encode()), answer[:300]
        assert b"detail" in answer
        # The same connection takes the next request.
        await stream.send_all(head("GET", "/alive", {}))
        assert (await answer_of(stream)).startswith(b"HTTP/1.1 200 ")


@pytest.mark.guarantee(name="nothing-hangs")
async def test_a_body_that_never_ends_is_given_up_in_time(server_with, monkeypatch):
    monkeypatch.setattr(app_module, "DRAIN_SECONDS", 0.2)
    async with server_with() as server, connected(server.url) as stream:
        await stream.send_all(head("POST", "/api/nothing", {"Transfer-Encoding": "chunked"}))
        await stream.send_all(b"1\r\nx\r\n")
        assert (await answer_of(stream)).startswith(b"HTTP/1.1 404 ")
        assert await stream.receive_some(1) == b""


async def test_a_body_without_measure_is_given_up_by_its_bytes(server_with):
    async with server_with(max_body_bytes=MOST) as server, connected(server.url) as stream:
        await stream.send_all(head("POST", "/api/nothing", {"Transfer-Encoding": "chunked"}))
        answers: list[bytes] = []

        async def send() -> None:
            with contextlib.suppress(trio.BrokenResourceError):
                while True:
                    await stream.send_all(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
                    await trio.lowlevel.checkpoint()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(send)
            answers.append(await answer_of(stream))
            nursery.cancel_scope.cancel()
        assert answers[0].startswith(b"HTTP/1.1 404 ")
