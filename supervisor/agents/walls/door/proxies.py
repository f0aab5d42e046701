"""The two doors of an agent: to the APIs of its keys, and to the hosts that it may reach."""

from __future__ import annotations

import functools
import importlib
import ipaddress
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import attrs
import h11
import structlog
import trio

from supervisor.agent_connection import CHUNK_BYTES, HEAD_BYTES
from supervisor.agents.walls.door.exchange import Exchange, length
from supervisor.agents.walls.door.hosts import VARIABLE, AllowList, WayOut, inner, is_literal, place
from supervisor.agents.walls.door.rewiring import PREFIX, OtherKey, Upstream, basic
from supervisor.agents.walls.door.shim import API_PORT, HOST
from supervisor.fairness import share
from supervisor.http_headers import Headers, passed_on
from supervisor.patience import in_time

if TYPE_CHECKING:
    import httpx2

log = structlog.get_logger(__name__)

CONNECT_SECONDS: Final = 10.0
"""Seconds for a connection to a host, for all of its addresses together."""

LOOKUP_SECONDS: Final = 10.0
"""Seconds for the addresses of a host."""

LOOKUPS: Final = 4
"""Threads that look up hosts for one agent at a time: each may hang for as long as the resolver does."""

ADDRESSES_MOST: Final = 4
"""Addresses of a host that are tried."""

ASKED_MOST: Final = 32
"""Requests of one agent that wait for the head of an answer at a time: each may need a thread to look up its
API's host. Agents with helpers ask about ten at a time."""

KEPT_CONNECTIONS: Final = 8
KEPT_SECONDS: Final = 30.0
"""Connections to APIs that are kept for the next requests, and for how long. APIs keep them for longer."""

WRITE_SECONDS: Final = 60.0
"""Seconds for each piece of a request's body, to the API or host."""

CLOSE_SECONDS: Final = 1.0
"""Seconds to end an answer that is not wanted any more."""

TUNNEL_SECONDS: Final = 600.0
"""Seconds without a byte after which a tunnel is closed."""

REFUSAL_SECONDS: Final = 60.0
"""Seconds for which a host that was refused is not reported again."""

REFUSALS_MOST: Final = 20
"""Hosts that are reported within that time."""

NOT_ASKED: Final = frozenset({b"host", b"content-length", b"expect"})
"""Headers of a request that are written again for the server behind the door."""

NOT_ANSWERED: Final = frozenset({b"alt-svc"})
"""Headers of an answer that are for the server's own address alone."""

NUMBER_DIGITS: Final = 6
"""Digits of an upstream's number in a path."""

HTTP_PORT: Final = 80

API_PLACES: Final = frozenset({(HOST, API_PORT), ("localhost", API_PORT)})
"""The door to the APIs, for a client that asks its proxy for it although NO_PROXY names it."""

PROBES: Final = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 60, "TCP_KEEPCNT": 5}
"""The kernel's probes of a silent connection to an API, as the providers' own libraries set them: a model may
think for longer than a router on the way remembers the connection."""

DISCARD_PORT: Final = 9
"""A port to which nothing is sent."""

REASON: Final = b"Forbidden by OSTLER_AGENT_HOSTS"
"""Reason phrase of a refusal: clients of a proxy show it, and rarely a body."""

Refused = Callable[[str, int, str], object]
"""Called with a host, a port, and why the agent does not reach it, in a sentence."""


class Unreachable(Exception):
    """A host does not answer. The message is a sentence."""


class NotAllowed(Exception):
    """A host is not for the agent. The message is a sentence."""


