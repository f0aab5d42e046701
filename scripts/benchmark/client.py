"""The client of a bench: requests, and sockets that are read as cheaply as can be.

What is measured is the server, so a socket scans its frames and decodes none. Every wait has an end.
"""

from __future__ import annotations

import base64
import http.client
import json
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

WAIT_SECONDS = 120.0
"""For anything: a bench that hangs must end."""

RUNNING = b'"key":"execution_status","value":"running"'
FINISHED = b'"key":"execution_status","value":"finished"'
PAUSED = b'"key":"execution_status","value":"paused"'

RECEIVE_BYTES = 1 << 20


class BenchError(Exception):
    """A server did not do what the bench needs; the message says what."""


class Client:
    """Requests to one server, on a connection for each thread that is kept open, as clients do."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._connections = threading.local()

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request and return its answer, decoded. Raises BenchError for a status from 300 on."""
        return json.loads(self.raw(method, path, body))

    def raw(self, method: str, path: str, body: Any = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        for attempt in (1, 2):
            connection = self._connection()
            try:
                connection.request(method, path, data, {"Content-Type": "application/json"})
                answer = connection.getresponse()
                text = answer.read()
                break
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError):
                # The server has closed a connection that was idle.
                self._connections.open = None
                if attempt == 2:
                    raise
        if answer.status >= 300:
            raise BenchError(f"{method} {path}: {answer.status} {text[:500].decode(errors='replace')}")
        return text

    def _connection(self) -> http.client.HTTPConnection:
        connection: http.client.HTTPConnection | None = getattr(self._connections, "open", None)
        if connection is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_SECONDS)
            connection.connect()
            connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections.open = connection
        return connection


class Socket:
    """A WebSocket that only listens. `frames` gives what has arrived, without decoding it."""

    def __init__(self, port: int, conversation: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=WAIT_SECONDS)
        key = base64.b64encode(secrets.token_bytes(16)).decode()
        self.socket.sendall(
            f"GET /sockets/events/{conversation} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self._buffer = bytearray()
        while b"\r\n\r\n" not in self._buffer:
            self.receive()
        head, _, rest = bytes(self._buffer).partition(b"\r\n\r\n")
        if b" 101 " not in head.partition(b"\r\n")[0]:
            raise BenchError(f"the socket was refused: {head.decode(errors='replace')}")
        self._buffer = bytearray(rest)

    def receive(self) -> None:
        data = self.socket.recv(RECEIVE_BYTES)
        if not data:
            raise BenchError("the server closed a socket")
        self._buffer += data

    def frames(self) -> Iterator[bytes]:
        """The complete frames in the buffer (servers send them unmasked, RFC 6455 section 5.1)."""
        data, at = bytes(self._buffer), 0
        while len(data) - at >= 2:
            opcode, size, begin = data[at] & 15, data[at + 1] & 127, at + 2
            if size >= 126:
                width = 2 if size == 126 else 8
                begin += width
                if len(data) < begin:
                    break
                size = int.from_bytes(data[begin - width : begin], "big")
            if len(data) < begin + size:
                break
            at = begin + size
            if opcode == 9:  # a server that asks whether anybody is there closes, if nobody says so
                self._pong(data[begin:at])
            else:
                yield data[begin:at]
        del self._buffer[:at]

    def _pong(self, payload: bytes) -> None:
        # Masked with zeros, which is masked enough for a loopback address.
        self.socket.sendall(bytes((0x8A, 0x80 | len(payload))) + bytes(4) + payload)

    def rest(self) -> bytes:
        """What has arrived beyond the last complete frame."""
        return bytes(self._buffer)

    def close(self) -> None:
        self.socket.close()


def read_until(
    sockets: Sequence[Socket],
    seen: Callable[[bytes, int], object] = lambda frame, arrival: None,
    *,
    end: Callable[[bytes], bool] = lambda frame: FINISHED in frame,
    check: Callable[[], object] = lambda: None,
    seconds: float = WAIT_SECONDS,
) -> None:
    """Read all sockets until each has had a frame for which `end` holds.

    `seen` gets each frame, and when it arrived in nanoseconds of the monotonic clock. `check` is called from
    time to time, and may raise what ends the wait. Raises BenchError after `seconds`.
    """
    with selectors.DefaultSelector() as selector:
        for each in sockets:
            selector.register(each.socket, selectors.EVENT_READ, each)
        until = time.monotonic() + seconds
        while selector.get_map():
            if time.monotonic() > until:
                raise BenchError(f"not finished after {seconds:g} s")
            check()
            for key, _ in selector.select(1.0):
                key.data.receive()
                arrival = time.monotonic_ns()
                done = False
                for frame in key.data.frames():
                    seen(frame, arrival)
                    done = done or end(frame)
                if done:
                    selector.unregister(key.data.socket)
