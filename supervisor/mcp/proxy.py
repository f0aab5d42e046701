"""A loopback proxy for a remote MCP server behind a login: it adds the current token.

Agents keep the headers that they get at their start, and access tokens expire before conversations end. So if
a token expires, the agent gets this address instead. The agent knows only an unguessable path, and the token
never leaves this process. One proxy serves the servers of one agent, and ends with it.
"""

from __future__ import annotations

import importlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

import attrs
import h11
import structlog
import trio

from supervisor.agent_connection import BODY_SECONDS, AgentConnection, Left
from supervisor.http_headers import OF_A_CONNECTION

if TYPE_CHECKING:
    import httpx2

log = structlog.get_logger(__name__)

HOST: Final = "127.0.0.1"

HEAD_SECONDS: Final = 75.0
"""Seconds within which a request's head must arrive on a connection."""

HELD_BYTES: Final = 4 * 1024 * 1024
"""Bytes held of requests' bodies, for all connections of one agent together. A body that is held whole can be
sent again with another token. Beyond the limit bodies are streamed, and not held."""

MAX_CONNECTIONS: Final = 64
"""Most connections of one agent: it has a stream and a few calls per server open."""

CONNECT_SECONDS: Final = 10.0
WRITE_SECONDS: Final = 30.0
METHODS: Final = frozenset({b"GET", b"POST", b"DELETE"})
"""Those of MCP over streamable HTTP."""

NOT_PASSED_ON: Final = OF_A_CONNECTION | frozenset(b"host content-length authorization expect".split())
"""Headers of a request that are not forwarded: those of one connection, and those that the proxy sets."""

NOT_PASSED_BACK: Final = frozenset(
    b"connection keep-alive proxy-authenticate te trailer transfer-encoding upgrade www-authenticate "
    b"set-cookie".split()
)
"""Headers of an answer that are not forwarded: those of one connection, and those by which the agent would
log in past the proxy."""

GetToken = Callable[[str | None], Awaitable[str]]
"""Returns a valid token. Takes one that was refused. Raises NoToken."""


class NoToken(Exception):
    """There is no token. The message is one line for the agent. `for_now`: it may try again later."""

    def __init__(self, reason: str, *, for_now: bool = False) -> None:
        super().__init__(reason)
        self.for_now = for_now


@attrs.frozen
class Target:
    """A server: its address, and the source of its token."""

    url: str = attrs.field(repr=False)
    token: GetToken


def new_path() -> str:
    """An unguessable path: 256 random bits."""
    return secrets.token_urlsafe(32)


