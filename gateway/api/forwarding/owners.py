"""The connections to other servers, and the news that one of them has died."""

from __future__ import annotations

import importlib
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import structlog
import trio

if TYPE_CHECKING:
    import httpx2

    from gateway.api.contract import Machines
    from supervisor.machines.errors import Place

log = structlog.get_logger(__name__)

CONNECTIONS: Final = 256
"""The most connections to one server for requests: commands and downloads take long."""

IDLE_CONNECTIONS: Final = 16
"""Those that are kept for the next requests."""

IDLE_SECONDS: Final = 30.0
"""How long: below the `Config.keep_alive_seconds` of the other server, or one would be used that ends."""

CONNECT_SECONDS: Final = 3.0
"""Seconds for a connection: a machine that is away does not refuse it."""

WAIT_SECONDS: Final = 5.0
"""Seconds to wait for one of CONNECTIONS."""

WRITE_SECONDS: Final = 60.0
"""Seconds for each piece of a body: as long as a client has for one."""

LOOK_SECONDS: Final = 1.0
"""Seconds between two looks at the list of servers, while something is asked of one of them."""

PROBES: Final = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""The kernel's probes of a silent connection: it ends within 25 seconds where the network between two servers
is cut, although both reach the database."""

OPTIONS: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in PROBES.items()),
)

ALIVE: Final = frozenset({"alive", "draining"})


class Unreached(Exception):
    """Nothing was sent: the request may be sent again. The message is one line."""


class Cut(Exception):
    """The connection ended before the answer: what became of the request is unknown. The message is one
    line."""


class Owners:
    """The connections from this server to others. `close` ends those that are kept."""

    def __init__(self, machines: Machines, key: str) -> None:
        self.machines = machines
        self.key = key
        self._transports: dict[str, httpx2.AsyncHTTPTransport] = {}
        self._opening = trio.Lock()
        self._asking: dict[int, set[trio.CancelScope]] = {}
        self._watched = False

    @contextmanager
    def alive(self, place: Place) -> Iterator[None]:
        """Cancel the block when the server is found to have died, or left."""
        scope = trio.CancelScope()
        asking = self._asking.setdefault(place.server, set())
        asking.add(scope)
        if not self._watched:
            self._watched = True
            trio.lowlevel.spawn_system_task(self._watch)
        try:
            with scope:
                yield
        finally:
            asking.discard(scope)
            if not asking:
                self._asking.pop(place.server, None)

    async def transport(self, address: str) -> httpx2.AsyncHTTPTransport:
        """What sends requests to this address."""
        found = self._transports.get(address)
        if found is not None:
            return found
        async with self._opening:
            if address not in self._transports:
                # In a thread: the first one imports the library, and certificates are files.
                self._transports[address] = await trio.to_thread.run_sync(_transport, address)
            return self._transports[address]

    async def dial(self, address: str) -> tuple[trio.SocketStream | trio.SSLStream[trio.SocketStream], str]:
        """Connect to this address; the stream, which the caller owns, and the Host header. Raises
        Unreached."""
        parts = urlsplit(address)
        encrypts = parts.scheme == "https"
        port = parts.port or (443 if encrypts else 80)
        try:
            with trio.fail_after(CONNECT_SECONDS):
                stream = await trio.open_tcp_stream(str(parts.hostname), port)
                for option in OPTIONS:
                    stream.setsockopt(*option)
                if not encrypts:
                    return stream, parts.netloc
                context = await trio.to_thread.run_sync(ssl.create_default_context)
                secure = trio.SSLStream(
                    stream, context, server_hostname=parts.hostname, https_compatible=True
                )
                await secure.do_handshake()
                return secure, parts.netloc
        except (OSError, trio.TooSlowError, trio.BrokenResourceError) as error:
            raise Unreached(f"{address} does not answer: {str(error) or 'no connection in time'}") from None

    async def close(self) -> None:
        """End the connections that are kept. Requests in progress fail."""
        for transport in self._transports.values():
            await transport.aclose()
        self._transports.clear()

    async def _watch(self) -> None:
        # A system task: no one request's nursery could own it. It ends with the last request.
        while self._asking:
            await trio.sleep(LOOK_SECONDS)
            if not self._asking:
                break
            try:
                alive = {each.server for each in await self.machines.servers() if each.state in ALIVE}
            except Exception as error:  # noqa: BLE001 - the database is away: no one is declared dead
                log.debug("servers not looked at", reason=str(error))
                continue
            for server in self._asking.keys() - alive:
                for scope in list(self._asking[server]):
                    scope.cancel()
        self._watched = False


def _transport(address: str) -> httpx2.AsyncHTTPTransport:
    importlib.import_module("httpx2")
    import httpx2

    encrypts = urlsplit(address).scheme == "https"
    return httpx2.AsyncHTTPTransport(
        # Without TLS the context is never used, and loading certificates takes a while.
        verify=ssl.create_default_context() if encrypts else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
        trust_env=False,
        limits=httpx2.Limits(
            max_connections=CONNECTIONS,
            max_keepalive_connections=IDLE_CONNECTIONS,
            keepalive_expiry=IDLE_SECONDS,
        ),
        socket_options=OPTIONS,
    )
