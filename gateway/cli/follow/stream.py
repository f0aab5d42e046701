"""The session socket of a conversation, read frame by frame. Blocking: a command does nothing else."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from typing import Final

from wsproto import ConnectionType, WSConnection
from wsproto.events import (
    AcceptConnection,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.utilities import ProtocolError

from gateway.cli.client import ANSWER_SECONDS, Server
from gateway.cli.failures import Failure, Unreachable

READ_BYTES: Final = 64 * 1024

PROBE_AFTER_SECONDS: Final = 30
"""Seconds of silence after which the kernel probes the connection."""

UNKNOWN_CONVERSATION: Final = 4004
REFUSED: Final = 403


class Lost(Exception):
    """The connection ended although the conversation continues: the server stopped, or the network failed."""


def frames(server: Server, conversation_id: str, after_seq: int | None) -> Iterator[str]:
    """Yield the text frames after a sequence number; None: new frames only.

    Never ends by itself. Raises Lost, Unreachable, or Failure if another try would not help. Closing the
    generator closes the connection.
    """
    query = "" if after_seq is None else f"?after_seq={after_seq}"
    target = server.path(f"/sockets/session/{conversation_id}{query}")
    try:
        sock, host = _connect(server)
    except TimeoutError:
        raise Unreachable(f"no answer from {server.url}") from None
    except OSError as error:
        raise Unreachable(server.absent(error)) from None
    with contextlib.closing(sock):
        ws = WSConnection(ConnectionType.CLIENT)
        headers = [
            (name.encode(), value if isinstance(value, bytes) else value.encode())
            for name, value in server.headers().items()
        ]
        parts: list[str] = []
        try:
            sock.sendall(ws.send(Request(host=host, target=target, extra_headers=headers)))
            for event in _events(sock, ws):
                match event:
                    case AcceptConnection():
                        sock.settimeout(None)
                    case TextMessage():
                        parts.append(event.data)
                        if event.message_finished:
                            yield "".join(parts)
                            parts.clear()
        except (OSError, ProtocolError) as error:
            raise Lost(str(error)) from None


def _connect(server: Server) -> tuple[socket.socket, str]:
    sock, host = server.connect()
    try:
        if sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if hasattr(socket, "TCP_KEEPIDLE"):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, PROBE_AFTER_SECONDS)
        sock.settimeout(ANSWER_SECONDS)
    except BaseException:
        sock.close()
        raise
    return sock, host


def _events(sock: socket.socket, ws: WSConnection) -> Iterator[Event]:
    """What arrives, pings answered. Raises for the ends that a connection can have."""
    while True:
        data = sock.recv(READ_BYTES)
        ws.receive_data(data or None)
        for event in ws.events():
            match event:
                case Ping():
                    sock.sendall(ws.send(event.response()))
                case RejectConnection(status_code=status):
                    raise _rejected(status)
                case RejectData():
                    pass
                case CloseConnection(code=code, reason=reason):
                    if code == UNKNOWN_CONVERSATION:
                        raise Failure("the server has no such conversation")
                    raise Lost(reason or f"closed with code {code}")
                case _:
                    yield event
        if not data:
            raise Lost("the connection ended")


def _rejected(status: int) -> Failure:
    if status == REFUSED:
        return Failure("the server refused the key; set OSTLER_API_KEY to one of its session keys")
    return Failure(f"the server refused the connection (status {status})")