class Proxy:
    """Serves some targets, each under its path. Made by `serve`, which is a task of the caller's nursery."""

    def __init__(self, targets: Mapping[str, Target]) -> None:
        self._targets = dict(targets)
        self._client: httpx2.AsyncClient
        self._limit = trio.CapacityLimiter(MAX_CONNECTIONS)
        self.held_left = HELD_BYTES
        """Bytes that may still be held of bodies."""
        self.port = 0

    def url(self, path: str) -> str:
        """The address for the agent."""
        return f"http://{HOST}:{self.port}/{path}/mcp"

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled, which ends every connection. Raises OSError where it cannot listen."""
        # In a thread: half a second, the first time.
        await trio.to_thread.run_sync(importlib.import_module, "httpx2")
        import httpx2

        timeout = httpx2.Timeout(CONNECT_SECONDS, read=None, write=WRITE_SECONDS)
        limits = httpx2.Limits(max_connections=MAX_CONNECTIONS)
        listeners = await trio.open_tcp_listeners(0, host=HOST)
        self.port = listeners[0].socket.getsockname()[1]
        async with httpx2.AsyncClient(timeout=timeout, limits=limits) as self._client:
            task_status.started()
            await trio.serve_listeners(self._connection, listeners)

    async def _connection(self, stream: trio.SocketStream) -> None:
        try:
            self._limit.acquire_nowait()
        except trio.WouldBlock:
            return
        try:
            await _Exchange(stream, self).run()
        except (
            trio.BrokenResourceError,
            trio.ClosedResourceError,
            trio.TooSlowError,
            h11.ProtocolError,
            Left,
        ):
            pass
        except Exception:
            # One connection's fault: the agent's other servers continue.
            log.exception("cannot forward a request to an MCP server")
        finally:
            self._limit.release()

    async def answer(self, request: h11.Request, exchange: _Exchange) -> None:
        """Answer a request of the agent."""
        headers = {name.lower(): value for name, value in request.headers}
        # A web page could reach the port under its own name (DNS rebinding).
        if headers.get(b"host") not in (f"{HOST}:{self.port}".encode(), f"localhost:{self.port}".encode()):
            await exchange.refuse(421, "Host not allowed")
            return
        target = self._target(request.target)
        if target is None:
            await exchange.refuse(404, "no such MCP server")
        elif request.method not in METHODS:
            await exchange.refuse(405, "method not allowed by MCP")
        else:
            await self._pass_on(target, request, exchange)

    def _target(self, asked: bytes) -> Target | None:
        path = asked.partition(b"?")[0]
        found = None
        for each, target in self._targets.items():
            # All are compared, in constant time: the path is the key.
            if secrets.compare_digest(path, f"/{each}/mcp".encode()):
                found = target
        return found

    async def _pass_on(self, target: Target, request: h11.Request, exchange: _Exchange) -> None:
        import httpx2

        refused: str | None = None
        try:
            while True:
                token = await target.token(refused)
                if refused is not None and not exchange.body_is_held:
                    await exchange.refuse(503, "the login was renewed; try again")
                    return
                sent = self._client.build_request(
                    request.method.decode(),
                    target.url,
                    headers=[
                        *_kept(request.headers, NOT_PASSED_ON),
                        *exchange.length(request),
                        (b"Authorization", f"Bearer {token}".encode()),
                    ],
                    content=exchange.content(request.method == b"POST"),
                )
                response = await self._client.send(sent, stream=True)
                try:
                    if response.status_code == 401 and refused is None:
                        refused = token  # ended before its time: once more, with another one
                        continue
                    exchange.let_go()  # an answer may be a stream that lasts for hours
                    await exchange.send(
                        response.status_code,
                        _kept(response.headers.raw, NOT_PASSED_BACK),
                        response.aiter_raw(),
                    )
                    return
                finally:
                    with trio.CancelScope(shield=True), trio.move_on_after(1):
                        await response.aclose()
        except NoToken as error:
            await exchange.refuse(503 if error.for_now else 401, str(error))
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            log.info("MCP server is unreachable", error=type(error).__name__)
            await exchange.refuse(502, f"the MCP server is unreachable ({type(error).__name__})")


class _Exchange(AgentConnection):
    """One connection of the agent's: requests and their answers, one after the other."""

    def __init__(self, stream: trio.SocketStream, proxy: Proxy) -> None:
        super().__init__(stream)
        self._proxy = proxy
        self._body = bytearray()
        self.body_is_held = False
        """Whether the whole body is held, so that it can be sent again."""

    def content(self, anyway: bool) -> bytes | AsyncIterator[bytes] | None:
        """The body to send; `anyway`: an empty body as b"" instead of None."""
        if not self.body_is_held:
            return self._pieces()
        # An iterator, since the request and its answer would keep a reference to bytes.
        return self._whole() if self._body else b"" if anyway else None

    def length(self, request: h11.Request) -> list[tuple[bytes, bytes]]:
        """The length of a body, if it is known."""
        if self.body_is_held:
            return [(b"Content-Length", b"%d" % len(self._body))] if self._body else []
        return [(name, value) for name, value in request.headers if name.lower() == b"content-length"]

    async def run(self) -> None:
        while True:
            with trio.fail_after(HEAD_SECONDS):
                request = await self._next()
            if not isinstance(request, h11.Request):
                return
            self._begun = False
            try:
                await self._hold()
                await self._while_there(partial(self._proxy.answer, request, self))
            finally:
                self.let_go()
            if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
                return
            self._http.start_next_cycle()

    async def _hold(self) -> None:
        """Read the body until its end or until the budget is used up; at least the first piece, since most
        bodies are short or empty."""
        self._read, self.body_is_held = trio.Event(), False
        with trio.fail_after(BODY_SECONDS):
            while piece := await self._piece():
                self._body += piece
                self._proxy.held_left -= len(piece)
                if self._proxy.held_left <= 0:
                    return
        self.body_is_held = True

    async def _whole(self) -> AsyncIterator[bytes]:
        """The body that is held."""
        yield bytes(self._body)

    async def _pieces(self) -> AsyncIterator[bytes]:
        """The body: the held part, then the rest as it arrives."""
        yield self.let_go()
        while True:
            with trio.fail_after(BODY_SECONDS):
                piece = await self._piece()
            if not piece:
                return
            yield piece

    async def _piece(self) -> bytes:
        """The next piece of the body, nothing at its end."""
        event = await self._next()
        if isinstance(event, h11.Data):
            return bytes(event.data)
        if not isinstance(event, h11.EndOfMessage):
            raise Left
        self._read.set()
        return b""

    def let_go(self) -> bytes:
        """Release the held bytes from the budget, and return them."""
        body, self._body = bytes(self._body), bytearray()
        self._proxy.held_left += len(body)
        return body


def _kept(headers: Iterable[tuple[bytes, bytes]], without: frozenset[bytes]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in headers if name.lower() not in without]
