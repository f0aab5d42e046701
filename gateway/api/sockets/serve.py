"""What both event sockets share: from the handshake to the last frame."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, Protocol

import orjson
import structlog
import trio
from quart import Response, websocket

from gateway.api.errors import DETAIL_CHARACTERS, problem_of
from gateway.api.requests.bodies import TooHeavy, parsed
from gateway.api.requests.messages import SocketMessage, check_taken
from gateway.api.requests.reading import Handshake, InvalidRequest, path_uuid
from gateway.api.services import Services
from gateway.api.sockets.websocket import (
    GOING_AWAY,
    INTERNAL_ERROR,
    TOO_LARGE,
    TRY_LATER,
    UNKNOWN_CONVERSATION,
    Closed,
    Refused,
    accept,
    close,
    is_auth_frame,
    refusal,
    send_text,
)
from gateway.http.client_connection import current
from gateway.http.message_buffer import MessageBuffer
from supervisor.acp.schema import cut
from supervisor.conversations.state.errors import UnknownConversation
from supervisor.fairness import share
from supervisor.journal.cursor import Cursor
from supervisor.journal.errors import JournalClosed, JournalFailed, JournalUnavailable, LogDeleted
from supervisor.reading.decode import decode
from supervisor.reading.model import Invalid

if TYPE_CHECKING:
    from gateway.api.contract import Conversation


log = structlog.get_logger(__name__)

GROUP_BYTES: Final = 32 * 1024
"""Bytes of frames after which other tasks may have their turn. Copying so many takes some microseconds."""


class Dialect(Protocol):
    """The frames of one kind of socket."""

    async def start(self, conversation: Conversation) -> tuple[Cursor, list[bytes]]:
        """The cursor to read from, and the frames to send before the cursor's items.

        The cursor must continue exactly where the frames end, without a gap.
        """
        ...

    def frames(self, items: Iterable[object]) -> Iterable[bytes]:
        """The frames for items of the cursor."""
        ...

    def error(self, code: str, detail: str) -> bytes:
        """The frame that reports to this client that one of its messages was refused."""
        ...


async def serve(
    services: Services, conversation_id: str, dialect_of: Callable[[Handshake], Dialect]
) -> Response | None:
    """Serve the current WebSocket until the client leaves, the server stops, or the conversation is gone.

    `dialect_of` reads the handshake's query and raises ValueError for an invalid one; the handshake is then
    refused without a reason. Ends by cancellation when the client disconnects. The socket's subscriber slot
    and its cursor are released in every case.
    """
    try:
        conversation_id = path_uuid(conversation_id, "conversation_id")
        query = Handshake(websocket.args)
        dialect = dialect_of(query)
        inbox = await accept(services.config, query)
    except (InvalidRequest, ValueError, Refused):
        return refusal()
    except Closed as error:
        await close(error.code, error.reason)
        return None
    try:
        await _converse(services, conversation_id, dialect, inbox)
    except Closed as error:
        await close(error.code, error.reason)
    except (UnknownConversation, LogDeleted):
        await close(UNKNOWN_CONVERSATION, "Conversation not found")
    except (JournalUnavailable, JournalFailed, JournalClosed):
        await close(TRY_LATER, "The journal cannot be read now")
    except Exception:
        log.exception("event socket failed", conversation_id=conversation_id)
        await close(INTERNAL_ERROR, "Internal error")
    return None


async def _converse(services: Services, conversation_id: str, dialect: Dialect, inbox: MessageBuffer) -> None:
    conversation = await services.supervisor.get(conversation_id)
    with services.subscribers.joined(conversation_id) as joined:
        if not joined:
            raise Closed(TRY_LATER, "Too many connections for this conversation")
        cursor, opening = await dialect.start(conversation)
        await together(
            lambda: _write(dialect, cursor, opening),
            lambda: _read(services, conversation_id, dialect, inbox),
            lambda: leave(services.closing, GOING_AWAY, "The server is shutting down"),
            lambda: leave(inbox.too_large, TOO_LARGE, "Message too large"),
            lambda: leave(inbox.no_room, TRY_LATER, "Too much is sent at once"),
        )


async def _write(dialect: Dialect, cursor: Cursor, opening: list[bytes]) -> None:
    for frame in opening:
        await send_text(frame)
    relaying = share()
    while True:
        # On a closed connection these are the only checkpoints.
        items = await cursor.next()
        async with current.get().gathering(send_text) as (send, many):
            for frames in grouped(dialect.frames(items), GROUP_BYTES if many else 0):
                if relaying.spent(len(frames)):
                    await relaying.turn()
                await send(frames)
            relaying.rest()


def grouped(frames: Iterable[bytes], most: int) -> Iterator[list[bytes]]:
    """The frames in groups of about `most` bytes: a call for each of them costs more than the frame. With 0
    each is by itself."""
    group: list[bytes] = []
    size = 0
    for frame in frames:
        group.append(frame)
        size += len(frame)
        if size >= most:
            yield group
            group, size = [], 0
    if group:
        yield group


async def _read(services: Services, conversation_id: str, dialect: Dialect, inbox: MessageBuffer) -> None:
    # Receiving never stops: the server notices a disconnect only while its queue of frames has room.
    while True:
        frame = await websocket.receive()
        services.activity.touch()
        try:
            # Found each time: after a deletion that was undone it is another object.
            await take(await services.supervisor.get(conversation_id), frame)
        except Rejected as error:
            await send_text(dialect.error(error.code, error.detail))
        del frame
        inbox.done()


class Rejected(Exception):
    """A frame is refused. `code` and `detail` are for the sender alone."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code = code
        self.detail = detail