@attrs.define(eq=False)
class Proxies:
    """The doors of one agent. `upstreams`: also those that are added later. Close it with `aclose`."""

    upstreams: Sequence[Upstream]
    allowed: AllowList
    refused: Refused
    way_out: WayOut = attrs.field(factory=WayOut)
    _transports: dict[str | None, httpx2.AsyncHTTPTransport] = attrs.field(factory=dict, init=False)
    """Directly, and through the proxy of the machine's network."""
    _opening: trio.Lock = attrs.field(factory=trio.Lock, init=False)
    _asked: trio.Semaphore = attrs.field(factory=partial(trio.Semaphore, ASKED_MOST), init=False)
    _lookups: trio.CapacityLimiter = attrs.field(factory=partial(trio.CapacityLimiter, LOOKUPS), init=False)
    _reported: dict[tuple[str, int], float] = attrs.field(factory=dict, init=False)

    async def aclose(self) -> None:
        """End the connections that are kept."""
        for transport in self._transports.values():
            with trio.move_on_after(CLOSE_SECONDS):
                await transport.aclose()
        self._transports.clear()

    # -- to the APIs -----------------------------------------------------------------------------------------

    async def api(self, exchange: Exchange, request: h11.Request) -> None:
        """Send a request to the API that its path names, with keys in place of placeholders."""
        found = self._upstream(request.target)
        if found is None:
            await exchange.refuse(
                404,
                f"No API has this address. Use the base URL that Ostler set, which ends in {PREFIX}NUMBER.",
            )
        elif request.method == b"CONNECT":
            await exchange.refuse(405, "This address is no proxy. Use the one in HTTPS_PROXY.")
        elif dict(request.headers).get(b"upgrade", b"").lower() == b"websocket":
            # The status by which clients use HTTP instead.
            await exchange.refuse(426, "Ostler passes on no WebSockets. Use HTTP with server-sent events.")
        else:
            upstream, target = found
            try:
                target = upstream.target(target)
                given = upstream.headers(passed_on(request.headers, NOT_ASKED))
            except OtherKey as error:
                await exchange.refuse(403, str(error))
                return
            await self._pass_on(exchange, request, upstream.origin, target, given)

    def _upstream(self, target: bytes) -> tuple[Upstream, bytes] | None:
        if not target.startswith(PREFIX.encode()):
            return None
        path, mark, query = target[len(PREFIX) :].partition(b"?")
        number, _, rest = path.partition(b"/")
        if not number.isdigit() or len(number) > NUMBER_DIGITS or int(number) >= len(self.upstreams):
            return None
        return self.upstreams[int(number)], b"/" + rest + mark + query

    # -- to other hosts --------------------------------------------------------------------------------------

    async def other(self, exchange: Exchange, request: h11.Request) -> None:
        """Connect to a host for a CONNECT, or send it a request of HTTP without TLS, where it is allowed."""
        try:
            if request.method == b"CONNECT":
                await self._connect(exchange, request)
            else:
                await self._plain(exchange, request)
        except NotAllowed as error:
            await exchange.refuse(403, str(error), REASON)
        except Unreachable as error:
            await exchange.refuse(502, str(error))

    async def _connect(self, exchange: Exchange, request: h11.Request) -> None:
        found = place(request.target.decode("latin-1"))
        if found is None:
            await exchange.refuse(400, "The target of CONNECT is not HOST:PORT.")
            return
        if found in API_PLACES:
            inner_stream, ahead = await exchange.switch()
            await Exchange(inner_stream, ahead).serve(self.api)
            return
        stream, back = await self._dial(*found)
        try:
            agent, ahead = await exchange.switch()
            await _tunnel(agent, stream, ahead, back)
        finally:
            await trio.aclose_forcefully(stream)

    async def _plain(self, exchange: Exchange, request: h11.Request) -> None:
        try:
            parts = urlsplit(request.target.decode("latin-1"))
        except ValueError:
            parts = urlsplit("")
        found = place(parts.netloc, HTTP_PORT)
        if parts.scheme != "http" or found is None:
            await exchange.refuse(
                400,
                "This is a proxy for http:// and, with CONNECT, for other hosts. Send it no other request.",
            )
            return
        target = request.target[len("http://") + len(parts.netloc) :]
        target = target if target.startswith(b"/") else b"/" + target
        if found in API_PLACES:
            await self.api(
                exchange, h11.Request(method=request.method, target=target, headers=request.headers)
            )
            return
        address = (await self._addresses(*found))[0]
        literal = f"[{address}]" if ":" in address else address
        headers = [(b"Host", parts.netloc.encode("latin-1")), *passed_on(request.headers, NOT_ASKED)]
        await self._pass_on(exchange, request, f"http://{literal}:{found[1]}", target, headers)

    async def _dial(self, host: str, port: int) -> tuple[trio.SocketStream, bytes]:
        """Connect to a host. Return also what was read of it already. Raises NotAllowed, Unreachable."""
        reason = "no connection in time"
        with trio.move_on_after(CONNECT_SECONDS):
            for address in await self._addresses(host, port):
                try:
                    # Of the address that was looked at: a second look-up could have another answer.
                    with trio.fail_after(CONNECT_SECONDS / 2):
                        proxy = self.way_out.of(address)
                        if proxy is not None:
                            return await _through(proxy, address, port)
                        return await trio.open_tcp_stream(address, port), b""
                except trio.TooSlowError:
                    continue
                except OSError as error:
                    reason = _in_words(error)
        raise Unreachable(
            f"{host}:{port} cannot be reached: {reason}. Look at the network of Ostler's machine."
        )

    async def _addresses(self, host: str, port: int) -> list[str]:
        """The addresses of a host that the agent may connect to, one at least. Raises NotAllowed,
        Unreachable."""
        if not self.allowed.allows(host, port):
            why = f"it is not among the hosts that this agent may reach; add it to {VARIABLE}"
            raise self._refusal(host, port, why)
        if self.way_out.of(host) is not None and not is_literal(host):
            return [host]  # the proxy looks it up
        look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        try:
            found = await in_time(look_up, "to look up a host", limiter=self._lookups, seconds=LOOKUP_SECONDS)
        except TimeoutError:
            raise Unreachable(
                f"{host} was not found within {LOOKUP_SECONDS:g} s. Look at Ostler's DNS."
            ) from None
        except (OSError, UnicodeError) as error:
            raise Unreachable(f"{host} is not found: {_in_words(error)}.") from None
        addresses = list(dict.fromkeys(str(each[4][0]) for each in found))
        if not self.allowed.trusts(host, port):
            addresses = [each for each in addresses if not (inner(ipaddress.ip_address(each)) or _own(each))]
        if not addresses:
            why = f"its address is not of the public internet; name it with its port in {VARIABLE}"
            raise self._refusal(host, port, why)
        return addresses[:ADDRESSES_MOST]

    def _refusal(self, host: str, port: int, why: str) -> NotAllowed:
        now = trio.current_time()
        self._reported = {each: at for each, at in self._reported.items() if now - at < REFUSAL_SECONDS}
        if (host, port) not in self._reported and len(self._reported) < REFUSALS_MOST:
            self._reported[host, port] = now
            self.refused(host, port, why)
        return NotAllowed(f"Ostler does not let this agent reach {host}:{port}: {why}.")

    # -- both ------------------------------------------------------------------------------------------------

    async def _pass_on(
        self, exchange: Exchange, request: h11.Request, origin: str, target: bytes, headers: Headers
    ) -> None:
        """Send a request to this server, and its answer to the agent, both as they come."""
        transport = await self._opened(self.way_out.of(str(urlsplit(origin).hostname)))
        import httpx2

        size = length(request.headers)
        if size == 0:
            await exchange.without_content()
        headers = [*headers, *([(b"Content-Length", b"%d" % size)] if size else [])]
        try:
            async with aclosing(exchange.content()) as content:
                sent = httpx2.Request(
                    request.method.decode("ascii"),
                    httpx2.URL(origin).copy_with(raw_path=target),
                    headers=headers,
                    content=None if size == 0 else content,
                    extensions={"timeout": {"connect": CONNECT_SECONDS, "write": WRITE_SECONDS}},
                )
                async with self._asked:
                    response = await transport.handle_async_request(sent)
                await self._answer(exchange, response)
        except (httpx2.TransportError, httpx2.InvalidURL) as error:
            log.info("an agent's request was not answered", origin=origin, error=_in_words(error))
            await exchange.refuse(
                502,
                f"{origin} does not answer ({_in_words(error)}). Look at the base URL and Ostler's network.",
            )

    async def _answer(self, exchange: Exchange, response: httpx2.Response) -> None:
        import httpx2

        pieces = response.aiter_raw()
        try:
            await exchange.send(response.status_code, passed_on(response.headers.raw, NOT_ANSWERED), pieces)
        finally:
            with (
                trio.move_on_after(CLOSE_SECONDS, shield=True),
                suppress(httpx2.HTTPError, httpx2.StreamError),
            ):
                await response.aclose()
                # To its end: of an answer that is broken off, the library leaves an iterator of its own open.
                async for _ in pieces:
                    pass

    async def _opened(self, proxy: str | None) -> httpx2.AsyncHTTPTransport:
        if proxy not in self._transports:
            async with self._opening:
                if proxy not in self._transports:
                    # In a thread: the first one imports the library and reads certificates.
                    self._transports[proxy] = await trio.to_thread.run_sync(_transport, proxy)
        return self._transports[proxy]


