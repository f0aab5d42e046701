"""HTTP/1.1 as bytes: a client that sends whatever it is given, and nothing of its own."""

from __future__ import annotations

import contextlib

import trio

RECEIVE_BYTES = 65_536


class PlainHttp:
    """A connection that is kept as long as the server keeps it. Answers need a Content-Length."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self._stream: trio.SocketStream | None = None
        self._buffer = b""

    async def ask(self, method: str, target: bytes, body: bytes | None = None) -> tuple[int, bytes]:
        """Status and body of the answer."""
        head = [
            method.encode() + b" " + target + b" HTTP/1.1",
            b"Host: %s:%d" % (self.host.encode(), self.port),
        ]
        if body is not None:
            head += [b"Content-Type: application/json", b"Content-Length: %d" % len(body)]
        data = b"\r\n".join((*head, b"", body or b""))
        if self._stream is None:
            self._stream, self._buffer = await trio.open_tcp_stream(self.host, self.port), b""
        await self._stream.send_all(data)
        return await self._answer()

    async def _answer(self) -> tuple[int, bytes]:
        while b"\r\n\r\n" not in self._buffer:
            await self._receive()
        head, self._buffer = self._buffer.split(b"\r\n\r\n", 1)
        line, *fields = head.split(b"\r\n")
        headers = {
            name.lower(): value.strip() for name, _, value in (field.partition(b":") for field in fields)
        }
        length = int(headers.get(b"content-length", b"0"))
        while len(self._buffer) < length:
            await self._receive()
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        if headers.get(b"connection", b"").lower() == b"close":
            await self.aclose()
        return int(line.split()[1]), body

    async def _receive(self) -> None:
        assert self._stream is not None
        data = await self._stream.receive_some(RECEIVE_BYTES)
        assert data, f"the server closed the connection in an answer: {self._buffer[:200]!r}"
        self._buffer += data

    async def aclose(self) -> None:
        if self._stream is not None:
            await self._stream.aclose()
            self._stream = None


async def exchange(host: str, port: int, data: bytes) -> bytes:
    """Everything that the server answers to these bytes and the end of the stream."""
    received = b""
    stream = await trio.open_tcp_stream(host, port)
    async with stream:
        with contextlib.suppress(trio.BrokenResourceError):
            await stream.send_all(data)
            await stream.send_eof()
            while piece := await stream.receive_some(RECEIVE_BYTES):
                received += piece
    return received
