"""An ACP client on a WebSocket of Ostler's, with what arrives in order of arrival."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import attrs
import trio
from trio_websocket import ConnectionClosed, WebSocketConnection

from tests.support.sockets import wrap_client_stream

PATIENCE_SECONDS = 30.0

Json = dict[str, Any]


class Failed(Exception):
    """The server answered with an error."""

    def __init__(self, error: Json) -> None:
        super().__init__(error)
        self.code = error["code"]
        self.message = error["message"]
        self.data = error.get("data")


@attrs.define(eq=False)
class AcpClient:
    """`received`: every message, parsed. `positions`: the last one of each session."""

    socket: WebSocketConnection
    received: list[Json] = attrs.field(factory=list)
    positions: dict[str, str] = attrs.field(factory=dict)
    answers: dict[str, Callable[[Json], Any]] = attrs.field(factory=dict)
    """What to answer to requests of the server, by method; other ones wait."""
    _arrival: trio.Event = attrs.field(factory=trio.Event)
    _next_id: int = 0

    async def read(self) -> None:
        with suppress(ConnectionClosed):
            while True:
                frame = await self.socket.get_message()
                if frame.startswith("@"):
                    head, _, frame = frame.partition("\n")
                    session, _, position = head[1:].partition(" ")
                    self.positions[session] = position
                message = json.loads(frame)
                self.received.append(message)
                if "id" in message and message.get("method") in self.answers:
                    result = self.answers[message["method"]](message)
                    if result is not None:
                        await self.send({"id": message["id"], "result": result})
                self._arrival.set()
                self._arrival = trio.Event()

    async def send(self, message: Json) -> None:
        await self.socket.send_message(json.dumps({"jsonrpc": "2.0", **message}))

    async def begin(self, method: str, params: Json, request_id: Any = None) -> Any:
        """Send a request; return its id."""
        self._next_id += 1
        request_id = self._next_id if request_id is None else request_id
        await self.send({"id": request_id, "method": method, "params": params})
        return request_id

    async def wait(self, wanted: Callable[[Json], Any], start: int = 0) -> Json:
        """The first message from `start` on that satisfies `wanted`, already arrived or to come."""
        with trio.fail_after(PATIENCE_SECONDS):
            while True:
                arrival = self._arrival
                for message in self.received[start:]:
                    if wanted(message):
                        return message
                    start += 1
                await arrival.wait()

    async def answer(self, request_id: Any) -> Any:
        """The result of a request. Raises Failed."""
        message = await self.wait(lambda m: m.get("id") == request_id and "method" not in m)
        if "error" in message:
            raise Failed(message["error"])
        return message["result"]

    async def call(self, method: str, params: Json | None = None) -> Any:
        return await self.answer(await self.begin(method, params or {}))

    async def prompt(self, session: str, text: str) -> Any:
        return await self.call("session/prompt", prompt_of(session, text))

    def updates(self, session: str, start: int = 0) -> list[Json]:
        """The updates that arrived."""
        return [
            message["params"]["update"]
            for message in self.received[start:]
            if message.get("method") == "session/update" and message["params"]["sessionId"] == session
        ]


def prompt_of(session: str, text: str) -> Json:
    return {"sessionId": session, "prompt": [{"type": "text", "text": text}]}


def texts(updates: list[Json], kind: str = "agent_message_chunk") -> str:
    return "".join(each["content"].get("text", "") for each in updates if each["sessionUpdate"] == kind)


@asynccontextmanager
async def acp_client(
    url: str, path: str = "/sockets/acp", *, client: str | None = None, fs: bool = False, **query: str
) -> AsyncIterator[AcpClient]:
    """A connected client that has said hello."""
    asked = {"client": client or str(uuid.uuid4()), **query}
    resource = f"{path}?" + "&".join(f"{name}={value}" for name, value in asked.items())
    host, port = url.removeprefix("http://").split(":")
    async with await trio.open_tcp_stream(host, int(port)) as stream, trio.open_nursery() as nursery:
        made = AcpClient(await wrap_client_stream(nursery, stream, host, resource))
        nursery.start_soon(made.read)
        capabilities = {"fs": {"readTextFile": fs, "writeTextFile": False}}
        await made.call("initialize", {"protocolVersion": 1, "clientCapabilities": capabilities})
        yield made
        nursery.cancel_scope.cancel()