async def _through(proxy: str, host: str, port: int) -> tuple[trio.SocketStream, bytes]:
    """Connect to a host through a proxy, as `Proxies._dial`. Raises OSError, also where the proxy refuses."""
    parts = urlsplit(proxy)
    target = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    headers = [(b"Host", target.encode())]
    if (authorization := basic(parts)) is not None:
        headers.append((b"Proxy-Authorization", authorization))
    stream = await trio.open_tcp_stream(str(parts.hostname), parts.port or HTTP_PORT)
    try:
        return stream, await _asked_for(h11.Request(method="CONNECT", target=target, headers=headers), stream)
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise


async def _asked_for(request: h11.Request, stream: trio.SocketStream) -> bytes:
    """Send a CONNECT to a proxy. Return what follows its answer. Raises OSError."""
    http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)
    try:
        await stream.send_all(http.send(request) or b"")
        while (event := http.next_event()) is h11.NEED_DATA:
            http.receive_data(bytes(await stream.receive_some(CHUNK_BYTES)))
    except (h11.RemoteProtocolError, trio.BrokenResourceError) as error:
        raise OSError("the proxy of Ostler's machine ends the connection") from error
    if not isinstance(event, h11.Response) or not 200 <= event.status_code < 300:
        said = event.status_code if isinstance(event, h11.Response) else "nothing"
        raise OSError(f"the proxy of Ostler's machine answers {said}")
    return bytes(http.trailing_data[0])


