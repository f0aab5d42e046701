"""Wrappers of the application: malformed requests are refused, and early answers wait for the body.

Hypercorn passes on requests that Quart cannot read; without a check they would be internal errors.

A client that sends its body in pieces reads the answer after the last piece. An answer before that would have
to end the connection, since the rest of the body would be read as the next request: the client would get
EPIPE instead of the answer. So on an early answer - an unknown route, a missing key, a wrong method or type,
a body that is too large - the rest is read and discarded first, within bounds. The connection can then be
reused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import urlsplit

import h11
import orjson
import structlog
import trio
import wsproto.utilities

from gateway.http.throttled_log import ThrottledLog

log = structlog.get_logger(__name__)

Application = Callable[[Any, Any, Any], Awaitable[None]]
"""Takes scope, receive and send, as ASGI has them."""

VERSIONS: Final = frozenset({"1.0", "1.1"})
UNKNOWN_VERSION: Final = 505
"""The status of a request in any other, such as HTTP/2 by prior knowledge."""

LABEL_CHARACTERS: Final = 63
"""Longest part of a name between two dots (RFC 1035)."""

PEERS_FAULTS: Final = (
    h11.ProtocolError,
    wsproto.utilities.ProtocolError,
    trio.BusyResourceError,  # Hypercorn answers a broken body from two tasks
)

DRAIN_SECONDS: Final = 5.0
"""Seconds for the rest of a discarded body. Then the answer is sent, and the connection ends."""

SHORT_SECONDS: Final = 2.0
"""The same for a client without a key, and for a body that is too large: enough for data in transit, not for
data that the client has yet to send."""

ANNOUNCING: Final = frozenset({b"content-length", b"transfer-encoding"})

IN_SHORT: Final = frozenset({401, 413})

TIMED_OUT: Final = 408
"""The status for a body that already took too long: its rest is not waited for."""

FAULTS: Final = ThrottledLog(log, "info", "client violated the protocol")


def is_peers_fault(error: BaseException) -> bool:
    """Whether invalid bytes of a client caused the error; then it is not the operator's concern."""
    if isinstance(error, BaseExceptionGroup):
        return all(is_peers_fault(each) for each in error.exceptions)
    return isinstance(error, PEERS_FAULTS)


def note_peers_fault(error: BaseException) -> None:
    """Log it, throttled: a client without a key must not fill the disk."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    FAULTS.say(error=type(error).__name__)


def refuse_malformed(application: Application) -> Application:
    """Wrap the application with a check of version, target and Host header; it answers 505 or 400."""

    async def checked(scope: Any, receive: Any, send: Any) -> None:
        problem = _problem(scope) if scope["type"] in ("http", "websocket") else None
        if problem is not None:
            await _answer(scope["type"], *problem, send)
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


def _problem(scope: Mapping[str, Any]) -> tuple[int, str] | None:
    """The status of the refusal, and its reason."""
    if scope["http_version"] not in VERSIONS:
        return UNKNOWN_VERSION, "Only HTTP/1.1 is spoken here."
    if not scope["path"]:
        return 400, "The request target has no path."
    if not scope["path"].startswith("/"):  # a URL, then (RFC 9112, section 3.2.2)
        try:
            urlsplit(scope["path"])
        except ValueError:
            return 400, "The request target is not a URL."
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    if not all(_is_host(value.decode("latin-1")) for value in hosts):
        return 400, "The Host header is not a host name."
    return None


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


async def _answer(kind: str, status: int, problem: str, send: Any) -> None:
    if kind == "websocket":
        await send({"type": "websocket.close", "code": 1002, "reason": problem})
        return
    body = orjson.dumps({"detail": problem})
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"x-content-type-options", b"nosniff"),
    ]
    if status == UNKNOWN_VERSION:
        headers.append((b"connection", b"close"))  # what follows is in that version, too
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def drained(application: Application, most: int, seconds: float = DRAIN_SECONDS) -> Application:
    """Wrap the application. At most `most` bytes are drained of a body, for at most `seconds`."""

    async def whole(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or has_no_body(scope):
            await application(scope, receive, send)
            return
        body = _Body(receive, most)
        # A body that announces a larger size is not drained: its end is out of reach.
        length = next((value for name, value in scope["headers"] if name == b"content-length"), b"")
        readable = not length.isdigit() or int(length) <= most

        async def answer(message: Any) -> None:
            if message["type"] == "http.response.start" and readable and message["status"] != TIMED_OUT:
                short = message["status"] in IN_SHORT
                await body.drain(min(seconds, SHORT_SECONDS) if short else seconds)
            await send(message)

        await application(scope, body.receive, answer)

    return whole


def has_no_body(scope: Any) -> bool:
    """Whether nothing of a body can come: in HTTP/1 one is announced (RFC 9112, section 6.3)."""
    return scope["http_version"] < "2" and not any(name in ANNOUNCING for name, _ in scope["headers"])


class _Body:
    """A request's body on its way to the application. After `drain` began nothing of it is passed on."""

    def __init__(self, receive: Callable[[], Awaitable[Any]], most: int) -> None:
        self._receive = receive
        self._left = most
        self._unwanted = False
        self._reading = 0
        self._done = trio.Event()

    async def receive(self) -> Any:
        """The next message for the application."""
        self._reading += 1
        try:
            message = await self._receive()
        finally:
            self._reading -= 1
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._done.set()
        if not self._unwanted:
            return message
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            self._done.set()
        return {**message, "body": b""} if message["type"] == "http.request" else message

    async def drain(self, seconds: float) -> None:
        """Discard the rest; if the application is reading already, let it do that."""
        if self._done.is_set():
            return
        self._unwanted = True
        with trio.move_on_after(seconds):
            while not self._done.is_set():
                if self._reading:
                    await self._done.wait()
                else:
                    await self.receive()
