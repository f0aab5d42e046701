"""A floor: a relay with everything taken out of it but read, parse, encode, commit, write.

    python -m scripts.benchmark.relay_floor PORT DIRECTORY

It reads an agent's lines, parses each, encodes an event for it, commits what one read brought with one
statement of SQLite in a thread, and writes that to the sockets with one system call each. Trio alone, no web
framework: HTTP as far as the bench's client speaks it. It has no supervision, no masking, no bounds, no
history, no slow readers.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import os
import sqlite3
import subprocess
import sys
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import trio

from scripts.benchmark.frames import event, status

PIPE_BYTES = 65536
INSERT_ROWS = 500
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # RFC 6455, section 1.3


def framed(bodies: list[bytes]) -> bytes:
    """The bodies as text frames, one after the other (RFC 6455, section 5.2)."""
    parts: list[bytes] = []
    for body in bodies:
        size = len(body)
        if size < 126:
            parts += (b"\x81", size.to_bytes(1, "big"), body)
        elif size < 65536:
            parts += (b"\x81\x7e", size.to_bytes(2, "big"), body)
        else:
            parts += (b"\x81\x7f", size.to_bytes(8, "big"), body)
    return b"".join(parts)


class Conversation:
    """Its sockets, and the agent that it has from its first message on."""

    def __init__(self, key: int, relay: Relay, command: list[str]) -> None:
        self.key, self.owner, self.command = key, relay, command
        self.agent: subprocess.Popen[bytes] | None = None
        self.session = ""
        self.ready = trio.Event()
        self.sockets: set[trio.SocketStream] = set()
        self.requests = itertools.count()

    async def turn(self, text: str) -> None:
        if self.agent is None:
            start = lambda: subprocess.Popen(self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # noqa: E731
            self.agent = await trio.to_thread.run_sync(start)
            self.owner.nursery.start_soon(self.relay)
            self.ask("initialize", protocolVersion=1, clientCapabilities={})
            self.ask("session/new", cwd=str(self.owner.directory), mcpServers=[])
        await self.ready.wait()
        self.ask("session/prompt", sessionId=self.session, prompt=[{"type": "text", "text": text}])

    def ask(self, method: str, **params: Any) -> None:
        assert self.agent is not None
        assert self.agent.stdin is not None
        request = {"jsonrpc": "2.0", "id": next(self.requests), "method": method, "params": params}
        os.write(self.agent.stdin.fileno(), orjson.dumps(request) + b"\n")

    async def relay(self) -> None:
        assert self.agent is not None
        assert self.agent.stdout is not None
        async with trio.lowlevel.FdStream(os.dup(self.agent.stdout.fileno())) as stream:
            rest = b""
            while data := await stream.receive_some(PIPE_BYTES):
                lines = (rest + data).split(b"\n")
                rest = lines.pop()
                made = [made for line in lines if (made := self.translate(orjson.loads(line)))]
                if made:
                    await self.owner.commit(self.key, made)
                    sent = framed(made)
                    for each in tuple(self.sockets):
                        await each.send_all(sent)

    def translate(self, message: dict[str, Any]) -> bytes | None:
        """The event of an update, or of the end of a turn."""
        update = message.get("params", {}).get("update")
        if update is None:
            result = message.get("result") or {}
            if "sessionId" in result:
                self.session = result["sessionId"]
                self.ready.set()
            return status("finished") if "stopReason" in result else None
        match update["sessionUpdate"]:
            case "tool_call" | "tool_call_update":
                return event(
                    "ACPToolCallEvent",
                    tool_call_id=update["toolCallId"],
                    title=update.get("title"),
                    status=update["status"],
                    raw_input=update.get("rawInput"),
                    raw_output=update.get("rawOutput"),
                    content=update.get("content"),
                )
            case "agent_message_chunk":
                return event("StreamingDeltaEvent", content=update["content"]["text"])
        return None


class Relay:
    """All conversations, and the database."""

    def __init__(self, directory: Path, nursery: trio.Nursery) -> None:
        self.directory, self.nursery = directory, nursery
        self.conversations: dict[str, Conversation] = {}
        self.database = sqlite3.connect(
            directory / "floor.sqlite3", isolation_level=None, check_same_thread=False
        )
        self.database.execute("PRAGMA journal_mode = WAL")
        self.database.execute("PRAGMA synchronous = NORMAL")
        self.database.execute("CREATE TABLE events (conversation INTEGER, body BLOB)")
        self.writing = trio.Lock()

    async def commit(self, key: int, bodies: list[bytes]) -> None:
        async with self.writing:
            for begin in range(0, len(bodies), INSERT_ROWS):
                some = bodies[begin : begin + INSERT_ROWS]
                values: list[Any] = [value for body in some for value in (key, body)]
                statement = "INSERT INTO events VALUES " + ",".join(["(?,?)"] * len(some))
                await trio.to_thread.run_sync(self.database.execute, statement, values)

    async def serve(self, stream: trio.SocketStream) -> None:
        """One connection: requests one after the other, or a socket."""
        buffer = b""
        async with stream:
            while True:
                while b"\r\n\r\n" not in buffer:
                    data = await stream.receive_some(PIPE_BYTES)
                    if not data:
                        return
                    buffer += data
                head, _, buffer = buffer.partition(b"\r\n\r\n")
                lines = head.decode("latin-1").split("\r\n")
                method, target, _ = lines[0].split(" ")
                headers = {
                    name.lower(): value.strip()
                    for name, _, value in (line.partition(":") for line in lines[1:])
                }
                path = target.strip("/").split("/")
                if "sec-websocket-key" in headers:
                    await self.socket(stream, self.conversations[path[-1]], headers["sec-websocket-key"])
                    return
                size = int(headers.get("content-length", 0))
                while len(buffer) < size:
                    buffer += await stream.receive_some(PIPE_BYTES)
                body, buffer = buffer[:size], buffer[size:]
                answer = orjson.dumps(await self.answer(method, path, body))
                await stream.send_all(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
                    % (len(answer), answer)
                )

    async def answer(self, method: str, path: list[str], body: bytes) -> Any:
        match method, path:
            case "POST", ["api", "conversations"]:
                id_ = str(uuid.uuid4())
                command = orjson.loads(body)["agent_settings"]["acp_command"]
                self.conversations[id_] = Conversation(len(self.conversations), self, command)
                return {"id": id_}
            case "POST", ["api", "conversations", id_, "events"]:
                await self.conversations[id_].turn(orjson.loads(body)["content"][0]["text"])
        return {"success": True}

    async def socket(self, stream: trio.SocketStream, conversation: Conversation, key: str) -> None:
        accept = base64.b64encode(hashlib.sha1(key.encode() + GUID).digest())
        await stream.send_all(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: %b\r\n\r\n" % accept
        )
        conversation.sockets.add(stream)
        try:
            while await stream.receive_some(PIPE_BYTES):
                pass
        finally:
            conversation.sockets.discard(stream)


async def main(port: int, directory: Path) -> None:
    async with trio.open_nursery() as nursery:
        relay = Relay(directory, nursery)

        async def serve(stream: trio.SocketStream) -> None:
            # A client that is gone.
            with suppress(OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                await relay.serve(stream)

        await trio.serve_tcp(serve, port, host="127.0.0.1")


if __name__ == "__main__":
    # Its agents end with their standard input.
    trio.run(main, int(sys.argv[1]), Path(sys.argv[2]))