async def take(conversation: Conversation, frame: str | bytes | None) -> None:
    """Send one inbound frame to the conversation, always running the agent on it.

    Raises Rejected for an invalid message, and for one that the conversation refuses; unexpected errors
    propagate. Authentication frames are ignored.
    """
    try:
        obj = await parsed(frame if frame is not None else b"")
    except (orjson.JSONDecodeError, TooHeavy) as error:
        raise Rejected(type(error).__name__, str(error)) from None
    if is_auth_frame(obj):
        return
    if isinstance(obj, dict) and obj.get("role") not in (None, "user"):
        raise Rejected("AssertionError", "Only user messages are allowed to be sent to the agent.")
    try:
        message = decode(SocketMessage, obj).message
        check_taken(conversation, message, ())
    except Invalid as error:
        raise Rejected("ValidationError", str(InvalidRequest(*error.errors))) from None
    except InvalidRequest as error:
        raise Rejected("ValidationError", str(error)) from None
    try:
        await conversation.send(message, run=True)
    except Exception as error:
        found = problem_of(error)
        if found is None:
            raise
        raise Rejected(type(error).__name__, cut(str(error), DETAIL_CHARACTERS)) from error


async def only_listen(services: Services, inbox: MessageBuffer) -> None:
    """Drop what a client sends that has nothing to say; receiving is how its end is noticed."""
    while True:
        await websocket.receive()
        services.activity.touch()
        inbox.done()


async def leave(reason: trio.Event, code: int, text: str) -> None:
    """Raise Closed when the event is set."""
    await reason.wait()
    raise Closed(code, text)


async def together(*parts: Callable[[], Awaitable[None]]) -> None:
    """Run endless parts concurrently until one fails. Raises the first exception, not in a group."""
    first: list[Exception] = []

    async with trio.open_nursery() as nursery:

        async def run(part: Callable[[], Awaitable[None]]) -> None:
            try:
                await part()
            except Exception as error:  # noqa: BLE001 - raised again below
                first.append(error)
                nursery.cancel_scope.cancel()

        for part in parts:
            nursery.start_soon(run, part)
    if first:
        raise first[0]
