"""From listening sockets to Hypercorn's connections, with an end that always comes.

Hypercorn speaks the protocols; accepting is done here, because its own loop leaves three things open.
A write to a client that stopped reading is shielded from cancellation, so only the connection itself can
be ended: by the kernel while we serve (TCP_USER_TIMEOUT, inherited from the listening socket), by us when
we stop. An exception in one connection would take down the server. And it binds no port 0 that could be
announced.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import AsyncIterator, Iterable, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, cast

import structlog
import trio
from hypercorn.config import Config as HypercornConfig
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.protocol.ws_stream import FrameTooLargeError, WebsocketBuffer, WSStream
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIFramework, ConnectionState
from hypercorn.utils import wrap_app
from wsproto.events import Message

from gateway.address import http_url, is_loopback, open_refusal
from gateway.config import Config
from gateway.doorway import is_peers_fault, note_peers_fault

log = structlog.get_logger("gateway")

BACKLOG: Final = 256
"""Connections that the kernel holds for us while we are busy, such as during start-up."""

KEEP_ALIVE_SECONDS: Final = 75.0
"""How long an idle connection is kept. Longer than the polling intervals of clients, so that they rarely
meet a connection that is just being closed. A request's head must have come within this time, too, however
slowly a client sends it."""

REQUESTS_PER_CONNECTION: Final = 1_000_000
"""Practically no limit: a client that polls should not have to reconnect."""


GATHER_BYTES: Final = 64 * 1024
"""Written at once at the most while gathering: what a socket's buffer takes without waiting."""


REFUSAL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 33\r\n"
    b'Retry-After: 1\r\nConnection: close\r\n\r\n{"detail":"Too many connections"}'
)
"""What a client is told for which there is no room."""

REFUSAL_SECONDS: Final = 0.2
"""How long it may take to read that."""


class BindError(Exception):
    """The address cannot be listened on. The message is one line for the terminal."""


async def bind(config: Config) -> list[socket.socket]:
    """Listening sockets for `config.host` and `config.port`; port 0 becomes the same free port on all.

    The caller owns the sockets. Raises BindError, also where an open server may not listen. Cancellation
    leaves none open.
    """
    host, port = config.host, config.port
    try:
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise BindError(f"{host!r} is no address of this machine: {error}") from None
    if not config.session_api_keys and not all(is_loopback(str(entry[4][0])) for entry in found):
        # Asked once more: a name may have changed its meaning since the arguments were read.
        if not config.allow_open:
            raise BindError(open_refusal(host))
        log.warning("open to whoever reaches the address: no session key is set", host=host)
    sockets: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
            sockets.append(_listen(family, (address[0], port, *address[2:]), config))
            port = sockets[0].getsockname()[1]
    except OSError as error:
        for sock in sockets:
            sock.close()
        reason = error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            raise BindError(f"port {port} on {host} is in use; choose another one with --port") from None
        raise BindError(f"cannot listen on {host}:{port}: {reason}") from None
    return sockets


def _listen(family: int, address: tuple[Any, ...], config: Config) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            milliseconds = int(config.stall_seconds * 1000)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def url_of(config: Config, sockets: Sequence[socket.socket]) -> str:
    """The address to tell people."""
    return http_url(config.host, sockets[0].getsockname()[1])


def hypercorn_config(config: Config) -> HypercornConfig:
    """Hypercorn's settings; requests are not logged, since their paths and queries may hold keys."""
    settings = HypercornConfig()
    settings.accesslog = None
    settings.loglevel = "WARNING"
    settings.include_server_header = False
    settings.keep_alive_timeout = KEEP_ALIVE_SECONDS
    settings.keep_alive_max_requests = REQUESTS_PER_CONNECTION
    settings.websocket_ping_interval = config.ping_seconds
    settings.websocket_max_message_size = config.max_message_bytes
    return settings


class Inbox(WebsocketBuffer):
    """The message that a WebSocket is receiving; `first` and `then` are limits in bytes.

    Hypercorn's own keeps what is over its limit, and adds to it for as long as the client sends. Here it is
    dropped, and so is all that follows; `too_large` tells it.
    """

    def __init__(self, first: int, then: int) -> None:
        super().__init__(first)
        self._then = then
        self.too_large = trio.Event()

    def extend(self, event: Message[Any]) -> None:
        """Take the next piece of the message. Raises FrameTooLargeError; Hypercorn answers with 1009."""
        data = event.data
        size = len(data) if isinstance(data, bytes | bytearray) or data.isascii() else len(data.encode())
        if self.too_large.is_set() or self.length + size > self.max_length:
            super().clear()
            self.too_large.set()
            raise FrameTooLargeError
        before = self.length
        super().extend(event)
        self.length = before + size  # Hypercorn counts characters.

    def clear(self) -> None:
        """Begin the next message."""
        super().clear()
        self.max_length = self._then

    def stop(self) -> None:
        """Take nothing more: the client is on its way out."""
        self.max_length = self._then = 0


