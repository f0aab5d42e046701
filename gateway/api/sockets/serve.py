"""What both event sockets share: the cursor, and the messages of clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Final, Protocol

import orjson
from quart import Response

from gateway.api.errors import DETAIL_CHARACTERS, problem_of
from gateway.api.requests.bodies import TooHeavy, parsed
from gateway.api.requests.messages import SocketMessage, check_taken
from gateway.api.requests.reading import Handshake, InvalidRequest, path_uuid
from gateway.api.services import Services
from gateway.api.sockets.exchange import Exchange, Talk
from gateway.api.sockets.handshake import serve_socket
from gateway.api.sockets.websocket import is_auth_frame, send_text
from gateway.http.client_connection import current
from supervisor.acp.schema import cut
from supervisor.fairness import Share, share
from supervisor.journal.cursor import Cursor
from supervisor.reading.decode import decode
from supervisor.reading.model import Invalid

if TYPE_CHECKING:
    from gateway.api.contract import Conversation


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
    """Serve the current WebSocket; see `serve_socket`.

    `dialect_of` reads the handshake's query and raises ValueError for an invalid one. The cursor is released
    in every case.
    """

    def read(query: Handshake) -> tuple[str, Talk]:
        known, dialect = path_uuid(conversation_id, "conversation_id"), dialect_of(query)
        return known, lambda exchange: _converse(services, known, dialect, exchange)

    return await serve_socket(services, read)


async def _converse(services: Services, conversation_id: str, dialect: Dialect, exchange: Exchange) -> None:
    conversation = await services.supervisor.get(conversation_id)
    cursor, opening = await dialect.start(conversation)
    await exchange.run(
        lambda: _write(dialect, cursor, opening),
        take=lambda frame: _take(services, conversation_id, dialect, frame),
    )


async def _write(dialect: Dialect, cursor: Cursor, opening: list[bytes]) -> None:
    for frame in opening:
        await send_text(frame)
    relaying = share()
    while True:
        # On a closed connection these are the only checkpoints.
        items = await cursor.next()
        await relay(dialect.frames(items), relaying)


async def relay(frames: Iterable[bytes], relaying: Share) -> None:
    """Send frames, many at once where the connection can, and take turns with other relays."""
    async with current.get().gathering(send_text) as (send, many):
        for group in grouped(frames, GROUP_BYTES if many else 0):
            if relaying.spent(len(group)):
                await relaying.turn()
            await send(group)
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


async def _take(
    services: Services, conversation_id: str, dialect: Dialect, frame: str | bytes | None
) -> None:
    try:
        # Found each time: after a deletion that was undone it is another object.
        await take(await services.supervisor.get(conversation_id), frame)
    except Rejected as error:
        await send_text(dialect.error(error.code, error.detail))


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
        asked = decode(SocketMessage, obj)
        message = asked.message
        check_taken(conversation, message, ())
    except Invalid as error:
        raise Rejected("ValidationError", str(InvalidRequest(*error.errors))) from None
    except InvalidRequest as error:
        raise Rejected("ValidationError", str(error)) from None
    try:
        await conversation.send(message, run=True, event_id=asked.id)
    except Exception as error:
        found = problem_of(error)
        if found is None:
            raise
        raise Rejected(type(error).__name__, cut(str(error), DETAIL_CHARACTERS)) from error
