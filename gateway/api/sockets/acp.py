"""`/sockets/acp` and `/acp`: Ostler as an ACP agent, one JSON-RPC message in each text frame.

The first is for Ostler's own bridge, whose frames of updates have the position before them. The second is the
remote transport of the ACP proposal, in its WebSocket profile.
"""

from __future__ import annotations

import re
import uuid
from typing import Final

import trio
from quart import Response

from gateway.api.acp.methods import AcpMethods, Choice
from gateway.api.acp.peer import Peer
from gateway.api.requests.reading import Handshake
from gateway.api.services import Services
from gateway.api.sockets.exchange import Exchange, Part, Take, Talk
from gateway.api.sockets.handshake import serve_socket
from gateway.api.sockets.websocket import TRY_LATER, send_text
from supervisor.acp.schema import NAME_CHARS

CLIENT: Final = re.compile(r"[0-9A-Za-z-]{8,64}")
"""The id of a bridge, which it keeps over its connections."""

CONNECTION: Final = "Acp-Connection-Id"
"""The header with the name of a connection, as the proposal has it."""

COUNTED_AS: Final = "acp"
"""Where its sockets are counted; no conversation has such an id."""


async def serve_acp(services: Services, *, bridge: bool) -> Response | None:
    """Serve the current WebSocket; see `serve_socket`. The turns of its sessions continue after it."""
    connection = str(uuid.uuid4())

    def read(query: Handshake) -> tuple[str, Talk]:
        choice = _choice(query, connection)

        async def talk(exchange: Exchange) -> None:
            unreadable, failure = trio.Event(), None
            async with trio.open_nursery() as nursery:
                peer = Peer(send_text, nursery)
                position = _marked if bridge else _plain
                methods = AcpMethods(services, peer, choice, position, nursery, unreadable)
                take, parts = _taking(services, peer, methods)
                try:
                    await exchange.run(
                        *parts,
                        take=take,
                        reasons=((unreadable, TRY_LATER, "The journal cannot be read now"),),
                    )
                except Exception as error:  # noqa: BLE001 - raised below, not in a group
                    failure = error
                    nursery.cancel_scope.cancel()
            if failure is not None:
                raise failure

        return COUNTED_AS, talk

    named = {CONNECTION: connection}
    return await serve_socket(services, read, "Too many ACP connections", named)


def _taking(services: Services, peer: Peer, methods: AcpMethods) -> tuple[Take, tuple[Part, ...]]:
    """What takes the client's messages, and what runs meanwhile."""
    if services.machines is None:
        return lambda frame: peer.take(frame, methods), ()
    from gateway.api.forwarding.editors import SessionsElsewhere

    sessions = SessionsElsewhere(services, peer, methods)
    return sessions.take, (sessions.run,)


def _choice(query: Handshake, connection: str) -> Choice:
    """What the handshake says. Raises ValueError."""
    client, agent, model = (query.text(name) for name in ("client", "agent", "model"))
    if client is not None and not CLIENT.fullmatch(client):
        raise ValueError("client")
    if len(agent or "") > NAME_CHARS or len(model or "") > NAME_CHARS:
        raise ValueError("agent")
    return Choice(client=client or connection, agent=agent or None, model=model or None)


def _plain(frame: bytes, _: str) -> bytes:
    return frame


def _marked(frame: bytes, position: str) -> bytes:
    """The frame after a line that names its session and the position behind it."""
    session = frame[_SESSION : _SESSION + 36]
    return b"@%b %b\n%b" % (session, position.encode(), frame)


_SESSION: Final = len(b'{"jsonrpc":"2.0","method":"session/update","params":{"sessionId":"')
