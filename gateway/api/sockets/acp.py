"""`/sockets/acp` and `/acp`: Ostler as an ACP agent, one JSON-RPC message in each text frame.

The first is for Ostler's own bridge, whose frames of updates have the position before them. The second is the
remote transport of the ACP proposal, in its WebSocket profile.
"""

from __future__ import annotations

import re
import uuid
from typing import Final

import structlog
import trio
from quart import Response, websocket

from gateway.api.acp.methods import AcpMethods, Choice
from gateway.api.acp.peer import Peer
from gateway.api.requests.reading import Handshake, InvalidRequest
from gateway.api.services import Services
from gateway.api.sockets.serve import leave, together
from gateway.api.sockets.websocket import (
    GOING_AWAY,
    INTERNAL_ERROR,
    TOO_LARGE,
    TRY_LATER,
    Closed,
    Refused,
    accept,
    close,
    refusal,
    send_text,
)
from gateway.http.message_buffer import MessageBuffer
from supervisor.acp.schema import NAME_CHARS

log = structlog.get_logger(__name__)

CLIENT: Final = re.compile(r"[0-9A-Za-z-]{8,64}")
"""The id of a bridge, which it keeps over its connections."""

COUNTED_AS: Final = "acp"
"""Where its sockets are counted; no conversation has such an id."""


async def serve_acp(services: Services, *, bridge: bool) -> Response | None:
    """Serve the current WebSocket until the client leaves or the server stops. Its turns continue.

    Ends by cancellation when the client disconnects. Its subscriber slots are released in every case.
    """
    try:
        query = Handshake(websocket.args)
        choice = _choice(query)
        inbox = await accept(services.config, query)
    except (InvalidRequest, ValueError, Refused):
        return refusal()
    except Closed as error:
        await close(error.code, error.reason)
        return None
    unreadable = trio.Event()
    try:
        with services.subscribers.joined(COUNTED_AS) as joined:
            if not joined:
                await close(TRY_LATER, "Too many ACP connections")
                return None
            await together(
                lambda: _converse(services, choice, inbox, unreadable, bridge=bridge),
                lambda: leave(unreadable, TRY_LATER, "The journal cannot be read now"),
                lambda: leave(services.closing, GOING_AWAY, "The server is shutting down"),
                lambda: leave(inbox.too_large, TOO_LARGE, "Message too large"),
                lambda: leave(inbox.no_room, TRY_LATER, "Too much is sent at once"),
            )
    except Closed as error:
        await close(error.code, error.reason)
    except Exception:
        log.exception("ACP socket failed")
        await close(INTERNAL_ERROR, "Internal error")
    return None


def _choice(query: Handshake) -> Choice:
    """What the handshake says. Raises ValueError."""
    client, agent, model = (query.text(name) for name in ("client", "agent", "model"))
    if client is not None and not CLIENT.fullmatch(client):
        raise ValueError("client")
    if len(agent or "") > NAME_CHARS or len(model or "") > NAME_CHARS:
        raise ValueError("agent")
    return Choice(client=client or str(uuid.uuid4()), agent=agent or None, model=model or None)


async def _converse(
    services: Services, choice: Choice, inbox: MessageBuffer, unreadable: trio.Event, *, bridge: bool
) -> None:
    async with trio.open_nursery() as nursery:
        peer = Peer(send_text, nursery)
        methods = AcpMethods(services, peer, choice, _marked if bridge else _plain, nursery, unreadable)
        while True:
            # Receiving never stops: the server notices a disconnect only while its queue of frames has room.
            frame = await websocket.receive()
            services.activity.touch()
            await peer.take(frame, methods)
            del frame
            inbox.done()


def _plain(frame: bytes, _: str) -> bytes:
    return frame


def _marked(frame: bytes, position: str) -> bytes:
    """The frame after a line that names its session and the position behind it."""
    session = frame[_SESSION : _SESSION + 36]
    return b"@%b %b\n%b" % (session, position.encode(), frame)


_SESSION: Final = len(b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"')
