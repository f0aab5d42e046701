"""The client of a bench: requests, and sockets that are read as cheaply as can be.

What is measured is the server, so a socket scans its frames and decodes none. Every wait has an end.
"""

from __future__ import annotations

import base64
import http
import json
import re
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

CONTENT_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)")


class BenchError(Exception):
    """A server did not do what the bench needs; the message says what."""


class Client:
    """Requests to one server, on a connection for each thread that is kept open, as clients do.

    A request is one write, and of the answer nothing is read but its status and its length: `http.client`
    took 0.2 to 0.4 ms of processor time for each, as much as a server does for a small one.
    """

    def __init__(self, port: int) -> None:
        self._port = port
        self._connections = threading.local()

    @property
    def port(self) -> int:
        """Where a socket is opened."""
        return self._port

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Send a request and return its answer, decoded. Raises BenchError for a status from 300 on."""
        return json.loads(self.raw(method, path, body))

    def raw(self, method: str, path: str, body: Any = None) -> bytes:
        return self.send(self.request(method, path, body))

    def request(self, method: str, path: str, body: Any = None) -> bytes:
        """A request as it is sent."""
        data = b"" if body is None else json.dumps(body).encode()
        length = "" if body is None else f"Content-Length: {len(data)}\r\n"
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1:{self._port}\r\nAccept-Encoding: identity\r\n"
            f"Content-Type: application/json\r\n{length}\r\n"
        )
        return head.encode() + data

    def send(self, request: bytes) -> bytes:
        """Send a request that `request` made, and return the answer's body. Raises BenchError."""
        for attempt in (1, 2):
            try:
                status, text = exchange(self._connection(), request)
                break
            except BenchError:
                self._close()  # the rest of the answer is still to come
                raise
            except (ConnectionResetError, BrokenPipeError):
                # The server has closed a connection that was idle.
                self._close()
                if attempt == 2:
                    raise
        if status >= 300:
            line = request.partition(b"\r\n")[0].decode()
            raise BenchError(f"{line}: {status} {text[:500].decode(errors='replace')}")
        return text

    def _close(self) -> None:
        self._connections.open.close()
        self._connections.open = None

    def _connection(self) -> socket.socket:
        connection: socket.socket | None = getattr(self._connections, "open", None)
        if connection is None:
            connection = socket.create_connection(("127.0.0.1", self._port), timeout=WAIT_SECONDS)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connections.open = connection
        return connection


def exchange(connection: socket.socket, request: bytes) -> tuple[int, bytes]:
    """Send a request, and return the answer's status and body.

    Raises ConnectionResetError where the server closes the connection instead, and BenchError for an answer
    that does not say its length.
    """
    connection.sendall(request)
    answer = connection.recv(RECEIVE_BYTES)
    while (end := answer.find(b"\r\n\r\n")) < 0:
        answer += _more(connection)
    head, begin = answer[:end].lower(), end + 4
    status = int(head.split(b" ", 2)[1])
    found = CONTENT_LENGTH.search(head)
    if found is None and status != http.HTTPStatus.NO_CONTENT:
        raise BenchError(f"an answer without a Content-Length: {head.decode(errors='replace')}")
    left = begin + (int(found[1]) if found else 0) - len(answer)
    parts = [answer[begin:]]
    while left > 0:
        parts.append(_more(connection))
        left -= len(parts[-1])
    return status, b"".join(parts)


def _more(connection: socket.socket) -> bytes:
    data = connection.recv(RECEIVE_BYTES)
    if not data:
        raise ConnectionResetError("the server closed the connection")
    return data


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
