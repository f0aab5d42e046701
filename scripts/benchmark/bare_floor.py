"""A floor: a bare Hypercorn socket under Trio.

    python -m scripts.benchmark.bare_floor PORT DIRECTORY

An ASGI application without a framework. There is no agent: it makes the frames itself, or has made them
before, and writes them to the sockets of a conversation one by one, as ASGI has it.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.trio import serve

from scripts.benchmark.frames import event, status

Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]

OUTPUT = {"type": "content", "content": {"type": "text", "text": "line 4711\n" * 8}}
BEGUN = event("ACPToolCallEvent", title="Read file 4711", raw_input={"path": "/tmp/file-4711"})
ENDED = event("ACPToolCallEvent", title="Read file 4711", raw_output={"exit": 0}, content=[OUTPUT])
BURSTS = {"tools": (BEGUN, ENDED), "deltas": (event("StreamingDeltaEvent", content="word4711 "),)}


class Bare:
    """The application. `sockets` are those of each conversation."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.nursery = nursery
        self.sockets: dict[str, set[Send]] = {}

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await self.http(scope["path"].strip("/").split("/"), receive, send)
        elif scope["type"] == "websocket":
            await self.websocket(self.sockets[scope["path"].rpartition("/")[2]], receive, send)
        else:
            await lifespan(receive, send)

    async def http(self, path: list[str], receive: Receive, send: Send) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        answer: Any = {"success": True}
        match path:
            case ["api", "conversations"]:
                answer = {"id": str(uuid.uuid4())}
                self.sockets[answer["id"]] = set()
            case ["api", "conversations", id_, "events"]:
                text = json.loads(body)["content"][0]["text"]
                self.nursery.start_soon(self.turn, self.sockets[id_], text.removeprefix("!").split())
        text = json.dumps(answer).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(text))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": text})

    async def websocket(self, sockets: set[Send], receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        sockets.add(send)
        while (await receive())["type"] != "websocket.disconnect":
            pass
        sockets.discard(send)

    async def turn(self, sockets: set[Send], words: list[str]) -> None:
        async def show(frame: bytes) -> None:
            message = {"type": "websocket.send", "bytes": None, "text": frame.decode()}
            for send in tuple(sockets):
                await send(message)

        await show(status("running"))
        match words:
            case ["burst", kind, count]:
                for _ in range(int(count)):
                    for frame in BURSTS[kind]:
                        await show(frame)
            case ["paced", rate, seconds]:
                start = trio.current_time()
                for number in range(int(float(rate) * float(seconds))):
                    await trio.sleep_until(start + number / float(rate))
                    await show(event("ACPToolCallEvent", raw_output={"sent_ns": time.monotonic_ns()}))
        await show(status("finished"))


async def lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def main(port: int) -> None:
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    config.errorlog = None
    async with trio.open_nursery() as nursery:
        await serve(Bare(nursery), config, mode="asgi")  # type: ignore[arg-type]
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, int(sys.argv[1]))
