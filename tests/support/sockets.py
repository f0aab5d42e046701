"""Everything that arrives on a conversation's WebSockets."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection
from wsproto import ConnectionType, WSConnection
from wsproto.events import Ping

MAX_FRAME_BYTES = 128 * 1024 * 1024  # larger than anything a server may send
QUEUED_FRAMES = 1024
CLOSE_S = 1.0  # for the closing handshake


class ClientSocket(WebSocketConnection):
    """The client's end of a WebSocket, which may be pinged while it closes.

    trio_websocket would answer, which wsproto refuses after a Close frame of our own; the error would end the
    test. The server does right: it pings as soon as it has accepted, and every so often.
    """

    async def _handle_ping_event(self, event: Ping) -> None:
        if self.closed is None:
            await super()._handle_ping_event(event)


def encoded(text: str | bytes) -> bytes:
    return text if isinstance(text, bytes) else text.encode()


async def wrap_client_stream(
    nursery: trio.Nursery,
    stream: trio.abc.Stream,
    host: str,
    resource: str,
    *,
    extra_headers: Sequence[tuple[str | bytes, str | bytes]] = (),
    message_queue_size: int = QUEUED_FRAMES,
    max_message_size: int = MAX_FRAME_BYTES,
) -> ClientSocket:
    """Open a WebSocket, as trio_websocket's function of this name does. Its reader runs in `nursery`."""
    socket = ClientSocket(
        stream,
        WSConnection(ConnectionType.CLIENT),
        host=host,
        path=resource,
        client_extra_headers=[(encoded(name), encoded(value)) for name, value in extra_headers],
        message_queue_size=message_queue_size,
        max_message_size=max_message_size,
    )
    nursery.start_soon(socket._reader_task)
    await socket._open_handshake.wait()
    return socket


class Collector:
    """Frames in the order of arrival; reads on its own, so that a slow test is not a slow client."""

    def __init__(self, socket: WebSocketConnection) -> None:
        self.socket = socket
        self.frames: list[dict[str, Any]] = []
        self.closed: tuple[int, str | None] | None = None  # close code and reason
        self._arrival = trio.Event()

    async def wait_for(
        self, wanted: Callable[[dict[str, Any]], bool], timeout: float = 30.0, start: int = 0
    ) -> dict[str, Any]:
        """The first frame from `start` on that satisfies `wanted`, already arrived or to come."""
        position = start
        with trio.move_on_after(timeout):
            while True:
                arrival = self._arrival
                while position < len(self.frames):
                    if wanted(self.frames[position]):
                        return self.frames[position]
                    position += 1
                assert self.closed is None, f"closed {self.closed} while waiting"
                await arrival.wait()
        kinds = [frame.get("kind") or frame.get("type") for frame in self.frames[-20:]]
        raise AssertionError(f"no such frame after {timeout} s; last of {len(self.frames)}: {kinds}")

    def of_kind(self, kind: str) -> list[dict[str, Any]]:
        return [frame for frame in self.frames if frame.get("kind") == kind]

    async def send(self, frame: Any) -> None:
        """An object as JSON, a string as it is."""
        await self.socket.send_message(frame if isinstance(frame, str) else json.dumps(frame))

    async def _read(self) -> None:
        while True:
            try:
                frame = json.loads(await self.socket.get_message())
            except ConnectionClosed as closed:
                self.closed = (closed.reason.code, closed.reason.reason) if closed.reason else (1006, None)
                self._wake()
                return
            self.frames.append(frame)
            self._wake()

    def _wake(self) -> None:
        self._arrival.set()
        self._arrival = trio.Event()


@asynccontextmanager
async def collect(url: str) -> AsyncIterator[Collector]:
    """Connect and gather frames until the block ends. `url` may begin with http or ws."""
    address = urlsplit(url)
    assert address.hostname is not None
    assert address.port is not None
    resource = address.path + (f"?{address.query}" if address.query else "")
    stream = await trio.open_tcp_stream(address.hostname, address.port)
    async with stream, trio.open_nursery() as nursery:
        socket = await wrap_client_stream(
            nursery,
            stream,
            address.netloc,
            resource,
        )
        collector = Collector(socket)
        nursery.start_soon(collector._read)
        try:
            yield collector
        finally:
            with trio.move_on_after(CLOSE_S, shield=True):
                await socket.aclose()
            nursery.cancel_scope.cancel()


def events_socket(url: str, conversation: str, query: str = "resend_mode=all") -> str:
    """The address of the event socket; an empty query gets live events only."""
    return f"{url}/sockets/events/{conversation}" + (f"?{query}" if query else "")


def session_socket(url: str, conversation: str, after_seq: int | None = -1) -> str:
    """The address of the sequenced socket; -1 asks for the whole log, None for live frames only."""
    return f"{url}/sockets/session/{conversation}" + ("" if after_seq is None else f"?after_seq={after_seq}")
