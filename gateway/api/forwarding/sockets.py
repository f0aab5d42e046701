"""A WebSocket of a client, relayed frame by frame to the server that has its conversation."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import h11
import trio
from quart import websocket
from trio_websocket import ConnectionClosed, ConnectionRejected, WebSocketConnection, wrap_client_stream
from wsproto.utilities import ProtocolError

from gateway.api.forwarding.headers import to_owner, without_key
from gateway.api.forwarding.owners import Owners, Unreached
from gateway.api.forwarding.requests import FIRST_PAUSE, MOST_PAUSE, TAKEOVER_SECONDS, from_server, unsettled
from gateway.api.sockets.websocket import RESTARTS, TRY_LATER, Closed
from supervisor.machines.errors import OwnedElsewhere

if TYPE_CHECKING:
    from gateway.api.sockets.exchange import Exchange, Talk
    from supervisor.machines.errors import Place

FRAME_BYTES: Final = 64 * 1024 * 1024
"""The largest message of an owner: four times what one of a client may have, which becomes an event. One is
held at a time."""

ANSWER_SECONDS: Final = 5.0
"""Seconds for the owner's answer to a handshake."""

READ_BYTES: Final = 64 * 1024

NO_STATUS: Final = 1005
ABNORMAL: Final = 1006
NORMAL: Final = 1000


async def serve_elsewhere(error: Exception, talk: Talk, exchange: Exchange) -> None:
    """Serve a socket whose `talk` failed with this error: by its owner, if it is elsewhere, and by this
    server once that has taken it over.

    Raises Closed when the socket is to be closed, and any other error as it is.
    """
    services = exchange.services
    until = trio.current_time() + services.lease_seconds + TAKEOVER_SECONDS
    pause = FIRST_PAUSE
    while True:
        if (reason := unsettled(error)) is not None:
            raise Closed(TRY_LATER, reason)
        if not isinstance(error, OwnedElsewhere):
            raise error
        name = error.place.name
        if exchange.began.is_set() or from_server(websocket):
            raise Closed(RESTARTS, f"The conversation is on the server {name} now")
        services.supervisor.forget_owner(error.conversation_id)  # the socket stays longer
        try:
            async with connected(services.owners, error.place) as owner:
                await relay(exchange, owner)
        except Unreached as problem:
            if trio.current_time() + pause > until:
                raise Closed(TRY_LATER, f"The server {name} is away: {problem}"[:120]) from None
        await trio.sleep(pause)
        pause = min(2 * pause, MOST_PAUSE)
        try:
            await talk(exchange)
        except Exception as again:  # noqa: BLE001 - looked at above
            error = again
        else:
            return


@asynccontextmanager
async def connected(owners: Owners, place: Place) -> AsyncIterator[WebSocketConnection]:
    """The same socket of another server, for the block, which ends without a close handshake.

    Raises Unreached where there is none; Closed, with RESTARTS, when the server dies.
    """
    scope = websocket.scope
    target, query = scope["raw_path"], without_key(scope["query_string"])
    client = (scope.get("client") or ("",))[0]
    stream, host = await owners.dial(place.address)
    failure: Exception | None = None
    lost = True
    try:
        with owners.alive(place):
            async with trio.open_nursery() as nursery:
                with trio.move_on_after(ANSWER_SECONDS) as opening:
                    connection = await wrap_client_stream(
                        nursery,
                        stream,
                        host,
                        (target + (b"?" + query if query else b"")).decode("latin-1"),
                        extra_headers=_without_host(to_owner(scope["headers"], owners.key, client)),
                        message_queue_size=1,
                        max_message_size=FRAME_BYTES,
                        receive_buffer_size=READ_BYTES,
                    )
                if opening.cancelled_caught:
                    failure = Unreached(f"{place.address} does not answer")
                else:
                    try:
                        yield connection
                    except Exception as error:  # noqa: BLE001 - raised below, not in a group
                        failure = error
                lost = False
                nursery.cancel_scope.cancel()
    except* ConnectionRejected as group:
        failure = Unreached(f"it refused the socket: {group.exceptions[0]}")
    except* (ProtocolError, h11.ProtocolError, ConnectionClosed):
        lost = True
    finally:
        await trio.aclose_forcefully(stream)
    if failure is not None:
        raise failure
    if lost:
        raise Closed(RESTARTS, f"The server {place.name} is gone")


def _without_host(headers: list[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name != b"host"]


async def relay(exchange: Exchange, owner: WebSocketConnection) -> None:
    """Pass frames on, in both directions, each as fast as the other side reads. Raises Closed as the owner
    closes."""

    async def down() -> None:
        while True:
            await websocket.send(await owner.get_message())

    async def up(frame: str | bytes | None) -> None:
        await owner.send_message(frame if frame is not None else b"")

    try:
        await exchange.run(down, take=up)
    except ConnectionClosed as closed:
        raise end_of(closed) from None


def end_of(closed: ConnectionClosed) -> Closed:
    """How the client's socket is closed after the owner's."""
    reason = closed.reason
    if reason is None or reason.code == ABNORMAL:
        return Closed(RESTARTS, "The connection to the conversation's server was lost")
    return Closed(NORMAL if reason.code == NO_STATUS else reason.code, reason.reason or "")
