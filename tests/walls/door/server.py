"""A server behind the door, as an API or another host: it records requests, and answers as a test says."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import h11
import trio


@dataclass
class Asked:
    """A request that arrived."""

    method: str
    target: str
    headers: dict[str, str]
    stream: trio.abc.Stream
    http: h11.Connection
    size: int = 0
    digest: str = ""
    left: trio.Event = field(default_factory=trio.Event)

    async def read(self) -> None:
        """Read the body."""
        digest = hashlib.sha256()
        while isinstance(event := await _next(self.http, self.stream), h11.Data):
            self.size += len(event.data)
            digest.update(event.data)
        self.digest = digest.hexdigest()

    async def send(self, event: h11.Event) -> None:
        await self.stream.send_all(self.http.send(event) or b"")

    async def begin(self, status: int = 200, headers: tuple[tuple[str, str], ...] = ()) -> None:
        await self.send(h11.Response(status_code=status, headers=list(headers)))

    async def piece(self, data: bytes) -> None:
        await self.send(h11.Data(data=data))

    async def end(self) -> None:
        await self.send(h11.EndOfMessage())

    async def answer(self, body: bytes = b"good", status: int = 200, *headers: tuple[str, str]) -> None:
        await self.begin(status, (("Content-Length", str(len(body))), *headers))
        await self.piece(body)
        await self.end()


Handler = Callable[[Asked], Awaitable[None]]


async def _read_and_answer(asked: Asked) -> None:
    await asked.read()
    await asked.answer()


@dataclass
class Server:
    """A running server. `asked` are its requests; `handler` may be changed."""

    url: str = ""
    port: int = 0
    handler: Handler = _read_and_answer
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0

    async def serve(self, stream: trio.abc.Stream) -> None:
        self.connections += 1
        http = h11.Connection(h11.SERVER)
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError, h11.ProtocolError):
            while isinstance(event := await _next(http, stream), h11.Request):
                headers = {name.decode(): value.decode("latin-1") for name, value in event.headers}
                asked = Asked(event.method.decode(), event.target.decode(), headers, stream, http)
                self.asked.append(asked)
                try:
                    await self.handler(asked)
                finally:
                    asked.left.set()
                if http.our_state is not h11.DONE or http.their_state is not h11.DONE:
                    break
                http.start_next_cycle()


async def _next(http: h11.Connection, stream: trio.abc.Stream) -> object:
    while (event := http.next_event()) is h11.NEED_DATA:
        http.receive_data(await stream.receive_some(65536))
    return event


@asynccontextmanager
async def serving(handler: Handler = _read_and_answer, host: str = "127.0.0.1") -> AsyncIterator[Server]:
    """Serve on a free port of this machine until the block ends."""
    server = Server(handler=handler)
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, server.serve, 0)
        server.port = listeners[0].socket.getsockname()[1]
        server.url = f"http://{host}:{server.port}"
        yield server
        nursery.cancel_scope.cancel()