async def _tunnel(agent: trio.abc.Stream, stream: trio.SocketStream, ahead: bytes, back: bytes = b"") -> None:
    """Pass bytes in both directions until both have ended, or nothing comes for TUNNEL_SECONDS.

    `ahead`, `back`: what was read already of the agent and of the host.
    """
    with trio.CancelScope(deadline=trio.current_time() + TUNNEL_SECONDS) as idle:
        async with trio.open_nursery() as nursery:

            async def pump(source: trio.abc.Stream, sink: trio.abc.Stream, data: bytes | bytearray) -> None:
                relaying = share()
                try:
                    while True:
                        if data:
                            await relaying.turn()
                            await sink.send_all(data)
                            relaying.rest()
                        data = await source.receive_some(CHUNK_BYTES)
                        idle.deadline = trio.current_time() + TUNNEL_SECONDS
                        if not data:
                            break
                    if isinstance(sink, trio.abc.HalfCloseableStream):
                        await sink.send_eof()
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    nursery.cancel_scope.cancel()

            nursery.start_soon(pump, agent, stream, ahead)
            nursery.start_soon(pump, stream, agent, back)


def _own(address: str) -> bool:
    """Whether this machine has the address: the kernel would use it as the source as well. Sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, DISCARD_PORT))
        return bool(probe.getsockname()[0] == address)
    return False


def _in_words(error: BaseException) -> str:
    """What an error says, or else the one that caused it."""
    found: BaseException | None = error
    while found is not None:
        said = getattr(found, "strerror", None) or str(found)
        if said:
            return str(said)
        found = found.__cause__ or found.__context__
    return type(error).__name__


@functools.cache
def _context() -> ssl.SSLContext:
    # One for all agents: the certificates take a megabyte.
    return ssl.create_default_context()


def _transport(proxy: str | None) -> httpx2.AsyncHTTPTransport:
    importlib.import_module("httpx2")
    import httpx2

    return httpx2.AsyncHTTPTransport(
        verify=_context(),
        trust_env=False,
        proxy=proxy,
        socket_options=(
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            *((socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in PROBES.items()),
        ),
        limits=httpx2.Limits(
            max_connections=None,  # each belongs to one of the agent's, which are counted
            max_keepalive_connections=KEPT_CONNECTIONS,
            keepalive_expiry=KEPT_SECONDS,
        ),
    )
