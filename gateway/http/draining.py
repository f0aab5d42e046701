"""Early answers: one that is there before the request's body has come waits for the rest of the body.

A client that sends its body in pieces looks for the answer when it has sent them all. An answer in between
ends the connection, since what else comes on it would be read as the next request: the client meets the end
(EPIPE) instead of the answer. So whatever answers early - an unknown route, a missing key, a wrong method or
type, a body that is too large - the rest is read and thrown away first, within bounds. Then the connection
can be used again, too.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

Application = Callable[[Any, Any, Any], Awaitable[None]]
"""Takes scope, receive and send, as ASGI has them."""

DRAIN_SECONDS: Final = 5.0
"""Seconds for the rest of a body that nobody reads. Then the answer goes out, and the connection ends."""

SHORT_SECONDS: Final = 2.0
"""The same for a client without a key, and for a body that is too large: what is on its way is read, what is
not sent is not waited for."""

ANNOUNCING: Final = frozenset({b"content-length", b"transfer-encoding"})

IN_SHORT: Final = frozenset({401, 413})

TIMED_OUT: Final = 408
"""The answer to a body that took too long already: its rest is not waited for."""


def drained(application: Application, most: int, seconds: float = DRAIN_SECONDS) -> Application:
    """Wrap the application. `most` bytes of a body, and `seconds`, are spent on the rest of one."""

    async def whole(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await application(scope, receive, send)
            return
        if has_no_body(scope):
            await application(scope, receive, send)
            return
        body = _Body(receive, most)
        # One that says that it is larger is not read at all: its end is out of reach.
        readable = _declared_length(scope) <= most

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


def _declared_length(scope: Any) -> int:
    """What the request says of its body's length; 0 where it says nothing that can be read."""
    found = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
    return int(found) if found.isdigit() else 0


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
        """Read the rest, or let the application read it that is at it."""
        if self._done.is_set():
            return
        self._unwanted = True
        with trio.move_on_after(seconds):
            while not self._done.is_set():
                if self._reading:
                    await self._done.wait()
                else:
                    await self.receive()
