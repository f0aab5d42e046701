"""Limits on connections: how many are allowed, which one yields to a new one, and how one is refused."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
from collections.abc import Awaitable, Callable
from typing import Final

import structlog
import trio

from gateway.connection import Connection
from gateway.throttled_log import ThrottledLog
from supervisor.agents.descriptors import REFUSALS, SPARES

log = structlog.get_logger(__name__)

REFUSAL: Final = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: 33\r\n"
    b'Retry-After: 1\r\nConnection: close\r\n\r\n{"detail":"Too many connections"}'
)
"""What a client is told for which there is no room."""

REFUSAL_SECONDS: Final = 0.2
"""How long it may take to read that."""

ACCEPT_PAUSE_SECONDS: Final = 0.1
"""Between two tries to accept while there are no descriptors. Clients wait in the kernel's queue."""

GONE: Final = select.POLLERR | select.POLLHUP | select.POLLNVAL
HALF_GONE: Final = getattr(select, "POLLRDHUP", 0)
"""The client sends no more; Linux alone tells it while there is something to read."""


class ConnectionLimits:
    """The connections whose descriptors are open, at most `limit`."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.refusing = 0
        self._open: dict[Connection, None] = {}
        self._strangers: dict[Connection, None] = {}
        """Those that may be without a welcome, the oldest first: found at once when there are too many."""

    def __len__(self) -> int:
        return len(self._open)

    @property
    def descriptors(self) -> int:
        """How many are open, those of refused clients included."""
        return len(self._open) + self.refusing

    def enter(self, connection: Connection) -> None:
        """Count one until it leaves."""
        self._open[connection] = self._strangers[connection] = None

    def leave(self, connection: Connection) -> None:
        """Its descriptor is closed."""
        self._open.pop(connection, None)
        self._strangers.pop(connection, None)

    def make_room(self) -> bool:
        """End the connection that is needed least: of those without a welcome the oldest, else the longest
        idle. False when each is at work for a client that was let in.

        Its descriptor is free when this returns.
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
        min(idle, key=lambda each: each.since).end()
        return True

    def has_room(self) -> bool:
        """Whether one more may come, if need be in the place of another."""
        return len(self._open) < self.limit or self.make_room()

    async def refuse(self, stream: trio.SocketStream) -> None:
        """Tell a client that there is no room, and close. Waits for REFUSAL_SECONDS at the most.

        Owns the stream. Cancellation closes it.
        """
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
        """End what is overdue, and what nobody is at the other end of. Takes microseconds for each."""
        held_up: dict[int, Connection] = {}
        for connection in list(self._open):
            if connection.overdue(now):
                connection.end()
                continue
            connection.refresh(now)
            if connection.held_up:
                held_up[connection.stream.socket.fileno()] = connection
        if not held_up:
            return
        poll = select.poll()
        for descriptor in held_up:
            poll.register(descriptor, HALF_GONE)
        for descriptor, state in poll.poll(0):
            if state & GONE:
                held_up[descriptor].end()
            elif held_up[descriptor].half_closed is None:
                held_up[descriptor].half_closed = now

    def end(self) -> None:
        """End every connection."""
        for connection in list(self._open):
            connection.end()


class Spares:
    """Descriptors that are held so that there are some when they are needed. Owns them."""

    def __init__(self, count: int = SPARES) -> None:
        self._count = count
        self._held: list[int] = []
        self.keep()

    def keep(self) -> None:
        """Hold as many as there should be, or as many as there are."""
        with contextlib.suppress(OSError):
            while len(self._held) < self._count:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def release(self) -> bool:
        """Let go of all. False if none was held."""
        held, self._held = self._held, []
        for descriptor in held:
            os.close(descriptor)
        return bool(held)


async def accept(
    listener: trio.SocketListener,
    receive: Callable[[trio.SocketStream], Awaitable[None]],
    make_room: Callable[[], bool],
    nursery: trio.Nursery,
) -> None:
    """Take clients in for ever, each in a task of the nursery that owns its stream; closes the listener.

    Where there is no descriptor for one, `make_room` may free some (True); else it is tried again and again.
    """
    complaint = ThrottledLog(log, "warning", "connection not accepted")
    async with listener:
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
