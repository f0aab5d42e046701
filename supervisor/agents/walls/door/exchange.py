"""One connection of an agent to its door: requests and their answers over HTTP/1.1, within bounds."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from typing import Final

import h11
import trio

from supervisor.agent_connection import BODY_SECONDS, CHUNK_BYTES, STALL_SECONDS, AgentConnection, Left
from supervisor.http_headers import Headers

HEAD_SECONDS: Final = 15.0
"""Seconds from the first byte of a head to its last: it comes over the loopback."""

IDLE_SECONDS: Final = 120.0
"""Seconds for which a connection without a request is kept. Clients keep theirs for less."""

PIECES_MOST: Final = 64
"""Chunks of a body that are sent on together: one with a byte takes as long as one with thousands."""

LINGER_SECONDS: Final = 1.0
LINGER_BYTES: Final = 1024 * 1024
"""How long, and how many bytes, the rest of a refused request is read: a connection that is closed before
would take the answer with it."""

Answer = Callable[["Exchange", h11.Request], Awaitable[None]]


class Exchange(AgentConnection):
    """A connection of the agent. `serve` reads requests, and calls back to have each answered."""

    def __init__(self, stream: trio.abc.Stream, ahead: bytes = b"") -> None:
        super().__init__(stream, ahead)
        self._switched = False
        """Whether the connection became a tunnel."""

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

    async def refuse(self, status: int, text: str, reason: bytes = b"", *, more: Headers = ()) -> None:
        """As AgentConnection; it ends the connection."""
        await super().refuse(status, f"{text}\n", reason, more=((b"Connection", b"close"), *more))

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

    async def _linger(self) -> None:
        """Let the agent read the last answer before the connection is closed."""
        left = LINGER_BYTES
        with trio.move_on_after(LINGER_SECONDS):
            if isinstance(self._stream, trio.abc.HalfCloseableStream):
                await self._stream.send_eof()
            while left > 0 and (data := await self._stream.receive_some(CHUNK_BYTES)):
                left -= len(data)


def length(headers: Headers) -> int | None:
    """The bytes of a request's body; None for one of unknown length."""
    found = {name.lower(): value for name, value in headers}
    if b"transfer-encoding" in found:
        return None
    return int(found.get(b"content-length", b"0"))
