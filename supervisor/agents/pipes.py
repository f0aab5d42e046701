"""The reading ends of an agent's pipes: a stream that ends with the agent, and a bounded tail of lines."""

from __future__ import annotations

import math
import os
from collections import deque
from contextlib import suppress

import trio

DRAIN_AFTER_EXIT_SECONDS = 0.25
"""Total seconds that a reader waits after the agent's exit.

The agent's output is in the pipe already, and a grandchild that holds the other end open may never close it.
"""

DRAIN_AFTER_EXIT_BYTES = 1024 * 1024
"""Bytes that are read after the agent's exit: the size of the largest unprivileged pipe.

So nothing that the agent wrote is lost, and a grandchild that floods the pipe is not read forever.
"""

RECEIVE_BYTES = 65536
"""Default size of one read: the usual capacity of a pipe."""

TAIL_LINES = 200
TAIL_BYTES = 64 * 1024
TAIL_LINE_BYTES = 4096
"""Lines of standard error that are kept, their bytes in all, and the bytes of one line: enough for a stack
trace of any runtime, and small enough to keep for every agent."""


class AgentPipe(trio.abc.ReceiveStream):
    """The reading end of an agent's pipe; it ends soon after the agent, even if another process holds it
    open.

    Owns its file descriptor. One task reads at a time.
    """

    def __init__(self, descriptor: int) -> None:
        self._stream = trio.lowlevel.FdStream(descriptor)
        self._emptied = False
        """Whether the last read returned less than it asked for."""
        self._exited_at: float | None = None
        self._patience = math.inf
        self._left = math.inf
        self._waiting: trio.CancelScope | None = None

    def writer_exited(self) -> None:
        """Note the writer's exit: from now on waiting and reading are limited (see the constants of this
        module)."""
        self._exited_at = trio.current_time()
        self._patience = DRAIN_AFTER_EXIT_SECONDS
        self._left = DRAIN_AFTER_EXIT_BYTES
        if self._waiting is not None:
            self._waiting.deadline = self._exited_at + self._patience

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Return the next bytes, or `b""` at the end. Cancellation loses nothing.

        Raises trio.ClosedResourceError once closed, trio.BusyResourceError for a second reader.
        """
        size = max_bytes or RECEIVE_BYTES
        if self._patience <= 0:
            await trio.lowlevel.checkpoint()
            data = self._receive_now(size)
        else:
            data = await self._receive_patiently(size)
        if self._exited_at is not None:
            self._left = self._left - len(data) if data else 0
        return data

    def receive_at_once(self, size: int = RECEIVE_BYTES) -> bytes:
        """Return at most `size` bytes that are in the pipe already, or `b""`. Another task may be waiting for
        some."""
        if self._stream.fileno() < 0:
            return b""
        data = self._receive_now(size)
        if self._exited_at is not None:
            self._left -= len(data)
        return data

    def close(self) -> None:
        """Close the descriptor. No task may be waiting for it."""
        self._stream.close()

    async def aclose(self) -> None:
        """Close the descriptor; a waiting reader gets trio.ClosedResourceError."""
        await self._stream.aclose()

    async def _receive_patiently(self, size: int) -> bytes:
        began = trio.current_time()
        with trio.CancelScope(deadline=began + self._patience) as self._waiting:
            try:
                return await self._receive(size)
            finally:
                self._waiting = None
                if self._exited_at is not None:
                    self._patience -= trio.current_time() - max(began, self._exited_at)
        return self._receive_now(size)

    async def _receive(self, size: int) -> bytes:
        descriptor = self._stream.fileno()
        if self._emptied and descriptor >= 0:
            # Waits for an empty pipe at once. Trio's stream would first make a checkpoint and a vain read.
            await trio.lowlevel.wait_readable(descriptor)
            with suppress(OSError):
                if self._stream.fileno() == descriptor:
                    data = os.read(descriptor, size)
                    self._emptied = len(data) < size
                    return data
        data = bytes(await self._stream.receive_some(size))
        self._emptied = len(data) < size
        return data

    def _receive_now(self, size: int) -> bytes:
        """Read what is in the pipe already: on a busy machine the deadline may pass before that is read."""
        if self._left <= 0:
            return b""
        descriptor = self._stream.fileno()
        if descriptor < 0:
            raise trio.ClosedResourceError("this pipe is closed")
        try:
            return os.read(descriptor, size)  # does not block: FdStream made it non-blocking
        except BlockingIOError:
            return b""


class LineTail:
    """The last lines of a byte stream, bounded in lines and bytes."""

    def __init__(self) -> None:
        self._lines: deque[tuple[float, bytes]] = deque()
        self._bytes = 0
        self._ended = 0
        """How many lines have ended so far."""
        self._open = b""
        """The line that has not ended yet, cut to TAIL_LINE_BYTES."""
        self._now = 0.0

    def feed(self, data: bytes, now: float = 0.0) -> None:
        """Feed the next bytes, cut anywhere. `now`: the time that `timed` returns for lines that they end."""
        self._now = now
        if data.count(b"\n") > TAIL_LINES:
            # Split only what will be kept: a piece may hold thirty thousand lines.
            all_lines = data.count(b"\n")
            _, *lines = data.rsplit(b"\n", TAIL_LINES + 1)
            self._ended += all_lines - len(lines) + 1
            self._open, data = b"", b"\n".join(lines)
        first, *more = data.split(b"\n")
        self._extend(first)
        for part in more:
            self._push()
            self._extend(part)

    def lines(self) -> list[str]:
        """The kept lines, oldest first, with undecodable bytes replaced, including an unfinished last
        line."""
        return [line for _, line in self.timed()]

    def timed(self) -> list[tuple[float, str]]:
        """Return the same lines, each with the time at which its last bytes came."""
        kept = [*self._lines, (self._now, self._open)] if self._open else list(self._lines)
        return [(at, line.decode("utf-8", "replace").rstrip("\r")) for at, line in kept]

    def numbered(self) -> tuple[int, list[str]]:
        """Return the kept lines that have ended, and the number of the first of them, counted from 0."""
        lines = [line.decode("utf-8", "replace").rstrip("\r") for _, line in self._lines]
        return self._ended - len(lines), lines

    def _extend(self, part: bytes) -> None:
        self._open += part[: TAIL_LINE_BYTES - len(self._open)]

    def _push(self) -> None:
        self._lines.append((self._now, self._open))
        self._bytes += len(self._open)
        self._ended += 1
        self._open = b""
        while len(self._lines) > TAIL_LINES or self._bytes > TAIL_BYTES:
            self._bytes -= len(self._lines.popleft()[1])
