"""Limits on connections: how many are allowed, which one yields to a new one, and how one is refused."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
from collections.abc import Awaitable, Callable
from typing import Final

import orjson
import structlog
import trio

from gateway.http.client_connection import Connection
from gateway.http.throttled_log import ThrottledLog
from supervisor.agents.spawning.descriptors import REFUSALS, RESERVED

log = structlog.get_logger(__name__)


def _not_now(detail: str, *, seconds: int) -> bytes:
    body = orjson.dumps({"detail": detail})
    head = (
        "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nX-Content-Type-Options: nosniff\r\n"
        f"Retry-After: {seconds}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


REFUSAL: Final = _not_now("Too many connections", seconds=1)
"""The answer to a client beyond the limit."""

CUT: Final = _not_now(
    "The server is ending. It may have carried out the request: look before you send it again. A message is "
    "safe with its Idempotency-Key.",
    seconds=5,
)
"""The answer to a request that the end of the server cuts."""

REFUSAL_SECONDS: Final = 0.2
"""Seconds that it may take to read the answer."""

ACCEPT_PAUSE_SECONDS: Final = 0.1
"""Seconds between two tries to accept while there are no descriptors. Clients wait in the kernel's queue."""

GONE: Final = select.POLLERR | select.POLLHUP | select.POLLNVAL
HALF_GONE: Final = getattr(select, "POLLRDHUP", 0)
"""The poll event for a client that sends no more; only Linux reports it while there is data to read."""


class ConnectionLimits:
    """The connections whose descriptors are open, at most `limit`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.refusing = 0
        self._open: dict[Connection, None] = {}
        self._strangers: dict[Connection, None] = {}
        """Connections that may be unauthorized, the oldest first: found at once when there are too many."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def descriptors(self) -> int:
        """The number of open descriptors, including those of refused clients."""
        return len(self._open) + self.refusing

    def enter(self, connection: Connection) -> None:
        """Count a connection until it leaves."""
        self._open[connection] = self._strangers[connection] = None

    def leave(self, connection: Connection) -> None:
        """Note that its descriptor is closed."""
        self._open.pop(connection, None)
        self._strangers.pop(connection, None)

    def make_room(self) -> bool:
        """End the connection that is needed least: the oldest unauthorized one, else the one idle longest.

        Its descriptor is free when this returns. Returns False if every connection works for an authorized
        client.
        """
        while self._strangers:
            connection = next(iter(self._strangers))
            del self._strangers[connection]
            if not connection.welcome:
                connection.end()
                return True
        idle = [each for each in self._open if not each.busy]
        if not idle:
            return False
        # Idle connections of clients with a key: they reconnect without loss.
        min(idle, key=lambda each: each.since).end()
        return True

    def has_room(self) -> bool:
        """Whether one more fits, if necessary after ending another."""
        return len(self._open) < self.limit or self.make_room()

    async def refuse(self, stream: trio.SocketStream) -> None:
        """Refuse a client, and close, within REFUSAL_SECONDS. Owns the stream; cancellation closes it."""
        self.refusing += 1
        try:
            with contextlib.suppress(OSError):
                os.write(stream.socket.fileno(), REFUSAL)  # It does not block: it is the first that is sent.
                stream.socket.shutdown(socket.SHUT_WR)
            if self.refusing > REFUSALS:
                return
            # Closing with its request unread would make the kernel reset the connection, and the answer be
            # lost.
            with trio.move_on_after(REFUSAL_SECONDS), contextlib.suppress(trio.BrokenResourceError):
                while await stream.receive_some():
                    pass
        finally:
            stream.socket.close()
            self.refusing -= 1

    def look_after(self, now: float) -> None:
        """End connections that are overdue or have no peer. Takes microseconds for each."""
        held_up: dict[int, Connection] = {}
        for connection in list(self._open):
            if connection.overdue(now):
                connection.end()
                continue
            if connection.held_up:
                held_up[connection.stream.socket.fileno()] = connection
        if not held_up:
            return
        # A reader that is held up cannot read the end of file; the kernel knows of it without reading.
        poll = select.poll()
        for descriptor in held_up:
            poll.register(descriptor, HALF_GONE)
        for descriptor, state in poll.poll(0):
            if state & GONE:
                held_up[descriptor].end()
            elif held_up[descriptor].half_closed is None:
                held_up[descriptor].half_closed = now

    def end(self) -> None:
        """End every connection, since the server ends. A request whose answer has not begun gets CUT, if the
        kernel takes it at once; that of another server nothing, so that it asks elsewhere."""
        for connection in list(self._open):
            if connection.unanswered and not connection.of_server:
                with contextlib.suppress(OSError):
                    os.write(connection.stream.socket.fileno(), CUT)
            connection.end()


class ReservedDescriptors:
    """A reserve of descriptors, open until they are needed. Owns them."""

    def __init__(self, count: int = RESERVED) -> None:
        self._count = count
        self._held: list[int] = []
        self.keep()

    def keep(self) -> None:
        """Open the full number, or as many as are available."""
        with contextlib.suppress(OSError):
            while len(self._held) < self._count:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def release(self) -> bool:
        """Close all. Returns False if none was open."""
        held, self._held = self._held, []
        for descriptor in held:
            os.close(descriptor)
        return bool(held)


async def accept(
    listening: socket.socket,
    receive: Callable[[trio.SocketStream], Awaitable[None]],
    make_room: Callable[[], bool],
    nursery: trio.Nursery,
) -> None:
    """Accept clients until cancelled, each in a task of the nursery that owns its stream; closes the socket.

    If there is no descriptor for a client, `make_room` may free some (True); else accepting is tried again
    and again.
    """
    complaint = ThrottledLog(log, "warning", "connection not accepted")
    async with trio.SocketListener(trio.socket.from_stdlib_socket(listening)) as listener:
        while True:
            try:
                stream = await listener.accept()
            except OSError as error:
                if error.errno in (errno.EBADF, errno.EINVAL, errno.ENOTSOCK):
                    raise
                complaint.say(reason=error.strerror)
                if not (error.errno == errno.EMFILE and make_room()):
                    await trio.sleep(ACCEPT_PAUSE_SECONDS)
            else:
                nursery.start_soon(receive, stream)
