"""A receiver of webhooks on loopback: it keeps what it gets, and answers, or misbehaves, as a test asks."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import h11
import trio

OK = "ok"
WAYS = ("ok", "500", "redirect", "close", "half", "silent", "endless", "garbage")


@attrs.define
class Received:
    """One request."""

    path: str
    headers: dict[str, str]
    body: Any


@attrs.define
class Receiver:
    """`way` chooses the answer of a request."""

    url: str = ""
    way: Callable[[Received], str] = lambda _: OK
    requests: list[Received] = attrs.field(factory=list)
    taken: list[Received] = attrs.field(factory=list)
    """Those that were answered with success."""

    def events(self, conversation_id: str) -> list[dict[str, Any]]:
        """All events that were taken of a conversation, in order."""
        path = f"/hook/events/{conversation_id.replace('-', '')}"
        return [event for each in self.taken if each.path == path for event in each.body]

    def statuses(self) -> list[str]:
        return [each.body["execution_status"] for each in self.taken if each.path == "/hook/conversations"]

    async def _serve(self, stream: trio.SocketStream) -> None:
        http = h11.Connection(h11.SERVER)
        try:
            while await self._exchange(stream, http):
                http.start_next_cycle()
        except (trio.BrokenResourceError, trio.ClosedResourceError, h11.RemoteProtocolError):
            pass
        finally:
            with trio.CancelScope(shield=True):
                await trio.aclose_forcefully(stream)

    async def _exchange(self, stream: trio.SocketStream, http: h11.Connection) -> bool:
        request: h11.Request | None = None
        body = b""
        while True:
            event = http.next_event()
            if event is h11.NEED_DATA:
                http.receive_data(await stream.receive_some(65536))
            elif isinstance(event, h11.Request):
                request = event
            elif isinstance(event, h11.Data):
                body += event.data
            elif isinstance(event, h11.EndOfMessage):
                break
            else:
                return False
        assert request is not None
        headers = {name.decode().lower(): value.decode() for name, value in request.headers}
        found = Received(request.target.decode(), headers, json.loads(body))
        self.requests.append(found)
        return await self._answer(stream, http, found)

    async def _answer(self, stream: trio.SocketStream, http: h11.Connection, found: Received) -> bool:
        way = self.way(found)
        if way == "silent":
            await trio.sleep_forever()
        if way == "close":
            return False
        if way == "half":
            await stream.send_all(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
            return False
        if way == "garbage":
            await stream.send_all(b"\0\1\2 no HTTP at all\r\n\r\n")
            return False
        if way == "endless":
            self.taken.append(found)
            await stream.send_all(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            while True:
                await stream.send_all(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
        status = {"500": 500, "redirect": 307}.get(way, 200)
        extra = [("location", f"{self.url}/elsewhere")] if way == "redirect" else []
        if status == 200:
            self.taken.append(found)
        answer = h11.Response(status_code=status, headers=[("content-length", "2"), *extra])
        await stream.send_all(http.send(answer) or b"")
        await stream.send_all(http.send(h11.Data(b"{}")) or b"")
        await stream.send_all(http.send(h11.EndOfMessage()) or b"")
        return True


@asynccontextmanager
async def open_receiver(port: int = 0) -> AsyncIterator[Receiver]:
    """A receiver for the block."""
    receiver = Receiver()
    listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
    receiver.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/hook"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, receiver._serve, listeners)
        yield receiver
        nursery.cancel_scope.cancel()
