"""One WebSocket as the gateway handles it: handshake, authentication, closing, inbound messages."""

from __future__ import annotations

from typing import Final

import orjson
import trio
from quart import Response, websocket

from gateway.address import KEY_HEADER
from gateway.auth import KEY_PARAMETER, from_header, is_known
from gateway.config import Config
from gateway.reading import Query

POLICY_UNAUTHENTICATED: Final = 4001
UNKNOWN_CONVERSATION: Final = 4004
TRY_LATER: Final = 1013
GOING_AWAY: Final = 1001
INTERNAL_ERROR: Final = 1011

CLOSE_SECONDS: Final = 2.0
"""How long we wait for the client's answer to our close. Ending the connection sooner, with its frames
unread, would make the kernel reset it and the client lose the close code."""


class Refused(Exception):
    """The handshake is not accepted: HTTP 403 with an empty body, as the wire has it."""


class Closed(Exception):
    """The socket is to be closed with this code."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


def refusal() -> Response:
    """The answer to a refused handshake."""
    return Response(b"", status=403)


async def accept(config: Config, query: Query) -> None:
    """Authenticate and accept the current WebSocket, whose handshake had this query.

    A key in the query or in the header is checked before the handshake is answered (Refused). Without
    one, and with keys configured, the first text frame must be `{"type": "auth", "session_api_key": ...}`
    within `config.auth_seconds` (Closed, 4001).
    """
    keys = config.session_api_keys
    presented = query.text(KEY_PARAMETER)
    if presented is None:
        presented = from_header(websocket.headers.get(KEY_HEADER))
    if keys and presented is not None and not is_known(presented, keys):
        raise Refused
    await websocket.accept()
    if not keys or presented is not None:
        return
    frame: str | bytes | None = None
    with trio.move_on_after(config.auth_seconds):
        frame = await websocket.receive()
    if not is_known(_key_of(frame), keys):
        raise Closed(POLICY_UNAUTHENTICATED, "Authentication failed")


async def close(code: int, reason: str) -> None:
    """Close the current WebSocket and wait, for at most CLOSE_SECONDS, until the client has answered.

    The answer ends the connection, which cancels the handler that waits here.
    """
    await websocket.close(code, reason)
    with trio.move_on_after(CLOSE_SECONDS):
        while True:
            await websocket.receive()
            await trio.lowlevel.checkpoint()


async def send_text(data: bytes) -> None:
    """Send JSON bytes as one text frame.

    On a connection that is gone this returns at once and without a checkpoint: whoever sends in a loop
    must have one, or starve every other task until the reader is told of the end.
    """
    await websocket.send(data.decode())


def is_auth_frame(obj: object) -> bool:
    """Whether an inbound object is an authentication frame. Later ones are ignored."""
    return isinstance(obj, dict) and obj.get("type") == "auth"


def _key_of(frame: str | bytes | None) -> str | None:
    """The key in a first-message authentication, None if the frame is anything else."""
    if not isinstance(frame, str):
        return None
    try:
        obj = orjson.loads(frame)
    except orjson.JSONDecodeError:
        return None
    key = obj.get(KEY_PARAMETER) if is_auth_frame(obj) else None
    return key if isinstance(key, str) else None
