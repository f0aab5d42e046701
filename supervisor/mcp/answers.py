"""Bounds the bytes that servers send to one helper, over HTTP and from a command.

The SDK buffers an answer, a line or an event before it parses it, however long it is. So the bytes are
counted on arrival, and exceeding the limit ends the work. Runs in the process of `helper.py` alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

import trio

MB: Final = 1024 * 1024

MOST_BYTES: Final = 16 * MB
"""Of all answers to one helper: a thousand tools and a result fit into half a megabyte."""

LEAST_BYTES: Final = 4096
"""What a message of a command counts for, however short: the SDK takes a millisecond for each."""

STDERR_BYTES: Final = 4096
"""Bytes of the end of a command's standard error that are kept."""

END_SECONDS: Final = 2.0
"""Seconds that a command has to end by itself at the end of its input, and then after SIGTERM."""

PIECE: Final = 65536

PLAIN: Final = {"Accept-Encoding": "identity"}
"""Headers of requests. They refuse compression, since the size of compressed data is unknown beforehand."""


class Answers:
    """The allowance of one helper. `over` is set when it is spent; `why` says of what."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._left = self._most = most
        self.over = trio.Event()
        self.why = ""

    def take(self, size: int) -> bool:
        """Count received bytes. False if there were too many."""
        self._left -= size
        if self._left < 0:
            self._refuse(f"it answered with more than {self._most // MB} MB, which is the limit")
        return self._left >= 0

    def _refuse(self, why: str) -> None:
        self.why = self.why or why
        self.over.set()

    async def bound(self, response: Any) -> None:
        """A hook of an HTTP client: has the body of a response counted."""
        import httpx2

        await trio.lowlevel.checkpoint()
        answers, stream = self, response.stream
        encoding = response.headers.get("Content-Encoding", "identity")
        if encoding.lower() != "identity":
            self._refuse("it sent a compressed answer, which was not asked for")
            raise httpx2.ReadError(self.why)

        class Counted(httpx2.AsyncByteStream):
            async def __aiter__(self) -> AsyncIterator[bytes]:
                async for data in stream:
                    if not answers.take(len(data)):
                        raise httpx2.ReadError(answers.why)
                    yield data

            async def aclose(self) -> None:
                await stream.aclose()

        response.stream = Counted()


class Command:
    """An MCP server that is a command, with the end of its standard error.

    The SDK's own transport buffers a line of any length in memory.
    """

    def __init__(self, server: Mapping[str, Any], env: Mapping[str, str], answers: Answers) -> None:
        self._server, self._env, self._answers = server, env, answers
        self.stderr = b""

    @asynccontextmanager
    async def transport(self) -> AsyncIterator[tuple[Any, Any]]:
        """Run it while the block runs; what the SDK's client takes. Raises OSError."""
        import anyio
        from mcp.client.stdio import get_default_environment
        from mcp.shared.message import SessionMessage

        process = await trio.lowlevel.open_process(
            [self._server["command"], *(self._server.get("args") or ())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**get_default_environment(), **self._env},
            cwd=self._server.get("cwd"),
            start_new_session=True,
        )
        to_client, received = anyio.create_memory_object_stream[Any](0)
        outgoing, from_client = anyio.create_memory_object_stream[SessionMessage](0)
        gone = (trio.BrokenResourceError, trio.ClosedResourceError, anyio.BrokenResourceError)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_stderr, process)
            nursery.start_soon(self._read, process, to_client)
            nursery.start_soon(self._write, process, from_client, gone)
            try:
                yield received, outgoing
            finally:
                for stream in (received, outgoing, to_client, from_client):
                    stream.close()
                with trio.CancelScope(shield=True):
                    await _end(process)
                nursery.cancel_scope.cancel()

    async def _read(self, process: trio.Process, to_client: Any) -> None:
        """Pass the lines on as messages. An invalid line is passed on as an error, which the session
        reports."""
        import anyio
        from mcp.shared.message import SessionMessage
        from mcp.types import jsonrpc_message_adapter

        assert process.stdout is not None
        buffer = bytearray()
        async with to_client:
            while data := await process.stdout.receive_some(PIECE):
                if not self._answers.take(len(data)):
                    return
                buffer += data
                if b"\n" not in data:
                    continue
                *lines, rest = bytes(buffer).split(b"\n")
                buffer[:] = rest
                if not self._answers.take(LEAST_BYTES * len(lines)):
                    return
                for line in lines:
                    try:
                        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                        found: Any = SessionMessage(message)
                    except ValueError as error:
                        found = error
                    try:
                        await to_client.send(found)
                    except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                        return

    async def _write(
        self, process: trio.Process, from_client: Any, gone: tuple[type[Exception], ...]
    ) -> None:
        assert process.stdin is not None
        with suppress(*gone):
            async for each in from_client:
                text = each.message.model_dump_json(by_alias=True, exclude_unset=True)
                await process.stdin.send_all(text.encode() + b"\n")

    async def _keep_stderr(self, process: trio.Process) -> None:
        assert process.stderr is not None
        while data := await process.stderr.receive_some(PIECE):
            self.stderr = (self.stderr + data)[-STDERR_BYTES:]


async def _end(process: trio.Process) -> None:
    """Close its input, then SIGTERM, then SIGKILL, for all of its session that are in its group."""
    assert process.stdin is not None
    await process.stdin.aclose()
    for number in (signal.SIGTERM, signal.SIGKILL):
        with trio.move_on_after(END_SECONDS):
            await process.wait()
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
    with trio.move_on_after(END_SECONDS):
        await process.wait()
