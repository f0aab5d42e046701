"""A WebSocket of the server: how a command opens it, and what ended it."""

from __future__ import annotations

import socket
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, cast

import h11
import trio
from trio_websocket import (
    CloseReason,
    ConnectionClosed,
    ConnectionRejected,
    WebSocketConnection,
    wrap_client_stream,
)
from wsproto.utilities import ProtocolError

from gateway.cli.client import ANSWER_SECONDS, CONNECT_SECONDS, Server
from gateway.cli.failures import Failure, Unreachable, leaves

READ_BYTES: Final = 64 * 1024

PROBE_AFTER_SECONDS: Final = 30
"""Seconds of silence after which the kernel probes the connection."""

ABNORMAL: Final = 1006
UNAUTHENTICATED: Final = 4001
UNKNOWN_CONVERSATION: Final = 4004
FORBIDDEN: Final = 403

AWAY: Final = (502, 503, 504)
"""Statuses of a proxy whose server is not there."""


class Lost(Exception):
    """The connection ended although what it is for continues: the server stopped, or the network failed.
    `code` is that of the close frame, 1006 without one."""

    def __init__(self, reason: str, code: int = ABNORMAL) -> None:
        super().__init__(reason)
        self.code = code


class Refused(Failure):
    """The server refused the key."""


@asynccontextmanager
async def websocket(server: Server, path: str) -> AsyncIterator[WebSocketConnection]:
    """A connection for the block, which ends without a close handshake.

    Raises Lost where the server ends it in the block, Unreachable, Refused, or another Failure if another try
    would not help. Cancellation closes it at once.
    """
    stream, host = await _open(server)
    headers = [
        (name.encode(), value if isinstance(value, bytes) else value.encode())
        for name, value in server.headers().items()
    ]
    end: Exception | None = Lost("the connection ended")
    try:
        async with trio.open_nursery() as nursery:
            with trio.move_on_after(ANSWER_SECONDS) as opening:
                connection = await wrap_client_stream(
                    nursery,
                    cast(trio.SocketStream, trio.StapledStream(stream, _Answers(stream, opening))),
                    host,
                    server.path(path),
                    extra_headers=headers,
                    max_message_size=sys.maxsize,
                    receive_buffer_size=READ_BYTES,
                )
            if not opening.cancelled_caught:
                try:
                    yield connection
                    end = None
                except ConnectionClosed as closed:
                    end = _end(server, closed.reason)
            nursery.cancel_scope.cancel()
    except* ConnectionRejected as rejected:
        status = next(each.status_code for each in leaves(rejected) if isinstance(each, ConnectionRejected))
        end = _rejected(server, status)
    except* (ProtocolError, h11.ProtocolError) as error:
        end = Lost(str(leaves(error)[0]))
    finally:
        # Closing the TCP connection suffices: a leaving client does not wait for the close handshake.
        await trio.aclose_forcefully(stream)
    if end is not None:
        raise end


async def _open(server: Server) -> tuple[trio.abc.Stream, str]:
    try:
        sock, host = await trio.to_thread.run_sync(server.open, abandon_on_cancel=True)
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_KEEPIDLE"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_AFTER_SECONDS)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        if not server.encrypts:
            return stream, host
        context = ssl.create_default_context()
        secure = trio.SSLStream(stream, context, server_hostname=server.host, https_compatible=True)
        with trio.fail_after(CONNECT_SECONDS):
            await secure.do_handshake()
    except (TimeoutError, trio.TooSlowError):
        raise Unreachable(
            f"the server at {server.url} has not answered for {CONNECT_SECONDS:g} s; its log may say why"
        ) from None
    except OSError as error:
        raise Unreachable(server.absent(error)) from None
    except trio.BrokenResourceError as error:
        reason = error.__cause__ if isinstance(error.__cause__, OSError) else OSError(str(error))
        raise Unreachable(server.absent(reason)) from None
    return secure, host


class _Answers(trio.abc.ReceiveStream):
    """The server's messages. trio-websocket would keep waiting for a server that ends without a close
    frame."""

    def __init__(self, stream: trio.abc.ReceiveStream, opening: trio.CancelScope) -> None:
        self._stream = stream
        self._opening = opening

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        data: bytes | bytearray = b""
        try:
            data = await self._stream.receive_some(max_bytes)
        finally:
            if not data:
                self._opening.cancel()
        return data

    async def aclose(self) -> None:
        await self._stream.aclose()


def _end(server: Server, reason: CloseReason | None) -> Exception:
    if reason is None or reason.code == ABNORMAL:
        return Lost("the connection ended")
    if reason.code == UNKNOWN_CONVERSATION:
        return Failure("the server has no such conversation")
    if reason.code == UNAUTHENTICATED:
        return _refused(server)
    return Lost(reason.reason or "the server ended it", reason.code)


def _rejected(server: Server, status: int) -> Failure:
    if status == FORBIDDEN:
        return _refused(server)
    if status in AWAY:
        return Unreachable(f"the server at {server.url} is not there (status {status})")
    return Failure(f"the server refused the connection (status {status})")


def _refused(server: Server) -> Refused:
    if server.key is None:
        return Refused(f"the server at {server.url} requires a key; set OSTLER_API_KEY")
    return Refused("the server refused the key; set OSTLER_API_KEY to one of its session keys")
