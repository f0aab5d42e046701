"""The headers between client, server and owner: what is passed on, and what is not. Pure."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote_plus

from gateway.configuration.address import KEY_HEADER
from gateway.http.access import KEY_PARAMETER
from supervisor.http_headers import OF_A_CONNECTION, Headers, named_by_connection

SERVER_HEADER: Final = "X-Ostler-Server"
"""The key of the servers, in requests from one to another."""

MOVED_HEADER: Final = "X-Ostler-Moved"
"""In the answer of a server that does not have the conversation."""

MISDIRECTED: Final = 421
"""The status of that answer."""

_FORWARDED_FOR: Final = b"x-forwarded-for"

_KEYS: Final = frozenset(
    {b"authorization", b"cookie", KEY_HEADER.lower().encode(), SERVER_HEADER.lower().encode()}
)
"""What authenticates the client: this server has judged it."""

_OWN: Final = frozenset({b"content-length", b"expect", b"origin", _FORWARDED_FOR})
"""What this server answers, or sends in its own form."""

_HANDSHAKE: Final = b"sec-websocket-"


def to_owner(headers: Headers, key: str, client: str) -> list[tuple[bytes, bytes]]:
    """The headers of a client's request, from this address, as they go to the owner. Those of its body and of
    a WebSocket's handshake are the caller's."""
    headers = [(name.lower(), value) for name, value in headers]
    left_out = OF_A_CONNECTION | _KEYS | _OWN | named_by_connection(headers)
    kept = [
        (name, value) for name, value in headers if name not in left_out and not name.startswith(_HANDSHAKE)
    ]
    known = [value for name, value in headers if name == _FORWARDED_FOR]
    path = b", ".join([*known, client.encode("latin-1", "replace")])
    return [*kept, (_FORWARDED_FOR, path), (SERVER_HEADER.lower().encode(), key.encode())]


def to_client(headers: Headers) -> list[tuple[str, str]]:
    """The headers of the owner's answer, as they go to the client. This server adds those of CORS."""
    headers = [(name.lower(), value) for name, value in headers]
    left_out = OF_A_CONNECTION | named_by_connection(headers) | {b"date", b"x-content-type-options"}
    return [
        (name.decode("latin-1").title(), value.decode("latin-1"))
        for name, value in headers
        if name not in left_out and (name, value.lower()) != (b"vary", b"origin")
    ]


def without_key(query: bytes) -> bytes:
    """A query without the client's key."""
    parts = query.split(b"&")
    return b"&".join(
        part for part in parts if unquote_plus(part.partition(b"=")[0].decode("latin-1")) != KEY_PARAMETER
    )
