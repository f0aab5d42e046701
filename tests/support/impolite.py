"""Ways in which a client can be impolite: what it sends, and how it leaves."""

from __future__ import annotations

import base64
import os
import socket
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress

import trio

HOST = b"Host: localhost\r\n"
GET = b"GET /alive HTTP/1.1\r\n" + HOST + b"\r\n"
LARGE = b"GET /openapi.json HTTP/1.1\r\n" + HOST + b"\r\n"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
HANDSHAKE = (
    b"GET /sockets/events/00000000-0000-4000-8000-000000000000 HTTP/1.1\r\n"
    + HOST
    + b"Upgrade: websocket\r\n"
    b"Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: "
    + base64.b64encode(bytes(16))
    + b"\r\n\r\n"
)


def masked(opcode: int, payload: bytes = b"", *, fin: bool = True) -> bytes:
    """A client's frame on a WebSocket, its mask all zeroes."""
    assert len(payload) < 126
    return bytes([opcode | (0x80 if fin else 0), 0x80 | len(payload)]) + bytes(4) + payload


SETTINGS = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""The first frame of HTTP/2, empty."""
H2C = (
    b"GET /alive HTTP/1.1\r\n"
    + HOST
    + b"Upgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: %b\r\n\r\n"
)
POST = b"POST /api/conversations HTTP/1.1\r\n" + HOST + b"Content-Type: application/json\r\n"
SENT: dict[str, bytes] = {
    "nothing": b"",
    "half a head": b"GET /alive HTTP/1.1\r\nHos",
    "garbage": b"\x16\x03\x01\x00garbage" + os.urandom(200),
    "no HTTP that is known": b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
    "a request": GET,
    "three pipelined": GET * 3,
    "a hundred pipelined": GET * 100,
    "large answers": LARGE * 50,
    "extra bytes": GET + b"extra bytes",
    "a body on a GET": b"GET /alive HTTP/1.1\r\n"
    + HOST
    + b"Content-Length: 30000\r\n\r\n"
    + b"x" * 30000
    + GET,
    "chunks on a GET": b"GET /alive HTTP/1.1\r\n"
    + HOST
    + b"Transfer-Encoding: chunked\r\n\r\n"
    + b"1\r\nx\r\n" * 500
    + b"0\r\n\r\n"
    + GET,
    "connect": b"CONNECT localhost:80 HTTP/1.1\r\n" + HOST + b"\r\n" + GET * 3,
    "a post and a get": POST + b"Content-Length: 2\r\n\r\n{}" + GET * 2,
    "a body that does not come": POST + b"Content-Length: 1000\r\n\r\n{",
    "a body for a GET that does not come": b"GET /alive HTTP/1.1\r\n" + HOST + b"Content-Length: 9\r\n\r\n",
    "a body that waits for a word": POST + b"Expect: 100-continue\r\nContent-Length: 1000\r\n\r\n",
    "broken chunks": POST + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\nzzzz\r\n" + GET,
    "a huge head": b"GET /alive HTTP/1.1\r\n" + HOST + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
    "a handshake": HANDSHAKE,
    "a handshake without a key": HANDSHAKE.replace(b"Sec-WebSocket-Key", b"X") + GET,
    "a handshake on another path": HANDSHAKE.replace(b"/sockets/events", b"/nothing") + GET,
    "a handshake after a GET": GET + HANDSHAKE,
    "a GET in a handshake": HANDSHAKE + GET,
    "frames": HANDSHAKE + masked(1, b"{}") * 50,
    "pings": HANDSHAKE + masked(9, b"ping") * 3000,
    "empty pieces": HANDSHAKE + masked(1, b"", fin=False) + masked(0, b"", fin=False) * 3000,
    "broken frames": HANDSHAKE + b"\xff\xff\xff\xff" * 100,
    "h2": PREFACE + SETTINGS,
    "h2 and garbage": PREFACE + b"nonsense" * 20,
    "h2c": H2C % b"AAMAAABkAAQAAP__",
    "h2c and more": H2C % b"AAMAAABkAAQAAP__" + PREFACE + SETTINGS,
    "h2c with a handshake": HANDSHAKE.replace(b"Upgrade: websocket", b"Upgrade: websocket\r\nUpgrade: h2c"),
}
"""What it sends, by what that is."""

ANSWER_SECONDS = 0.15
"""How long a client that looks at the beginning of an answer waits for it: many get none."""


def _reset(sock: socket.socket) -> None:
    """Have the kernel end the connection with a reset."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def _close(_stream: trio.SocketStream) -> None:
    """At once, with whatever was answered unread."""


async def _rst(stream: trio.SocketStream) -> None:
    _reset(stream.socket)


async def _rst_in_the_answer(stream: trio.SocketStream) -> None:
    with trio.move_on_after(ANSWER_SECONDS):
        await stream.receive_some(10)
    _reset(stream.socket)


async def _close_after_a_byte(stream: trio.SocketStream) -> None:
    with trio.move_on_after(ANSWER_SECONDS):
        await stream.receive_some(1)


async def _half(stream: trio.SocketStream) -> None:
    """Says that it sends no more, and stays for a moment without reading."""
    await stream.send_eof()
    await trio.sleep(ANSWER_SECONDS)


async def _read(stream: trio.SocketStream) -> None:
    """Reads what comes, and goes."""
    with trio.move_on_after(ANSWER_SECONDS):
        while await stream.receive_some():
            pass


LEAVING: dict[str, Callable[[trio.SocketStream], object]] = {
    "closes": _close,
    "resets": _rst,
    "resets in the answer": _rst_in_the_answer,
    "closes after a byte": _close_after_a_byte,
    "half closes": _half,
    "reads and closes": _read,
}
"""How it leaves."""


def ways() -> Iterator[tuple[str, str]]:
    """Every combination."""
    for sent in SENT:
        for leaving in LEAVING:
            yield sent, leaving


Connect = Callable[[], object]


async def visit(connect: Connect, sent: str, leaving: str) -> None:
    """Be one such client. `connect` opens the stream."""
    await visit_with(connect, SENT[sent], leaving)


async def visit_with(connect: Connect, sent: bytes, leaving: str) -> None:
    """Be a client that sends just this."""
    with suppress(trio.BrokenResourceError, trio.ClosedResourceError, OSError):
        stream: trio.SocketStream = await connect()  # type: ignore[misc]
        try:
            # What does not fit is not waited for: a server that stopped reading has its reasons.
            with trio.move_on_after(ANSWER_SECONDS):
                await stream.send_all(sent)
            await LEAVING[leaving](stream)  # type: ignore[misc]
        finally:
            stream.socket.close()
