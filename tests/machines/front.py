"""A plain proxy in front of several servers: each request goes to the next one, without stickiness."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import h11
import trio

READ_BYTES = 64 * 1024
HEAD_BYTES = 256 * 1024
GONE = (OSError, trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError)


class Front:
    """Serves until it is cancelled. `url` is set when it listens."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._servers = itertools.cycle([urlsplit(url) for url in urls])
        self.url = ""

    async def serve(self, listening: threading.Event, scope: trio.CancelScope) -> None:
        with scope:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            self.url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
            listening.set()
            await trio.serve_listeners(self._client, [listener])

    async def _client(self, client: trio.SocketStream) -> None:
        asked = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES)
        with suppress(*GONE):
            while True:
                head = await _event(asked, client)
                if not isinstance(head, h11.Request):
                    return
                server = next(self._servers)
                async with await trio.open_tcp_stream(
                    str(server.hostname), int(server.port or 0)
                ) as upstream:
                    names = dict(head.headers)
                    if b"upgrade" in names:
                        await self._upgrade(head, asked, client, upstream)
                        return
                    await _exchange(head, asked, client, upstream)
                if asked.our_state is not h11.DONE or asked.their_state is not h11.DONE:
                    return
                asked.start_next_cycle()

    async def _upgrade(
        self, head: h11.Request, asked: h11.Connection, client: trio.SocketStream, upstream: trio.SocketStream
    ) -> None:
        """A WebSocket: bytes both ways from here on."""
        lines = [head.method + b" " + head.target + b" HTTP/1.1"]
        lines += [name + b": " + value for name, value in head.headers.raw_items()]
        await upstream.send_all(b"\r\n".join([*lines, b"", b""]) + asked.trailing_data[0])
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_pour, client, upstream, nursery.cancel_scope)
            nursery.start_soon(_pour, upstream, client, nursery.cancel_scope)


async def _exchange(
    head: h11.Request, asked: h11.Connection, client: trio.SocketStream, upstream: trio.SocketStream
) -> None:
    told = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES)
    headers = [each for each in head.headers.raw_items() if each[0].lower() not in (b"connection", b"expect")]
    await _send(told, upstream, h11.Request(method=head.method, target=head.target,
                                            headers=[*headers, (b"Connection", b"close")]))  # fmt: skip
    if asked.they_are_waiting_for_100_continue:
        await _send(asked, client, h11.InformationalResponse(status_code=100, headers=[]))
    await _copy(asked, client, told, upstream)
    while True:
        event = await _event(told, upstream)
        if isinstance(event, h11.Response):
            kept = [each for each in event.headers.raw_items() if each[0].lower() != b"connection"]
            event = h11.Response(status_code=event.status_code, headers=kept, reason=event.reason)
        await _send(asked, client, event)
        if isinstance(event, h11.EndOfMessage):
            return


async def _copy(source: h11.Connection, reader: Any, target: h11.Connection, writer: Any) -> None:
    while True:
        event = await _event(source, reader)
        await _send(target, writer, event)
        if isinstance(event, h11.EndOfMessage):
            return


async def _event(connection: h11.Connection, stream: trio.SocketStream) -> Any:
    while True:
        event = connection.next_event()
        if event is not h11.NEED_DATA:
            return event
        connection.receive_data(await stream.receive_some(READ_BYTES))


async def _send(connection: h11.Connection, stream: trio.SocketStream, event: Any) -> None:
    if isinstance(event, h11.ConnectionClosed):
        raise trio.ClosedResourceError
    data = connection.send(event)
    if data:
        await stream.send_all(data)


async def _pour(source: trio.SocketStream, target: trio.SocketStream, scope: trio.CancelScope) -> None:
    with suppress(*GONE):
        while data := await source.receive_some(READ_BYTES):
            await target.send_all(data)
    scope.cancel()


@contextmanager
def front(urls: Sequence[str]) -> Iterator[str]:
    """The address of a proxy before these servers, in a thread of its own."""
    found, listening, scope = Front(urls), threading.Event(), trio.CancelScope()
    token: list[trio.lowlevel.TrioToken] = []

    async def main() -> None:
        token.append(trio.lowlevel.current_trio_token())
        await found.serve(listening, scope)

    thread = threading.Thread(target=trio.run, args=(main,))
    thread.start()
    try:
        assert listening.wait(10)
        yield found.url
    finally:
        token[0].run_sync_soon(scope.cancel)
        thread.join()
