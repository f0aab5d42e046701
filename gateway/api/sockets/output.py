"""`/sockets/agents/ID`: what an agent writes to standard error, or the frames between it and the server.

Frames: `sync`, then what there is, then each new line (`lines`) or frame (`frames`) once. Nothing is held for
a client: one that is slow finds in `skipped` how many were dropped meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson
import structlog
import trio
from quart import Response, websocket

from gateway.api.requests.reading import Handshake, InvalidRequest, path_uuid
from gateway.api.responses import trace_line
from gateway.api.services import Services
from gateway.api.sockets.serve import leave, only_listen, together
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
    refusal,
    send_text,
)
from supervisor.conversations.agent.lifecycle.last_output import Mark
from supervisor.conversations.state.errors import UnknownConversation
from supervisor.journal.errors import JournalError

log = structlog.get_logger(__name__)

STDERR: Final = "stderr"
TRACE: Final = "trace"

LOOK_SECONDS: Final = 0.25
"""How often new lines are looked for. A person sees no difference below this, and most looks compare two
numbers."""

ITEMS: Final = 50
"""Lines or frames in a frame of the socket, at most 200 KiB: other tasks have their turn between two."""


async def serve_output(services: Services, conversation_id: str) -> Response | None:
    """Serve the current WebSocket until the client leaves, the server stops, or the conversation is gone.

    Ends by cancellation when the client disconnects. Its subscriber slot is released in every case.
    """
    try:
        conversation_id = path_uuid(conversation_id, "conversation_id")
        query = Handshake(websocket.args)
        of = _wanted(query)
        inbox = await accept(services.config, query)
    except (InvalidRequest, ValueError, Refused):
        return refusal()
    except Closed as error:
        await close(error.code, error.reason)
        return None
    try:
        with services.subscribers.joined(conversation_id) as joined:
            if not joined:
                await close(TRY_LATER, "Too many connections for this conversation")
                return None
            await together(
                lambda: _write(services, conversation_id, of),
                lambda: only_listen(services, inbox),
                lambda: leave(services.closing, GOING_AWAY, "The server is shutting down"),
                lambda: leave(inbox.too_large, TOO_LARGE, "Message too large"),
                lambda: leave(inbox.no_room, TRY_LATER, "Too much is sent at once"),
            )
    except Closed as error:
        await close(error.code, error.reason)
    except UnknownConversation:
        await close(UNKNOWN_CONVERSATION, "Conversation not found")
    except JournalError:
        await close(TRY_LATER, "The journal cannot be read now")
    except Exception:
        log.exception("output socket failed", conversation_id=conversation_id)
        await close(INTERNAL_ERROR, "Internal error")
    return None


def _wanted(query: Handshake) -> str:
    """What is followed. Raises ValueError."""
    of = query.text("of") or STDERR
    if of not in (STDERR, TRACE):
        raise ValueError(f"of {of!r}")
    return of


async def _write(services: Services, conversation_id: str, of: str) -> None:
    mark: Mark | None = None
    while True:
        mark, again, skipped, items = await _look(services, conversation_id, of, mark)
        if again:
            await send_text(orjson.dumps({"type": "sync", "of": of}))
        name = "lines" if of == STDERR else "frames"
        for start in range(0, max(len(items), bool(skipped)), ITEMS):
            frame = {"type": name, name: items[start : start + ITEMS], "skipped": 0 if start else skipped}
            await send_text(orjson.dumps(frame))
        await trio.sleep(LOOK_SECONDS)


async def _look(
    services: Services, conversation_id: str, of: str, mark: Mark | None
) -> tuple[Mark, bool, int, Sequence[Any]]:
    if of == STDERR:
        lines = await services.supervisor.stderr_after(conversation_id, mark)
        return lines.mark, lines.again, lines.skipped, lines.items
    found = await services.supervisor.trace_after(conversation_id, mark)
    shown = [trace_line(services.clock, each) for each in found.items]
    return found.mark, found.again, found.skipped, shown
