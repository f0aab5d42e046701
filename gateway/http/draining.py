"""Early answers: an answer that is ready before the request's body has arrived waits for the rest of the
body.

A client that sends its body in pieces reads the answer after the last piece. An answer before that would have
to end the connection, since the rest of the body would be read as the next request: the client would get
EPIPE instead of the answer. So on an early answer - an unknown route, a missing key, a wrong method or type,
a body that is too large - the rest is read and discarded first, within bounds. The connection can then be
reused.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

import trio

Application = Callable[[Any, Any, Any], Awaitable[None]]
"""Takes scope, receive and send, as ASGI has them."""

DRAIN_SECONDS: Final = 5.0
"""Seconds for the rest of a discarded body. Then the answer is sent, and the connection ends."""

SHORT_SECONDS: Final = 2.0
"""The same for a client without a key, and for a body that is too large: enough for data in transit, not for
data that the client has yet to send."""

ANNOUNCING: Final = frozenset({b"content-length", b"transfer-encoding"})

IN_SHORT: Final = frozenset({401, 413})

TIMED_OUT: Final = 408
"""The status for a body that already took too long: its rest is not waited for."""


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
