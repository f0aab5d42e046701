"""Malformed requests: answered with 400 before the application sees them, and not logged as errors.

Hypercorn passes on requests that Quart cannot read; without this check they would be internal errors.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

import h11
import orjson
import structlog
import trio
import wsproto.utilities

from gateway.throttled_log import ThrottledLog

log = structlog.get_logger(__name__)

Application = Callable[[Any, Any, Any], Awaitable[None]]
"""Takes scope, receive and send, as ASGI has them."""

LABEL_CHARACTERS: Final = 63
"""Longest part of a name between two dots (RFC 1035)."""


PEERS_FAULTS: Final = (
    h11.ProtocolError,
    wsproto.utilities.ProtocolError,
    trio.BusyResourceError,  # Hypercorn answers a broken body from two tasks
)


FAULTS: Final = ThrottledLog(log, "info", "client violated the protocol")


def is_peers_fault(error: BaseException) -> bool:
    """Whether invalid bytes of a client caused the error; then it is not the operator's concern."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_peers_fault(each) for each in error.exceptions)
    if isinstance(error, PEERS_FAULTS):
        return True
    # Not imported before a client speaks it (connection.py): nobody raises what is not there.
    http2 = sys.modules.get("h2.exceptions")
    return http2 is not None and isinstance(error, http2.ProtocolError)


def note_peers_fault(error: BaseException) -> None:
    """Log it, throttled: a client without a key must not fill the disk."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    FAULTS.say(error=type(error).__name__)


def refuse_malformed(application: Application) -> Application:
    """Wrap the application with a check of the target and the Host header; it answers 400."""

    async def checked(scope: Any, receive: Any, send: Any) -> None:
        problem = _problem(scope) if scope["type"] in ("http", "websocket") else None
        if problem is not None:
            await _answer(scope["type"], problem, send)
            return
        try:
            await application(scope, receive, send)
        except PEERS_FAULTS as error:
            note_peers_fault(error)
        except BaseExceptionGroup as group:
            faults, others = group.split(PEERS_FAULTS)
            if faults is None:
                raise
            note_peers_fault(faults)
            if others is not None:
                raise others from None  # a cancellation of the connection, as a rule

    return checked


def _problem(scope: Mapping[str, Any]) -> str | None:
    if not scope["path"]:
        return "The request target has no path."
    if not _is_target(scope["path"]):
        return "The request target is not a URL."
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    if not all(_is_host(value.decode("latin-1")) for value in hosts):
        return "The Host header is not a host name."
    return None


def _is_target(path: str) -> bool:
    """Whether it is a path, or a URL (RFC 9112, section 3.2.2) that can be taken apart."""
    if path.startswith("/"):
        return True
    try:
        urlsplit(path)
    except ValueError:
        return False
    return True


@lru_cache(maxsize=64)
def _is_host(header: str) -> bool:
    if header.startswith("["):
        return True  # an address, without labels
    name = header.partition(":")[0]
    if not all(0 < len(label) <= LABEL_CHARACTERS for label in name.removesuffix(".").split(".")):
        return not name
    try:
        name.encode("idna")
    except UnicodeError:
        return False
    return True


async def _answer(kind: str, problem: str, send: Any) -> None:
    if kind == "websocket":
        await send({"type": "websocket.close", "code": 1002, "reason": problem})
        return
    body = orjson.dumps({"detail": problem})
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 400, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
