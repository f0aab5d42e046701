"""One WebSocket as the gateway handles it: handshake, authentication, closing, inbound messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import orjson
import trio
from quart import Response, websocket
from werkzeug.datastructures import Headers

from gateway.api.requests.reading import Handshake
from gateway.configuration.address import KEY_HEADER
from gateway.configuration.config import Config
from gateway.http.access import KEY_PARAMETER, Cors, Hosts, from_header, is_known
from gateway.http.client_connection import current
from gateway.http.message_buffer import MessageBuffer

POLICY_UNAUTHENTICATED: Final = 4001
UNKNOWN_CONVERSATION: Final = 4004
TOO_LARGE: Final = 1009
RESTARTS: Final = 1012
"""For a client that is to come back with its cursor: its conversation moves to another server."""
TRY_LATER: Final = 1013
GOING_AWAY: Final = 1001
INTERNAL_ERROR: Final = 1011

NO_HEADERS: Final[Mapping[str, str]] = {}

CLOSE_SECONDS: Final = 2.0
"""How long we wait for the client's answer to our close. Ending the connection sooner, with its frames
unread, would make the kernel reset it and the client lose the close code."""


AUTH_BYTES: Final = 16 * 1024
"""Largest message of a client that has not shown its key yet: any key fits."""


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


async def accept(
    config: Config, query: Handshake, headers: Mapping[str, str] = NO_HEADERS, *, trusted: bool = False
) -> MessageBuffer:
    """Authenticate and accept the current WebSocket, whose handshake had this query.

    A key in the query or in the header is checked before the handshake is answered (Refused). Without
    one, and with keys configured, the first text frame must be `{"type": "auth", "session_api_key": ...}`
    within `config.auth_seconds` (Closed, 4001). Without keys, Host and Origin must be right (Refused).
    Returns what receives its messages, of at most `config.max_message_bytes`. `headers` are added to the
    answer of the handshake. `trusted`: another server has authenticated the client.
    """
    keys = () if trusted else config.session_api_keys
    if not trusted and not Hosts(config).allows(websocket.headers.get("Host")):
        raise Refused
    if not trusted and not keys and not Cors(config).may_act(websocket.headers):
        raise Refused
    presented = query.text(KEY_PARAMETER)
    if presented is None:
        presented = from_header(websocket.headers.get(KEY_HEADER))
    # A wrong key is refused even where the first frame could still bring a right one.
    if keys and presented is not None and not is_known(presented, keys):
        raise Refused
    known = not keys or presented is not None
    connection = current.get()
    most = config.max_message_bytes
    # Strangers get little memory: a small first message, and no compression.
    inbox = connection.inbox(first=most if known else AUTH_BYTES, then=most, compressed=known)
    await websocket.accept(headers=Headers(headers))
    if not known:
        frame: str | bytes | None = None
        with trio.move_on_after(config.auth_seconds):
            frame = await _first(inbox)
        if not is_known(_key_of(frame), keys):
            inbox.stop()
            raise Closed(POLICY_UNAUTHENTICATED, "Authentication failed")
    connection.welcome = True
    return inbox


async def _first(inbox: MessageBuffer) -> str | bytes | None:
    """The first message, None if it was too large."""
    found: str | bytes | None = None

    async def receive() -> None:
        nonlocal found
        found = await websocket.receive()
        inbox.done()
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(receive)
        await inbox.too_large.wait()
        nursery.cancel_scope.cancel()
    return found


async def close(code: int, reason: str) -> None:
    """Close the current WebSocket and wait, for at most CLOSE_SECONDS, until the client has answered.

    The answer ends the connection, which cancels the handler that waits here.
    """
    await websocket.close(code, reason)
    with trio.move_on_after(CLOSE_SECONDS):
        while True:
            await websocket.receive()
            # `receive` need not wait, and a loop of it must not starve the reader.
            await trio.lowlevel.checkpoint()


async def send_text(data: bytes) -> None:
    """Send JSON bytes as one text frame.

    On a closed connection this returns at once, without a checkpoint. A loop of sends needs a checkpoint of
    its own, or it starves every other task, including the reader that notices the end.
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
