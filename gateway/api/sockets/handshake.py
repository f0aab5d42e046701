"""The way of a socket from its handshake to its close."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import structlog
from quart import Response, websocket

from gateway.api.errors import ApiError
from gateway.api.requests.reading import Handshake, InvalidRequest
from gateway.api.services import Services
from gateway.api.sockets.exchange import Exchange, Talk
from gateway.api.sockets.websocket import (
    INTERNAL_ERROR,
    NO_HEADERS,
    RESTARTS,
    TRY_LATER,
    UNKNOWN_CONVERSATION,
    Closed,
    Refused,
    accept,
    close,
    refusal,
)
from supervisor.conversations.state.errors import UnknownConversation
from supervisor.documents.port import DocumentsUnavailable
from supervisor.journal.errors import JournalClosed, JournalFailed, JournalUnavailable, LogDeleted, NotOwner
from supervisor.workspace.access import AccessRefused

log = structlog.get_logger(__name__)

CROWDED: Final = "Too many connections for this conversation"


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
        inbox = await accept(services.config, query, headers, trusted=_trusted(services))
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
            await _talk(talk, Exchange(services, inbox))
    except Closed as error:
        await close(error.code, error.reason)
    except (UnknownConversation, LogDeleted):
        await close(UNKNOWN_CONVERSATION, "Conversation not found")
    except NotOwner:
        await close(RESTARTS, "Another server has the conversation now; connect again")
    except (JournalUnavailable, JournalFailed, JournalClosed, DocumentsUnavailable):
        await close(TRY_LATER, "The journal cannot be read now")
    except Exception:
        log.exception("socket failed", path=websocket.path, conversation_id=counted_as)
        await close(INTERNAL_ERROR, "Internal error")
    return None


async def _talk(talk: Talk, exchange: Exchange) -> None:
    try:
        await talk(exchange)
    except Exception as error:
        if exchange.services.machines is None:
            raise
        from gateway.api.forwarding.sockets import serve_elsewhere

        await serve_elsewhere(error, talk, exchange)


def _trusted(services: Services) -> bool:
    """Whether another server asks, for one of its clients. Raises Refused for a wrong key."""
    if services.machines is None:
        return False
    from gateway.api.forwarding.requests import is_server

    found = is_server(services, websocket)
    if found is False:
        raise Refused
    return found is not None
