"""What all sockets share, from the handshake to the close. Each adds what it says, and what it takes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

import attrs
import structlog
import trio
from quart import Response, websocket

from gateway.api.errors import ApiError
from gateway.api.requests.reading import Handshake, InvalidRequest
from gateway.api.services import Services
from gateway.api.sockets.websocket import (
    GOING_AWAY,
    INTERNAL_ERROR,
    NO_HEADERS,
    TOO_LARGE,
    TRY_LATER,
    UNKNOWN_CONVERSATION,
    Closed,
    Refused,
    accept,
    close,
    refusal,
)
from gateway.http.message_buffer import MessageBuffer
from supervisor.conversations.state.errors import UnknownConversation
from supervisor.journal.errors import JournalClosed, JournalFailed, JournalUnavailable, LogDeleted
from supervisor.workspace.access import AccessRefused

log = structlog.get_logger(__name__)

CROWDED: Final = "Too many connections for this conversation"

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

    async def run(self, *parts: Part, take: Take = _ignore, reasons: tuple[Reason, ...] = ()) -> None:
        """Run the parts, and give each message to `take`, until one of them fails.

        Raises the first exception, not in a group; Closed for one of the `reasons`, or of those that every
        socket has.
        """
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


async def serve_socket(
    services: Services,
    read: Callable[[Handshake], tuple[str, Talk]],
    crowded: str = CROWDED,
    headers: Mapping[str, str] = NO_HEADERS,
) -> Response | None:
    """Serve the current WebSocket until the client leaves, the server stops, or what it is about is gone.

    `read` reads the handshake's query: whose slots the socket takes one of (a conversation's id, or another
    name), and what serves it. It raises ValueError, InvalidRequest, AccessRefused or ApiError for an invalid
    one; the handshake is then refused without a reason. `crowded`: why it is closed if no slot is free.
    `headers` are added to the answer of the handshake.

    Ends by cancellation when the client disconnects. The slot is released in every case.
    """
    try:
        query = Handshake(websocket.args)
        counted_as, talk = read(query)
        inbox = await accept(services.config, query, headers)
    except (ValueError, InvalidRequest, AccessRefused, ApiError, Refused):
        return refusal()
    except Closed as error:
        await close(error.code, error.reason)
        return None
    try:
        with services.subscribers.joined(counted_as) as joined:
            if not joined:
                await close(TRY_LATER, crowded)
                return None
            await talk(Exchange(services, inbox))
    except Closed as error:
        await close(error.code, error.reason)
    except (UnknownConversation, LogDeleted):
        await close(UNKNOWN_CONVERSATION, "Conversation not found")
    except (JournalUnavailable, JournalFailed, JournalClosed):
        await close(TRY_LATER, "The journal cannot be read now")
    except Exception:
        log.exception("socket failed", path=websocket.path, conversation_id=counted_as)
        await close(INTERNAL_ERROR, "Internal error")
    return None
