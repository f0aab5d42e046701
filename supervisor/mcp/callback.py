"""The loopback address that a browser returns to after a login; it takes one answer."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Final
from urllib.parse import parse_qs, urlsplit

import h11
import trio

PATH: Final = "/callback"

HEAD_BYTES: Final = 16 * 1024
HEAD_SECONDS: Final = 10.0
"""Limits of a request: a browser's takes milliseconds and a few kilobytes."""

MAX_CONNECTIONS: Final = 16

PAGE: Final = "<!doctype html><title>Ostler</title><p>{}</p>"
DONE: Final = "You are logged in. You can close this window."
REFUSED: Final = "The login was refused. You can close this window."
OTHER: Final = "This is not the answer to the current login."


class LoginRefused(Exception):
    """The authorization server answered with an error; one line."""


class Callback:
    """Waits for the answer to one login, from a browser or pasted. Answers to other logins are ignored."""

    def __init__(self) -> None:
        self._state: str | None = None
        self._given: dict[str, str] | None = None
        self._refused: str | None = None
        self._came = trio.Event()
        self.whole = False

    def expect(self, authorization_url: str, *, whole: bool = False) -> None:
        """Expect an answer with the `state` of this authorization URL.

        `whole`: the authorization server names itself in its answer (RFC 9207), so that a code alone is not
        enough.
        """
        self.whole = whole
        self._state = (parse_qs(urlsplit(authorization_url).query).get("state") or [""])[0]

    def take(self, callback_url: object, code: object = None) -> bool:
        """Check the URL that the browser was redirected to, or a copied code. Returns whether it is the
        answer.

        An error of the authorization server counts as an answer.
        """
        if isinstance(code, str) and code and self._state and not self.whole:
            return self._answer({"code": code.strip(), "state": self._state})
        if not isinstance(callback_url, str):
            return False
        try:
            query = {
                name: values[0] for name, values in parse_qs(urlsplit(callback_url.strip()).query).items()
            }
        except ValueError:
            return False
        state = query.get("state", "")
        if not self._state or not secrets.compare_digest(state.encode(), self._state.encode()):
            return False
        if "error" in query:
            self._refused = f"{query['error']} {query.get('error_description', '')}".strip()[:500]
            self._came.set()
            return True
        if not query.get("code"):
            return False
        return self._answer({key: query[key] for key in ("code", "state", "iss") if key in query})

    def _answer(self, given: dict[str, str]) -> bool:
        if not self._came.is_set():
            self._given = given
            self._came.set()
        return True

    async def answer(self) -> dict[str, str]:
        """Wait for the answer: `code`, `state`, perhaps `iss`. Raises LoginRefused."""
        await self._came.wait()
        if self._given is None:
            raise LoginRefused(f"the login was refused: {self._refused}")
        return self._given

    @asynccontextmanager
    async def listening(self, port: int = 0) -> AsyncIterator[str]:
        """Serve the loopback address while the block runs; yields its URL. `port` is tried first, else any
        free one."""
        try:
            listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
        except OSError:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        found = listeners[0].socket.getsockname()[1]
        limit = trio.CapacityLimiter(MAX_CONNECTIONS)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(trio.serve_listeners, partial(self._serve, limit), listeners))
            yield f"http://127.0.0.1:{found}{PATH}"
            nursery.cancel_scope.cancel()

    async def _serve(self, limit: trio.CapacityLimiter, stream: trio.SocketStream) -> None:
        try:
            limit.acquire_nowait()
        except trio.WouldBlock:
            return
        try:
            with trio.move_on_after(HEAD_SECONDS):
                await self._one(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.ProtocolError):
            pass
        finally:
            limit.release()

    async def _one(self, stream: trio.SocketStream) -> None:
        connection = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        while (event := connection.next_event()) is h11.NEED_DATA:
            connection.receive_data(await stream.receive_some(HEAD_BYTES))
        if not isinstance(event, h11.Request):
            return
        target = event.target.decode("ascii", "replace")
        status, words = 404, OTHER
        if event.method == b"GET" and urlsplit(target).path == PATH:
            taken = self.take(target)
            status, words = (200, REFUSED if self._refused else DONE) if taken else (400, OTHER)
        body = PAGE.format(words).encode()
        headers = [
            ("Content-Type", "text/html; charset=utf-8"),
            ("Content-Length", str(len(body))),
            ("Cache-Control", "no-store"),
            ("Referrer-Policy", "no-referrer"),
            ("Content-Security-Policy", "default-src 'none'"),
            ("Connection", "close"),
        ]
        for part in (
            h11.Response(status_code=status, headers=headers),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            await stream.send_all(connection.send(part) or b"")
