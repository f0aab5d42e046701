"""What all sockets share, from the handshake to the close. Each adds what it says, and what it takes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import structlog
import trio
from quart import websocket

from gateway.api.services import Services
from gateway.api.sockets.websocket import (
    GOING_AWAY,
    TOO_LARGE,
    TRY_LATER,
    Closed,
)
from gateway.http.message_buffer import MessageBuffer

log = structlog.get_logger(__name__)

Part = Callable[[], Awaitable[None]]
"""Something endless: it ends by an exception."""

Take = Callable[[str | bytes | None], Awaitable[None]]
"""Gets one message of the client."""

Reason = tuple[trio.Event, int, str]
"""Closes the socket when the event is set, with this code and this text."""


async def _ignore(_: str | bytes | None) -> None:
    """For a client that has nothing to say."""


@attrs.frozen
class Exchange:
    """A socket that was accepted, and what receives its messages."""

    services: Services
    inbox: MessageBuffer
    began: trio.Event = attrs.field(factory=trio.Event)
    """Set when messages have been taken, or sent: another server could not continue."""

    async def run(self, *parts: Part, take: Take = _ignore, reasons: tuple[Reason, ...] = ()) -> None:
        """Run the parts, and give each message to `take`, until one of them fails.

        Raises the first exception, not in a group; Closed for one of the `reasons`, or of those that every
        socket has.
        """
        self.began.set()
        shared: tuple[Reason, ...] = (
            (self.services.closing, GOING_AWAY, "The server is shutting down"),
            (self.inbox.too_large, TOO_LARGE, "Message too large"),
            (self.inbox.no_room, TRY_LATER, "Too much is sent at once"),
        )
        first: list[Exception] = []

        async def attempt(part: Callable[..., Awaitable[None]], *given: object) -> None:
            try:
                await part(*given)
            except Exception as error:  # noqa: BLE001 - raised again below
                first.append(error)
                nursery.cancel_scope.cancel()

        async with trio.open_nursery() as nursery:
            for part in parts:
                nursery.start_soon(attempt, part)
            nursery.start_soon(attempt, self._receive, take)
            for reason in (*shared, *reasons):
                nursery.start_soon(attempt, _leave, *reason)
        if first:
            raise first[0]

    async def _receive(self, take: Take) -> None:
        # Receiving never stops: the server notices a disconnect only while its queue of frames has room.
        while True:
            frame = await websocket.receive()
            self.services.activity.touch()
            await take(frame)
            del frame
            self.inbox.done()
            # `receive` and `take` need not wait, and a loop of them must not starve the others.
            await trio.lowlevel.checkpoint()


async def _leave(reason: trio.Event, code: int, text: str) -> None:
    await reason.wait()
    raise Closed(code, text)


Talk = Callable[[Exchange], Awaitable[None]]
"""Serves a socket until it fails, with `Exchange.run`."""
