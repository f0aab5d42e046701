"""A connection of an agent to a server of Ostler's in this process: requests and answers over HTTP/1.1, each
within bounds. The proxy of MCP servers with a login and the network door are made of it."""

from __future__ import annotations

from collections.abc import AsyncIterable, Awaitable, Callable
from contextlib import suppress
from typing import Final

import h11
import trio

from supervisor.fairness import share
from supervisor.http_headers import Headers
from supervisor.patience import ended_by

CHUNK_BYTES: Final = 64 * 1024
"""Bytes that are read at once. What is read is sent on before more is read."""

HEAD_BYTES: Final = 64 * 1024
"""Bytes of a request's head, and of a chunk's or trailer's lines."""

BODY_SECONDS: Final = 60.0
"""Seconds for each piece of a request's body, as on the server's own interface."""

STALL_SECONDS: Final = 60.0
"""Seconds for which the agent may take nothing of an answer."""

AHEAD_BYTES: Final = 64 * 1024
"""Most bytes read ahead while an answer is sent: the beginning of the next request is shorter."""


class Left(Exception):
    """The agent ended its connection in the middle of a body."""


class AgentConnection:
    """The part of a connection that does not depend on what is served. `ahead`: what was read of it already.

    All methods raise TooSlowError, Trio's errors of broken connections, h11.ProtocolError. The stream is the
    caller's.
    """

    def __init__(self, stream: trio.abc.Stream, ahead: bytes = b"") -> None:
        self._stream = stream
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        if ahead:
            self._http.receive_data(ahead)
        self._begun = False
        """Whether an answer to the present request has begun."""
        self._read = trio.Event()
        """Set when the present request's body has been read to its end."""
        self._relaying = share()

    async def send(self, status: int, headers: Headers, content: AsyncIterable[bytes]) -> None:
        """Send an answer, each piece as it comes."""
        self._begun = True
        await self._write(h11.Response(status_code=status, headers=list(headers)))
        async for piece in content:
            await self._relaying.turn()
            await self._write(h11.Data(data=piece))
            self._relaying.rest()
        await self._write(h11.EndOfMessage())

    async def refuse(self, status: int, text: str, reason: bytes = b"", *, more: Headers = ()) -> None:
        """Send an answer with this text, unless one has begun. `more`: further headers."""
        if self._begun or self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        self._begun = True
        body = text.encode()
        headers = [
            (b"Content-Type", b"text/plain; charset=utf-8"),
            (b"Content-Length", b"%d" % len(body)),
            *more,
        ]
        await self._write(h11.Response(status_code=status, headers=headers, reason=reason))
        await self._write(h11.Data(data=body))
        await self._write(h11.EndOfMessage())

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
        async with ended_by(self._left):
            await work()

    async def _left(self) -> None:
        ahead = 0
        await self._read.wait()  # until then, reading the body notices a disconnect
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await self._stream.receive_some(CHUNK_BYTES):
                ahead += len(data)
                if ahead > AHEAD_BYTES:
                    break
                self._http.receive_data(bytes(data))

    async def _write(self, event: h11.Event) -> None:
        data = self._http.send(event)
        if data:
            with trio.fail_after(STALL_SECONDS):
                await self._stream.send_all(data)
