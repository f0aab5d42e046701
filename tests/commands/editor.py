"""An editor and a server for `ostler acp`: the command is a real process, both of its ends are the test's."""

from __future__ import annotations

import json
import os
import subprocess
import sysconfig
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import trio
from trio_websocket import ConnectionClosed, WebSocketConnection, WebSocketRequest, serve_websocket

OSTLER = str(Path(sysconfig.get_path("scripts")) / "ostler")
PATIENCE_S = 20.0  # of a message; only a hang breaks it


class Editor:
    """The client of a process that speaks ACP."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self._buffer = bytearray()
        self._number = 0

    async def send(self, message: Mapping[str, Any] | bytes) -> None:
        """Send a message, or a line as it is."""
        line = message if isinstance(message, bytes) else json.dumps(message).encode()
        assert self.process.stdin is not None
        await self.process.stdin.send_all(line + b"\n")

    async def ask(self, method: str, params: Mapping[str, Any] | None = None, identity: Any = None) -> Any:
        """Send a request; its id."""
        self._number += 1
        identity = self._number if identity is None else identity
        await self.send({"jsonrpc": "2.0", "id": identity, "method": method, "params": params or {}})
        return identity

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification."""
        await self.send({"jsonrpc": "2.0", "method": method, "params": params})

    async def next(self) -> Any:
        """The next message, which is the whole of a line."""
        assert self.process.stdout is not None
        with trio.fail_after(PATIENCE_S):
            while b"\n" not in self._buffer:
                data = await self.process.stdout.receive_some(1 << 20)
                assert data, "the command has ended"
                self._buffer += data
        line, _, rest = self._buffer.partition(b"\n")
        self._buffer = bytearray(rest)
        return json.loads(line)

    async def leave(self) -> tuple[int, str]:
        """Close standard input; the exit status and the words on standard error."""
        assert self.process.stdin is not None
        await self.process.stdin.aclose()
        return await self.end()

    async def end(self) -> tuple[int, str]:
        """Wait for the end; nothing but whole messages may be left on standard output."""
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        words = bytearray()
        with trio.fail_after(PATIENCE_S):
            async for data in self.process.stdout:
                self._buffer += data
            async for data in self.process.stderr:
                words += data
            status = await self.process.wait()
        for line in self._buffer.splitlines():
            json.loads(line)
        return status, words.decode()


@asynccontextmanager
async def editor(
    directory: Path, *arguments: str, command: str = OSTLER, **more: str
) -> AsyncIterator[Editor]:
    """`ostler acp` for an editor, killed at the end of the block."""
    kept = {name: os.environ[name] for name in ("PATH", "COVERAGE_PROCESS_START") if name in os.environ}
    env = {**kept, "HOME": str(directory), "OSTLER_STATE": str(directory / "state"), **more}
    process = await trio.lowlevel.open_process(
        [command, "acp", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=env,
        cwd=directory,
    )
    try:
        yield Editor(process)
    finally:
        if process.poll() is None:
            process.kill()
        with trio.CancelScope(shield=True):
            await process.wait()


class Link:
    """One connection, seen by the server."""

    def __init__(self, socket: WebSocketConnection, path: str, headers: Mapping[str, str]) -> None:
        self._socket = socket
        self.path = path
        self.headers = headers
        self.done = trio.Event()

    async def next(self) -> Any:
        """The next message of the bridge."""
        with trio.fail_after(PATIENCE_S):
            return json.loads(await self._socket.get_message())

    async def send(self, message: Any, session: str = "", position: str = "") -> None:
        """Send a message; with a session, it moves the position."""
        text = message if isinstance(message, str) else json.dumps(message, separators=(",", ":"))
        await self._socket.send_message(f"@{session} {position}\n{text}" if session else text)

    async def answer(self, identity: Any, result: Any) -> None:
        await self.send({"jsonrpc": "2.0", "id": identity, "result": result})

    async def update(self, session: str, position: str, **value: Any) -> None:
        params = {"sessionId": session, "update": value}
        await self.send({"jsonrpc": "2.0", "method": "session/update", "params": params}, session, position)

    async def close(self, code: int = 1000) -> None:
        with trio.move_on_after(PATIENCE_S):
            await self._socket.aclose(code)
        self.done.set()

    async def drop(self) -> None:
        """End the connection as a killed server does: without a close frame."""
        await trio.aclose_forcefully(self._socket._stream)
        self.done.set()

    async def ended(self) -> bool:
        """Whether the bridge ends the connection, without another message."""
        with trio.fail_after(PATIENCE_S):
            try:
                await self._socket.get_message()
            except ConnectionClosed:
                return True
        return False


class Scripted:
    """A server whose answers the test gives. `refuse`: the status of the next handshakes, None to accept."""

    def __init__(self, port: int = 0) -> None:
        self.port = port
        self.refuse: int | None = None
        self.refused = 0
        self._links_in, self._links = trio.open_memory_channel[Link](10)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def link(self) -> Link:
        """The next connection."""
        with trio.fail_after(PATIENCE_S):
            return await self._links.receive()

    async def handle(self, request: WebSocketRequest) -> None:
        """Serve one handshake, and the connection for as long as the test needs it."""
        if self.refuse is not None:
            self.refused += 1
            await request.reject(self.refuse)
            return
        link = Link(
            await request.accept(), request.path, {k.decode(): v.decode() for k, v in request.headers}
        )
        self._links_in.send_nowait(link)
        await link.done.wait()


@asynccontextmanager
async def scripted(port: int = 0) -> AsyncIterator[Scripted]:
    """A scripted server, to the end of the block."""
    server = Scripted(port)
    async with trio.open_nursery() as nursery:
        listener = await nursery.start(_serve, server, nursery)
        server.port = listener.port
        yield server
        nursery.cancel_scope.cancel()


async def _serve(
    server: Scripted, nursery: trio.Nursery, task_status: Any = trio.TASK_STATUS_IGNORED
) -> None:
    await serve_websocket(
        server.handle,
        "127.0.0.1",
        server.port,
        None,
        handler_nursery=nursery,
        max_message_size=32 * 1024 * 1024,
        task_status=task_status,
    )
