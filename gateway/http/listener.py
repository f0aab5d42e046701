"""Accepts connections on the listening sockets, and ends all of them within a bounded time.

Hypercorn implements the protocols. Accepting is done here, for three reasons: in Hypercorn's own loop an
exception of one connection takes down the server, the port that a port 0 became is not reported, and there is
no limit on connections. The limit is in `connection_limits`, the end of a connection in `connection`.
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Sequence
from functools import partial
from typing import Final

import structlog
import trio
from hypercorn.config import Config as HypercornConfig
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ASGIFramework
from hypercorn.utils import wrap_app

from gateway.configuration.address import http_url, is_loopback, open_refusal
from gateway.configuration.config import Config
from gateway.http.budgets import OPERATORS_BYTES, RECEIVED_BYTES, Received, Unsent
from gateway.http.client_connection import Connection, current
from gateway.http.connection_limits import ConnectionLimits, ReservedDescriptors, accept
from gateway.http.wrappers import is_peers_fault, note_peers_fault
from supervisor.agents.spawning.descriptors import OPERATORS, RESERVED

log = structlog.get_logger(__name__)

BACKLOG: Final = 256
"""Connections that the kernel queues while the server is busy, such as during start-up."""

REQUESTS_PER_CONNECTION: Final = 1_000_000
"""Practically no limit: a client that polls should not have to reconnect."""

WATCH_SECONDS: Final = 1.0
"""Seconds between two checks of all connections: the most by which one may end late."""

LAST_WATCH_SECONDS: Final = 0.05
"""The same while the server ends."""


class BindError(Exception):
    """The address cannot be listened on. The message is one line for the terminal."""


async def bind(config: Config) -> list[socket.socket]:
    """Open the listening sockets for `config.host` and `config.port`; port 0 becomes the same free port on
    all.

    The caller owns the sockets.

    Raises BindError, also if an open server may not listen there. Cancellation leaves none open.
    """
    host, port = config.host, config.port
    try:
        found = await trio.socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise BindError(
            f"{host!r} is not an address of this machine: {getattr(error, 'strerror', None) or error}; "
            "127.0.0.1 is one, and reached from here only"
        ) from None
    if not config.session_api_keys and not all(is_loopback(str(entry[4][0])) for entry in found):
        # Asked once more: a name may have changed its meaning since the arguments were read.
        if not config.allow_open:
            raise BindError(open_refusal(host))
        log.warning(
            "no session key is set: the server is open to everybody who reaches its address", host=host
        )
    sockets: list[socket.socket] = []
    try:
        for family, address in dict.fromkeys((entry[0], entry[4]) for entry in found):
            where = (address[0], port, *address[2:])
            sockets.append(sock := socket.create_server(where, family=family, backlog=BACKLOG))
            if hasattr(socket, "TCP_USER_TIMEOUT"):
                milliseconds = int(config.stall_seconds * 1000)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
            sock.setblocking(False)
            port = sock.getsockname()[1]
    except OSError as error:
        for sock in sockets:
            sock.close()
        if error.errno == errno.EADDRINUSE:
            raise BindError(f"port {port} on {host} is in use; choose another one with --port") from None
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise BindError(f"cannot listen on {host}:{port}: {reason}") from None
    return sockets


def url_of(config: Config, sockets: Sequence[socket.socket]) -> str:
    """The URL of the server, for people."""
    return http_url(config.host, sockets[0].getsockname()[1])


def hypercorn_config(config: Config) -> HypercornConfig:
    """Hypercorn's settings. Requests are not logged, since paths and queries may hold keys."""
    settings = HypercornConfig()
    settings.accesslog = None
    settings.loglevel = "WARNING"
    settings.include_server_header = False
    settings.keep_alive_timeout = config.keep_alive_seconds
    settings.keep_alive_max_requests = REQUESTS_PER_CONNECTION
    settings.websocket_ping_interval = config.ping_seconds
    settings.websocket_max_message_size = config.max_message_bytes
    return settings


async def serve_connections(
    app: ASGIFramework,
    sockets: Sequence[socket.socket],
    config: Config,
    stop: trio.Event,
    *,
    connection_limits: ConnectionLimits | None = None,
    control: socket.socket | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until `stop` is set, then accept no more, let requests finish, and cut the rest.

    That takes at most `config.grace_seconds`. Beyond `config.max_connections` a new connection replaces an
    idle one, or is refused; `connection_limits` counts them. `control` is the socket of the operators, who
    have connections of their own.

    Cancellation cuts every connection at once. The sockets are closed in both cases.
    """
    settings = hypercorn_config(config)
    context = WorkerContext(None)
    wrapped = wrap_app(app, settings.wsgi_max_body_size, "asgi")
    public = ConnectionLimits(config.max_connections) if connection_limits is None else connection_limits
    operators = ConnectionLimits(OPERATORS)
    unsent = Unsent()
    sizes = {public: RECEIVED_BYTES, operators: OPERATORS_BYTES}
    bodies = {each: Received(max(size, config.max_body_bytes)) for each, size in sizes.items()}
    messages = {each: Received(max(size, config.max_message_bytes)) for each, size in sizes.items()}
    reserved = ReservedDescriptors(0 if control is None else RESERVED)

    async def receive(connection_limits: ConnectionLimits, stream: trio.SocketStream) -> None:
        if not connection_limits.has_room():
            await connection_limits.refuse(stream)
            return
        connection = Connection(
            wrapped,
            settings,
            context,
            stream,
            stall_seconds=config.stall_seconds,
            unsent=unsent,
            bodies=bodies[connection_limits],
            messages=messages[connection_limits],
            gone=connection_limits.leave,
        )
        connection_limits.enter(connection)
        current.set(connection)
        try:
            await connection.run()
        except BaseExceptionGroup as group:
            faults, others = group.split(Exception)
            if faults is not None:
                note(faults)
            if others is not None:
                raise others from None  # a cancellation of the server
        except Exception as error:  # noqa: BLE001 - it is this connection's alone
            note(error)

    def note(error: Exception) -> None:
        if is_peers_fault(error):
            note_peers_fault(error)
        else:
            log.error("connection failed", exc_info=error)

    async def receive_operator(stream: trio.SocketStream) -> None:
        reserved.release()
        await receive(operators, stream)

    def look_after() -> None:
        for connection_limits in (public, operators):
            connection_limits.look_after(trio.current_time())
        if not operators:
            reserved.keep()

    async def watch() -> None:
        while True:
            await trio.sleep(min(WATCH_SECONDS, settings.keep_alive_timeout / 4))
            try:
                look_after()
            except Exception:
                # This task is the whole server's: a fault over one connection must not end it.
                log.exception("connection watch failed")

    try:
        async with trio.open_nursery() as connections:
            try:
                connections.start_soon(watch)
                async with trio.open_nursery() as accepting:
                    for sock in sockets:
                        accepting.start_soon(
                            accept, sock, partial(receive, public), public.make_room, connections
                        )
                    if control is not None:
                        accepting.start_soon(accept, control, receive_operator, reserved.release, connections)
                    task_status.started()
                    await stop.wait()
                    accepting.cancel_scope.cancel()
                await context.terminated.set()
                with trio.move_on_after(config.grace_seconds):
                    while public or operators:
                        look_after()
                        await trio.sleep(LAST_WATCH_SECONDS)
            finally:
                public.end()
                operators.end()
                connections.cancel_scope.cancel()
    finally:
        reserved.release()
