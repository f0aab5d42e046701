"""One connection of an agent to its door: requests and their answers over HTTP/1.1, within bounds."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterable, Awaitable, Callable, Iterable
from functools import partial
from typing import Final

import h11
import trio

from supervisor.fairness import share

CHUNK_BYTES: Final = 64 * 1024
"""Bytes that are read at once. What is read is sent on before more is read."""

HEAD_BYTES: Final = 64 * 1024
"""Bytes of a request's head, and of a chunk's or trailer's lines."""

HEAD_SECONDS: Final = 15.0
"""Seconds from the first byte of a head to its last: it comes over the loopback."""

IDLE_SECONDS: Final = 120.0
"""Seconds for which a connection without a request is kept. Clients keep theirs for less."""

BODY_SECONDS: Final = 60.0
"""Seconds for each piece of a request's body."""

STALL_SECONDS: Final = 60.0
"""Seconds for which the agent may take nothing of an answer."""

PIECES_MOST: Final = 64
"""Chunks of a body that are sent on together: one with a byte takes as long as one with thousands."""

AHEAD_BYTES: Final = 64 * 1024
"""Most bytes read ahead while an answer is sent: the beginning of the next request is shorter."""

LINGER_SECONDS: Final = 1.0
LINGER_BYTES: Final = 1024 * 1024
"""How long, and how many bytes, the rest of a refused request is read: a connection that is closed before
would take the answer with it."""

OF_A_CONNECTION: Final = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade".split()
)
"""Headers of one connection, which are not passed on."""

Headers = Iterable[tuple[bytes, bytes]]

Answer = Callable[["Exchange", h11.Request], Awaitable[None]]


class Left(Exception):
    """The agent ended its connection in the middle of a body."""


