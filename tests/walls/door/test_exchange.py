"""A connection of an agent: what is bounded in it, with a clock of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import h11
import pytest
import trio
from trio.testing import MockClock, memory_stream_pair

from supervisor.agent_connection import AHEAD_BYTES, HEAD_BYTES, STALL_SECONDS, Left
from supervisor.agents.walls.door import exchange as bounds
from supervisor.agents.walls.door.exchange import Answer, Exchange
from supervisor.http_headers import passed_on

REQUEST = b"GET /x HTTP/1.1\r\nHost: door\r\n\r\n"


async def fine(exchange: Exchange, request: h11.Request) -> None:
    await exchange.without_content()
    await exchange.send(200, [(b"Content-Length", b"2")], _pieces(b"ok"))


async def _pieces(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


class Agent:
    """The agent's end of a connection, and how the door's end came out."""

    def __init__(self, stream: trio.StapledStream) -> None:
        self.stream = stream
        self.ended = trio.Event()
        self.failure: Exception | None = None

    async def read(self, end: bytes = b"ok") -> bytes:
        data = b""
        while not data.endswith(end):
            piece = await self.stream.receive_some()
            assert piece, data
            data += piece
        return data

    async def rest(self) -> bytes:
        data = b""
        while piece := await self.stream.receive_some():
            data += piece
        return data


@asynccontextmanager
async def connected(
    answer: Callable[[Exchange, h11.Request], Awaitable[None]] = fine,
) -> AsyncIterator[Agent]:
    ours, theirs = memory_stream_pair()
    agent = Agent(ours)

    async def serve() -> None:
        try:
            await Exchange(theirs).serve(answer)
        except Exception as error:
            agent.failure = error
        await theirs.aclose()
        agent.ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        yield agent
        nursery.cancel_scope.cancel()


async def test_requests_follow_each_other() -> None:
    async with connected() as agent:
        for _ in range(3):
            await agent.stream.send_all(REQUEST)
            assert (await agent.read()).startswith(b"HTTP/1.1 200")
        # Two at once, and the second in two parts.
        await agent.stream.send_all(REQUEST + REQUEST[:20])
        await agent.read()
        await agent.stream.send_all(REQUEST[20:])
        await agent.read()
        await agent.stream.aclose()
        await agent.ended.wait()
        assert agent.failure is None


async def test_a_silent_connection_ends(autojump_clock: MockClock) -> None:
    async with connected() as agent:
        began = trio.current_time()
        await agent.ended.wait()
        assert trio.current_time() - began == pytest.approx(bounds.IDLE_SECONDS)


async def test_an_idle_connection_ends_after_its_requests(autojump_clock: MockClock) -> None:
    async with connected() as agent:
        await agent.stream.send_all(REQUEST)
        await agent.read()
        await trio.sleep(bounds.IDLE_SECONDS - 1)
        await agent.stream.send_all(REQUEST)
        await agent.read()
        began = trio.current_time()
        await agent.ended.wait()
        assert trio.current_time() - began == pytest.approx(bounds.IDLE_SECONDS)


async def test_a_head_that_comes_too_slowly_ends(autojump_clock: MockClock) -> None:
    async with connected() as agent:
        began = trio.current_time()
        with suppress(trio.BrokenResourceError):
            for number in range(len(REQUEST) - 2):
                await agent.stream.send_all(REQUEST[number : number + 1])
                await trio.sleep(1)
        await agent.ended.wait()
        assert trio.current_time() - began <= bounds.HEAD_SECONDS + 1


async def test_a_head_that_is_too_long_is_refused(autojump_clock: MockClock) -> None:
    async with connected() as agent:
        await agent.stream.send_all(b"GET /" + b"x" * (HEAD_BYTES + 1))
        assert (await agent.rest()).startswith(b"HTTP/1.1 431")


async def test_what_is_not_http_is_refused(autojump_clock: MockClock) -> None:
    async with connected() as agent:
        await agent.stream.send_all(b"\x16\x03\x01 not a request\r\n\r\n")
        said = await agent.rest()
        assert said.startswith(b"HTTP/1.1 400")
        assert b"This is not HTTP/1.1" in said


async def test_a_body_that_stops_ends(autojump_clock: MockClock) -> None:
    seen: list[bytes] = []

    async def taking(exchange: Exchange, request: h11.Request) -> None:
        async for piece in exchange.content():
            seen.append(piece)

    async with connected(taking) as agent:
        await agent.stream.send_all(b"POST / HTTP/1.1\r\nHost: door\r\nContent-Length: 10\r\n\r\nabc")
        await agent.ended.wait()
        assert isinstance(agent.failure, trio.TooSlowError)
        assert seen == [b"abc"]
        assert trio.current_time() == pytest.approx(autojump_clock.current_time())


async def test_tiny_chunks_are_sent_on_together() -> None:
    seen: list[bytes] = []

    async def taking(exchange: Exchange, request: h11.Request) -> None:
        async for piece in exchange.content():
            seen.append(piece)
        await exchange.send(200, [(b"Content-Length", b"2")], _pieces(b"ok"))

    async with connected(taking) as agent:
        head = b"POST / HTTP/1.1\r\nHost: door\r\nTransfer-Encoding: chunked\r\n\r\n"
        await agent.stream.send_all(head + b"1\r\nx\r\n" * 1000 + b"2\r\nyz\r\n")
        await trio.testing.wait_all_tasks_blocked()
        await agent.stream.send_all(b"1\r\nx\r\n0\r\n\r\n")
        await agent.read()
    assert b"".join(seen) == b"x" * 1000 + b"yzx"
    assert 1000 / bounds.PIECES_MOST <= len(seen) <= 1000 / bounds.PIECES_MOST + 3


async def test_a_body_that_is_cut_is_noticed() -> None:
    async def taking(exchange: Exchange, request: h11.Request) -> None:
        async for _ in exchange.content():
            pass

    async with connected(taking) as agent:
        await agent.stream.send_all(
            b"POST / HTTP/1.1\r\nHost: door\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc"
        )
        await agent.stream.aclose()
        await agent.ended.wait()
        assert isinstance(agent.failure, Left | h11.RemoteProtocolError)


async def test_an_agent_that_reads_nothing_ends_its_connection(autojump_clock: MockClock) -> None:
    async def endless(exchange: Exchange, request: h11.Request) -> None:
        async def pieces() -> AsyncIterator[bytes]:
            while True:
                yield b"x" * 65536

        await exchange.without_content()
        await exchange.send(200, [], pieces())

    small, large = trio.testing.lockstep_stream_pair()
    failure: list[Exception] = []

    async def serve() -> None:
        try:
            await Exchange(large).serve(endless)
        except trio.TooSlowError as error:
            failure.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        await small.send_all(REQUEST)
        await small.receive_some(10)
        began = trio.current_time()
        await trio.testing.wait_all_tasks_blocked()
        await trio.sleep(STALL_SECONDS + 1)
        assert failure
        assert trio.current_time() - began == pytest.approx(STALL_SECONDS + 1)


def without_an_end() -> tuple[Answer, trio.Event]:
    """An answer that does not come, and what is set when it is given up."""
    cancelled = trio.Event()

    async def answer(exchange: Exchange, request: h11.Request) -> None:
        await exchange.without_content()
        try:
            await trio.sleep_forever()
        finally:
            cancelled.set()

    return answer, cancelled


async def test_the_answer_is_cancelled_when_the_agent_leaves() -> None:
    slow, cancelled = without_an_end()
    async with connected(slow) as agent:
        await agent.stream.send_all(REQUEST)
        await trio.testing.wait_all_tasks_blocked()
        assert not cancelled.is_set()
        await agent.stream.aclose()
        await agent.ended.wait()
        assert cancelled.is_set()


async def test_little_is_read_ahead_of_an_answer() -> None:
    slow, cancelled = without_an_end()
    async with connected(slow) as agent:
        await agent.stream.send_all(REQUEST + REQUEST * 10)
        await trio.testing.wait_all_tasks_blocked()
        assert not cancelled.is_set()
        await agent.stream.send_all(b"x" * (2 * AHEAD_BYTES))
        await cancelled.wait()


async def test_a_refusal_is_read_before_the_connection_is_closed(autojump_clock: MockClock) -> None:
    async def refusing(exchange: Exchange, request: h11.Request) -> None:
        await exchange.refuse(403, "No.", b"Because")

    async with connected(refusing) as agent:
        await agent.stream.send_all(
            b"POST / HTTP/1.1\r\nHost: door\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1000
        )
        said = await agent.rest()
        assert said.startswith(b"HTTP/1.1 403 Because\r\n")
        assert said.endswith(b"\r\n\r\nNo.\n")


async def test_a_client_that_asks_first_is_told_to_go_on() -> None:
    async def taking(exchange: Exchange, request: h11.Request) -> None:
        async for _ in exchange.content():
            pass
        await exchange.send(200, [(b"Content-Length", b"2")], _pieces(b"ok"))

    async with connected(taking) as agent:
        head = b"POST / HTTP/1.1\r\nHost: door\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
        await agent.stream.send_all(head)
        assert (await agent.read(b"\r\n\r\n")).startswith(b"HTTP/1.1 100")
        await agent.stream.send_all(b"abc")
        assert (await agent.read()).startswith(b"HTTP/1.1 200")


def test_headers_of_a_connection_stay() -> None:
    given = [
        (b"Connection", b"close, X-Hop"),
        (b"X-Hop", b"1"),
        (b"Keep-Alive", b"5"),
        (b"Proxy-Authorization", b"secret"),
        (b"Transfer-Encoding", b"chunked"),
        (b"TE", b"trailers"),
        (b"Upgrade", b"h2c"),
        (b"X-Other", b"2"),
        (b"Host", b"door"),
    ]
    assert passed_on(given, frozenset({b"host"})) == [(b"X-Other", b"2")]
