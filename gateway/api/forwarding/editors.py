"""The socket of an editor, relayed to the server that has its session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import orjson
import trio
from quart import websocket
from trio_websocket import ConnectionClosed, WebSocketConnection

from gateway.api.forwarding.owners import Unreached
from gateway.api.forwarding.requests import from_server
from gateway.api.forwarding.sockets import connected, end_of
from gateway.api.sockets.websocket import TRY_LATER, Closed
from supervisor.acp import RpcError
from supervisor.acp.errors import INTERNAL_ERROR
from supervisor.machines.errors import OwnedElsewhere, Place

if TYPE_CHECKING:
    from gateway.api.acp.methods import AcpMethods
    from gateway.api.acp.peer import Id, Peer
    from gateway.api.services import Services

INITIALIZE: Final = "initialize"


class SessionsElsewhere:
    """The methods of one client, as long as its sessions are here. With the first request for a session of
    another server the whole socket goes there, and stays: so a client has sessions of one server on one
    connection."""

    def __init__(self, services: Services, peer: Peer, methods: AcpMethods) -> None:
        self._services = services
        self._peer = peer
        self._methods = methods
        self._place: Place | None = None
        self._initialize: tuple[Id, bytes] | None = None
        self._first = b""
        self._leaving = trio.Event()
        self._relaying = trio.Event()
        self._owner: WebSocketConnection | None = None

    async def take(self, frame: str | bytes | None) -> None:
        """Handle a message of the client, here or there."""
        if not self._leaving.is_set():
            await self._peer.take(frame, self)
            return
        await self._relaying.wait()  # within the seconds of a handshake, or the socket is closed
        assert self._owner is not None
        await self._owner.send_message(frame if frame is not None else b"")

    async def request(self, request_id: Id, method: str, params: Mapping[str, Any]) -> Any:
        """See `peer.Methods`. The answer to what is relayed comes from its server."""
        asked = {"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}
        if method == INITIALIZE:
            self._initialize = request_id, orjson.dumps(asked)
        try:
            return await self._methods.request(request_id, method, params)
        except OwnedElsewhere as error:
            name = error.place.name
            self._services.supervisor.forget_owner(error.conversation_id)  # the socket stays longer
            if self._leaving.is_set() or self._methods.has_sessions or from_server(websocket):
                detail = (
                    f"The session is on the server {name}, and this connection has sessions of another "
                    "server. Open another connection for it."
                )
                raise RpcError(INTERNAL_ERROR, detail, {"server": name}) from None
            self._place, self._first = error.place, orjson.dumps(asked)
            self._leaving.set()
        await trio.sleep_forever()
        raise AssertionError  # the end of the socket cancels the wait

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """See `peer.Methods`."""
        self._methods.notify(method, params)

    async def run(self) -> None:
        """Relay, once that is wanted. Raises Closed, when the other server ends it, or is away."""
        await self._leaving.wait()
        assert self._place is not None
        try:
            async with connected(self._services.owners, self._place) as owner:
                if self._initialize is not None:
                    request_id, frame = self._initialize
                    await owner.send_message(frame)
                    # The client has the same answer from this server.
                    while orjson.loads(await owner.get_message()).get("id") != request_id:
                        pass
                await owner.send_message(self._first)
                self._owner = owner
                self._relaying.set()
                while True:
                    await websocket.send(await owner.get_message())
        except ConnectionClosed as closed:
            raise end_of(closed) from None
        except Unreached as problem:
            raise Closed(TRY_LATER, f"The server {self._place.name} is away: {problem}"[:120]) from None
