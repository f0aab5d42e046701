"""`/sockets/bash-events`: receives commands, sends the events of all commands outside of conversations.

Every frame is one event, nulls included. A refused command is answered to its sender alone, with a BashError
after all events sent before.
"""

from __future__ import annotations

from typing import Final

import orjson
import structlog
import trio
from quart import Response, websocket

from gateway.api.errors import DETAIL_CHARACTERS, ApiError, problem_of
from gateway.api.requests.bodies import ExecuteBashRequest, TooHeavy, parsed
from gateway.api.requests.reading import Handshake, InvalidRequest
from gateway.api.routes.workspace.bash import bash_of, start
from gateway.api.services import Services
from gateway.api.sockets.events import flag
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
    is_auth_frame,
    refusal,
    send_text,
)
from gateway.http.client_connection import current
from gateway.http.message_buffer import MessageBuffer
from supervisor.acp.schema import cut
from supervisor.fairness import share
from supervisor.reading.decode import decode
from supervisor.reading.model import Invalid
from supervisor.workspace.access import AccessRefused
from supervisor.workspace.commands.log import BashLog, Watcher

log = structlog.get_logger(__name__)

COUNTED_AS: Final = "bash-events"
"""Where its sockets are counted; no conversation has such an id."""


async def serve_bash(services: Services) -> Response | None:
    """Serve the current WebSocket until the client leaves or the server stops.

    Ends by cancellation when the client disconnects. Its subscriber slot is released in every case. Commands
    that it has started continue.
    """
    try:
        past = _past(Handshake(websocket.args))
        bash = bash_of(services)
        inbox = await accept(services.config, Handshake(websocket.args))
    except (ValueError, AccessRefused, ApiError, Refused):
        return refusal()
    except Closed as error:
        await close(error.code, error.reason)
        return None
    try:
        with services.subscribers.joined(COUNTED_AS) as joined:
            if not joined:
                await close(TRY_LATER, "Too many bash event connections")
                return None
            with bash.log.watching(None, past=past) as watcher:
                await together(
                    lambda: _write(watcher),
                    lambda: _read(services, bash.log, watcher, inbox),
                    lambda: leave(services.closing, GOING_AWAY, "The server is shutting down"),
                    lambda: leave(inbox.too_large, TOO_LARGE, "Message too large"),
                    lambda: leave(inbox.no_room, TRY_LATER, "Too much is sent at once"),
                    lambda: leave(watcher.overrun, TRY_LATER, "Too slow: events were dropped"),
                )
    except Closed as error:
        await close(error.code, error.reason)
    except Exception:
        log.exception("socket of commands failed")
        await close(INTERNAL_ERROR, "Internal error")
    return None


def _past(query: Handshake) -> bool:
    """Whether the events that there are come first. Raises ValueError."""
    mode = query.text("resend_mode")
    if mode is None:
        return flag(query.text("resend_all"))
    if mode != "all":
        raise ValueError(f"resend_mode {mode!r}")
    return True


async def _write(watcher: Watcher) -> None:
    relaying = share()
    while True:
        body = await watcher.next()
        async with current.get().gathering(send_text) as (send, _):
            if relaying.spent():
                await relaying.turn()
            await send((body,))
            relaying.rest()


async def _read(services: Services, events: BashLog, watcher: Watcher, inbox: MessageBuffer) -> None:
    # Receiving never stops: the server notices a disconnect only while its queue of frames has room.
    while True:
        frame = await websocket.receive()
        services.activity.touch()
        try:
            problem = await _take(services, frame)
        except Exception as error:
            found = problem_of(error)
            if found is None:
                raise
            problem = (type(error).__name__, str(error))
        if problem is not None:
            code, detail = problem
            watcher.push(events.error(code, cut(detail, DETAIL_CHARACTERS)))
        del frame
        inbox.done()
        await trio.lowlevel.checkpoint()


async def _take(services: Services, frame: str | bytes | None) -> tuple[str, str] | None:
    """Start the command of one frame. Returns why not, as code and detail."""
    try:
        asked = await parsed(frame if frame is not None else b"")
    except (orjson.JSONDecodeError, TooHeavy) as error:
        return type(error).__name__, str(error)
    if is_auth_frame(asked):
        return None
    try:
        request = decode(ExecuteBashRequest, asked)
    except Invalid as error:
        return "ValidationError", str(InvalidRequest(*error.errors))
    await start(services, request)
    return None
