"""A server elsewhere, which keeps a secret: it answers every request alike."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import attrs
import trio

from supervisor.credentials.source import LookupSecret

KEY = "sk-header-value"


@attrs.define
class Elsewhere:
    """Answers every connection with the same bytes, and keeps what it was asked."""

    answer: bytes
    port: int = 0
    asked: list[bytes] = attrs.field(factory=list)
    hold: bool = False

    async def serve(self, stream: trio.SocketStream) -> None:
        async with stream:
            self.asked.append(await stream.receive_some(65536))
            try:
                await stream.send_all(self.answer)
                if self.hold:
                    await trio.sleep_forever()
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                pass

    def source(self, path: str = "/secret?key=in-the-url") -> LookupSecret:
        return LookupSecret(f"http://127.0.0.1:{self.port}{path}", {"X-Session-API-Key": KEY})


def reply(body: bytes, status: str = "200 OK", headers: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


@asynccontextmanager
async def elsewhere(answer: bytes, **more: bool) -> AsyncIterator[Elsewhere]:
    server = Elsewhere(answer, **more)
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    server.port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, server.serve, listeners)
        yield server
        nursery.cancel_scope.cancel()