class Exchange:
    """A connection of the agent. `serve` reads requests, and calls back to have each answered. `ahead`: what
    was read of it already."""

    def __init__(self, stream: trio.abc.Stream, ahead: bytes = b"") -> None:
        self._stream = stream
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        if ahead:
            self._http.receive_data(ahead)
        self._begun = False
        """Whether an answer to the present request has begun."""
        self._read = trio.Event()
        """Set when the present request's body has been read to its end."""
        self._switched = False
        """Whether the connection became a tunnel."""
        self._relaying = share()

    async def serve(self, answer: Answer) -> None:
        """Have each request answered until the agent or an answer ends the connection.

        Raises Left, TooSlowError, Trio's errors of broken connections, h11.ProtocolError.
        """
        while True:
            try:
                request = await self._head()
            except h11.RemoteProtocolError as error:
                await self.refuse(error.error_status_hint or 400, f"This is not HTTP/1.1: {error}.")
                break
            if request is None:
                return
            self._begun, self._read = False, trio.Event()
            if request.method == b"CONNECT":
                await answer(self, request)
                if self._switched:
                    return
                break
            await self._while_there(partial(answer, self, request))
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                break
            self._http.start_next_cycle()
        await self._linger()

    async def content(self) -> AsyncGenerator[bytes, None]:
        """The request's body, as it arrives. Raises as `serve`."""
        event: object = h11.NEED_DATA
        while not isinstance(event, h11.EndOfMessage):
            if event is h11.NEED_DATA:
                with trio.fail_after(BODY_SECONDS):
                    event = await self._next()
            pieces: list[bytes] = []
            await self._relaying.turn()
            while isinstance(event, h11.Data) and len(pieces) < PIECES_MOST:
                pieces.append(bytes(event.data))
                event = self._http.next_event()
            self._relaying.rest()
            if pieces:
                yield b"".join(pieces)
            elif not isinstance(event, h11.EndOfMessage):
                raise Left
        self._read.set()

    async def without_content(self) -> None:
        """Read the end of a request that has no body."""
        async for _ in self.content():
            pass

    async def send(self, status: int, headers: Headers, content: AsyncIterable[bytes]) -> None:
        """Send an answer, each piece as it comes."""
        self._begun = True
        await self._write(h11.Response(status_code=status, headers=list(headers)))
        async for piece in content:
            await self._relaying.turn()
            await self._write(h11.Data(data=piece))
            self._relaying.rest()
        await self._write(h11.EndOfMessage())

    async def refuse(self, status: int, text: str, reason: bytes = b"") -> None:
        """Send an answer with this text, unless one has begun."""
        if self._begun or self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        body = text.encode() + b"\n"
        headers = [
            (b"Content-Type", b"text/plain; charset=utf-8"),
            (b"Content-Length", b"%d" % len(body)),
            (b"Connection", b"close"),
        ]
        self._begun = True
        await self._write(h11.Response(status_code=status, headers=headers, reason=reason))
        await self._write(h11.Data(data=body))
        await self._write(h11.EndOfMessage())

    async def switch(self) -> tuple[trio.abc.Stream, bytes]:
        """Accept a CONNECT. Return the stream, which stays the caller's, and what was read of it already."""
        self._begun = self._switched = True
        with trio.fail_after(STALL_SECONDS):
            await self._stream.send_all(b"HTTP/1.1 200 Connected\r\n\r\n")
        return self._stream, bytes(self._http.trailing_data[0])

    async def _head(self) -> h11.Request | None:
        """The next request; None where the agent sends none in time, or closes."""
        begun = bool(self._http.trailing_data[0])
        with trio.move_on_after(HEAD_SECONDS if begun else IDLE_SECONDS) as waiting:
            while (event := self._http.next_event()) is h11.NEED_DATA:
                data = await self._receive()
                if not begun:
                    begun, waiting.deadline = True, trio.current_time() + HEAD_SECONDS
                self._http.receive_data(data)
            return event if isinstance(event, h11.Request) else None
        return None

    async def _next(self) -> object:
        while (event := self._http.next_event()) is h11.NEED_DATA:
            if self._http.they_are_waiting_for_100_continue:
                await self._write(h11.InformationalResponse(status_code=100, headers=[]))
            self._http.receive_data(await self._receive())
        return event

    async def _receive(self) -> bytes:
        data = await self._stream.receive_some(CHUNK_BYTES)
        await self._relaying.turn()
        self._relaying.rest()
        return bytes(data)

    async def _while_there(self, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work`; cancel it when the agent closes its connection."""
        failed: Exception | None = None
        async with trio.open_nursery() as nursery:

            async def watch() -> None:
                ahead = 0
                await self._read.wait()  # until then, reading the body notices a disconnect
                try:
                    while data := await self._stream.receive_some(CHUNK_BYTES):
                        ahead += len(data)
                        if ahead > AHEAD_BYTES:
                            break
                        self._http.receive_data(bytes(data))
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    pass
                nursery.cancel_scope.cancel()

            nursery.start_soon(watch)
            try:
                await work()
            except Exception as error:  # noqa: BLE001 - raised below, and not in a group
                failed = error
            nursery.cancel_scope.cancel()
        if failed is not None:
            raise failed

    async def _linger(self) -> None:
        """Let the agent read the last answer before the connection is closed."""
        left = LINGER_BYTES
        with trio.move_on_after(LINGER_SECONDS):
            if isinstance(self._stream, trio.abc.HalfCloseableStream):
                await self._stream.send_eof()
            while left > 0 and (data := await self._stream.receive_some(CHUNK_BYTES)):
                left -= len(data)

    async def _write(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            with trio.fail_after(STALL_SECONDS):
                await self._stream.send_all(data)


def passed_on(headers: Headers, without: frozenset[bytes] = frozenset()) -> list[tuple[bytes, bytes]]:
    """The headers of a message without those of its connection, which it may name itself, and `without`."""
    headers = list(headers)
    named = [value for name, value in headers if name.lower() == b"connection"]
    dropped = {word.strip().lower() for value in named for word in value.split(b",")}
    dropped |= OF_A_CONNECTION | without
    return [(name, value) for name, value in headers if name.lower() not in dropped]


def length(headers: Headers) -> int | None:
    """The bytes of a request's body; None for one of unknown length."""
    found = {name.lower(): value for name, value in headers}
    if b"transfer-encoding" in found:
        return None
    return int(found.get(b"content-length", b"0"))
