"""`/sockets/bash-events`: receives commands, sends the events of all commands outside of conversations.

Every frame is one event, nulls included. A refused command is answered to its sender alone, with a BashError
after all events sent before.
"""

from __future__ import annotations

from typing import Final

import orjson
from quart import Response, websocket

from gateway.api.errors import DETAIL_CHARACTERS, problem_of
from gateway.api.requests.bodies import ExecuteBashRequest, TooHeavy, parsed
from gateway.api.requests.reading import Handshake, InvalidRequest
from gateway.api.routes.workspace.bash import bash_of, start
from gateway.api.services import Services
from gateway.api.sockets.events import flag
from gateway.api.sockets.exchange import Exchange, Part, Talk
from gateway.api.sockets.handshake import serve_socket
from gateway.api.sockets.websocket import TRY_LATER, is_auth_frame, send_text
from gateway.http.client_connection import current
from supervisor.acp.schema import cut
from supervisor.fairness import share
from supervisor.reading.decode import decode
from supervisor.reading.model import Invalid
from supervisor.reading.shapes import as_json
from supervisor.workspace.commands.log import BashLog, Watcher

COUNTED_AS: Final = "bash-events"
"""Where its sockets are counted; no conversation has such an id."""


async def serve_bash(services: Services) -> Response | None:
    """Serve the current WebSocket; see `serve_socket`. Commands that it has started continue."""

    def read(query: Handshake) -> tuple[str, Talk]:
        past, bash = _past(query), bash_of(services)

        async def talk(exchange: Exchange) -> None:
            with bash.log.watching(None, past=past) as watcher:
                await exchange.run(
                    lambda: _write(watcher),
                    *_others(services),
                    take=lambda frame: _take(services, bash.log, watcher, frame),
                    reasons=((watcher.overrun, TRY_LATER, "Too slow: events were dropped"),),
                )

        return COUNTED_AS, talk

    return await serve_socket(services, read, "Too many bash event connections")


def _past(query: Handshake) -> bool:
    """Whether the events that there are come first. Raises ValueError."""
    mode = query.text("resend_mode")
    if mode is None:
        return flag(query.text("resend_all"))
    if mode != "all":
        raise ValueError(f"resend_mode {mode!r}")
    return True


def _others(services: Services) -> tuple[Part, ...]:
    """What sends the events of other servers, unless it is one that follows these."""
    if services.machines is None:
        return ()
    from gateway.api.forwarding.joined import follow_others
    from gateway.api.forwarding.requests import from_server

    return () if from_server(websocket) else (lambda: follow_others(services),)


async def _write(watcher: Watcher) -> None:
    relaying = share()
    while True:
        body = await watcher.next()
        async with current.get().gathering(send_text) as (send, _):
            if relaying.spent():
                await relaying.turn()
            await send((body,))
            relaying.rest()


async def _take(services: Services, events: BashLog, watcher: Watcher, frame: str | bytes | None) -> None:
    try:
        problem = await _start(services, frame)
    except Exception as error:
        if problem_of(error) is None:
            raise
        problem = (type(error).__name__, str(error))
    if problem is not None:
        code, detail = problem
        watcher.push(events.error(code, cut(detail, DETAIL_CHARACTERS)))


async def _start(services: Services, frame: str | bytes | None) -> tuple[str, str] | None:
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
    try:
        await start(services, request)
    except Exception as error:
        if services.machines is None:
            raise
        from gateway.api.forwarding.fan_out import start_command

        return await start_command(services, error, as_json(request))
    return None