class Connection(TCPServer):
    """Hypercorn's connection, with its ends tied: an idle one times out, one without a client is gone."""

    welcome = False
    """Whether a request on it was let in. Others have to go first when there are too many connections."""

    busy = False
    """Whether a request is under way."""

    since = 0.0
    """Since when it has been idle, or busy; Trio's clock."""

    _gathered: bytearray | None = None

    def inbox(self, scope: object, *, first: int, then: int, compressed: bool) -> Inbox:
        """Limit the messages of a WebSocket that is not accepted yet: the first one, and later ones.

        Without `compressed` the client may not compress: a few bytes of its could become a thousand times as
        many here.
        """
        protocol = self.protocol.protocol
        streams = [protocol.stream] if isinstance(protocol, H11Protocol) else list(protocol.streams.values())
        inbox = Inbox(first, then)
        for stream in streams:
            if isinstance(stream, WSStream) and stream.scope is scope:
                stream.buffer = inbox
                if not compressed:
                    stream.handshake.extensions = None
        return inbox

    async def protocol_send(self, event: Event) -> None:
        """Do what the protocol wants: being idle or closed it tells in a task that is being cancelled."""
        if isinstance(event, RawData) and self._gathered is not None:
            self._gathered += event.data
            if len(self._gathered) < GATHER_BYTES:
                return None
            event, self._gathered = RawData(bytes(self._gathered)), bytearray()
        if isinstance(event, Updated):
            self.busy, self.since = not event.idle, trio.current_time()
        if isinstance(event, Closed | Updated):
            with trio.CancelScope(shield=True):
                if isinstance(event, Updated):
                    return await super().protocol_send(event)
                await self._close()
        return await super().protocol_send(event)

    @contextlib.asynccontextmanager
    async def gathering(self) -> AsyncIterator[None]:
        """Write what is sent in the block in few large pieces: a write for every frame of a stream costs
        more than the frame itself, and lets all other tasks go first each time.

        An HTTP/2 connection has many streams, and their control frames must not wait: nothing is gathered.
        """
        if not isinstance(self.protocol.protocol, H11Protocol):
            yield
            return
        self._gathered = bytearray()
        try:
            yield
        finally:
            data, self._gathered = bytes(self._gathered), None
            if data:
                await super().protocol_send(RawData(data))

    async def _read_data(self) -> None:
        await super()._read_data()
        # The task that pings a WebSocket would keep everything in place until its next interval.
        nursery = self._task_group._nursery
        assert nursery is not None
        nursery.cancel_scope.cancel()


current: ContextVar[Connection] = ContextVar("current")
"""The connection that the running task works for."""


async def serve_connections(
    app: ASGIFramework,
    sockets: Sequence[socket.socket],
    config: Config,
    stop: trio.Event,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stop` is set: then accept no more, let requests under way finish, cut what is left.

    Takes `config.grace_seconds` at most for that. Cancellation cuts every connection at once. The sockets
    are closed in both cases. Beyond `config.max_connections` a new connection takes the place of one that
    does nothing, or is refused.
    """
    settings = hypercorn_config(config)
    context = WorkerContext(None)
    wrapped = wrap_app(app, settings.wsgi_max_body_size, "asgi")
    open_streams: dict[trio.SocketStream, Connection] = {}
    staying: set[Connection] = set()
    none_left = trio.Event()

    async def handle(stream: trio.SocketStream) -> None:
        if len(staying) >= config.max_connections:
            dispensable = least_needed(staying)
            if dispensable is None:
                await _refuse(stream)
                return
            staying.discard(dispensable)
            _cut(cast(Any, dispensable.stream))
        connection = Connection(wrapped, settings, context, ConnectionState({}), cast(Any, stream))
        connection.since = trio.current_time()
        open_streams[stream] = connection
        staying.add(connection)
        try:
            current.set(connection)
            await connection.run()
        except Exception as error:
            if is_peers_fault(error):
                note_peers_fault(error)
            else:
                log.exception("connection failed")
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)
        finally:
            del open_streams[stream]
            staying.discard(connection)
            if stop.is_set() and not open_streams:
                none_left.set()

    listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(sock)) for sock in sockets]
    async with trio.open_nursery() as connections:
        try:
            async with trio.open_nursery() as accepting:
                accepting.start_soon(
                    partial(trio.serve_listeners, handle, listeners, handler_nursery=connections)
                )
                task_status.started()
                await stop.wait()
                accepting.cancel_scope.cancel()
            await context.terminated.set()
            if open_streams:
                with trio.move_on_after(config.grace_seconds):
                    await none_left.wait()
        finally:
            for stream in open_streams:
                _cut(stream)
            connections.cancel_scope.cancel()


def least_needed(connections: Iterable[Connection]) -> Connection | None:
    """The one to end when there are too many: of those without a welcome the oldest, else the longest idle.

    None when each of them is at work for a client that was let in.
    """
    return min(
        (each for each in connections if not (each.welcome and each.busy)),
        key=lambda each: (each.welcome, each.since),
        default=None,
    )


async def _refuse(stream: trio.SocketStream) -> None:
    """Tell a client that there is no room, and close. Waits for REFUSAL_SECONDS at the most."""
    with contextlib.suppress(OSError):
        os.write(stream.socket.fileno(), REFUSAL)  # It does not block: it is the first thing that is sent.
        stream.socket.shutdown(socket.SHUT_WR)
    # Closing with its request unread would make the kernel reset the connection, and the answer be lost.
    with trio.move_on_after(REFUSAL_SECONDS), contextlib.suppress(trio.BrokenResourceError):
        while await stream.receive_some():
            pass
    with trio.CancelScope(shield=True):
        await trio.aclose_forcefully(stream)


def _cut(stream: trio.SocketStream) -> None:
    """End a connection under its user: a send that waits for the client fails at once."""
    with contextlib.suppress(OSError):  # It may have ended by itself.
        stream.socket.shutdown(socket.SHUT_RDWR)
