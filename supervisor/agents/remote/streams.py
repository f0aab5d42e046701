"""Standard streams of a bridge: no thread, no flag that other processes would share, and no bytes of others.

A descriptor that can be waited for is read and written when it is ready, at most PIPE_BUF bytes in one write:
so much never blocks. Files are always ready.
"""

from __future__ import annotations

import os
import select
import sys
from collections import deque
from collections.abc import AsyncIterator, Iterable
from typing import Final

import trio

READ_BYTES: Final = 64 * 1024

QUEUE_BYTES: Final = 64 * 1024
"""Bytes for an editor that does not read, above which the server is not read either."""

YIELD_BYTES: Final = 256 * 1024
"""Bytes written until other tasks may have their turn."""


class Input:
    """Lines of standard input."""

    def __init__(self, descriptor: int, line_bytes: int) -> None:
        self._descriptor = descriptor
        self._line_bytes = line_bytes
        self._waits = _can_wait(descriptor, select.EPOLLIN)

    async def lines(self) -> AsyncIterator[bytes | None]:
        """Every line without its end; None for one of more than `line_bytes`, which is left out.

        Ends at the end of input. Cancellation takes no bytes.
        """
        line, seen, skipping = bytearray(), 0, False
        while data := await self._some():
            line += data
            while (end := line.find(b"\n", seen)) >= 0:
                yield None if skipping or end > self._line_bytes else bytes(line[:end])
                del line[: end + 1]
                seen, skipping = 0, False
            if len(line) > self._line_bytes:
                skipping = True
            if skipping:
                line.clear()
            seen = len(line)
        if line or skipping:
            yield None if skipping else bytes(line)

    async def _some(self) -> bytes:
        if self._waits:
            await trio.lowlevel.wait_readable(self._descriptor)
        else:
            await trio.lowlevel.checkpoint()
        try:
            return os.read(self._descriptor, READ_BYTES)
        except OSError:  # a terminal that is gone
            return b""


class Output:
    """Lines of standard output: a queue, and the task that writes it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._waits = _can_wait(descriptor, select.EPOLLOUT)
        self._ready = select.poll()
        self._ready.register(descriptor, select.POLLOUT)
        self._queue: deque[bytes] = deque()
        self._bytes = 0
        self._changed = trio.Event()

    def put(self, lines: Iterable[bytes]) -> None:
        """Queue lines, without their ends. Wait for `room` before the next ones."""
        for line in lines:
            self._queue.append(line)
            self._bytes += len(line) + 1
        self._wake()

    async def room(self, most: int = QUEUE_BYTES) -> None:
        """Wait until no more than `most` bytes are queued."""
        while self._bytes > most:
            await self._changed.wait()

    async def run(self) -> None:
        """Write what is queued, until cancelled, which may leave a part of a line. Raises BrokenPipeError."""
        while True:
            while not self._queue:
                await self._changed.wait()
            data = bytearray()
            while self._queue and len(data) < select.PIPE_BUF:
                data += self._queue.popleft()
                data += b"\n"
            await self._write(memoryview(data))
            self._bytes -= len(data)
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = trio.Event()

    async def _write(self, data: memoryview) -> None:
        done = paused = 0
        while done < len(data):
            if self._waits and not self._ready.poll(0):
                await trio.lowlevel.wait_writable(self._descriptor)
            done += os.write(self._descriptor, data[done : done + select.PIPE_BUF])
            if done - paused > YIELD_BYTES:
                paused = done
                await trio.lowlevel.checkpoint()


def taken() -> tuple[int, int]:
    """Take standard input and output away from all other code: what that prints goes to standard error."""
    given, out = os.dup(0), os.dup(1)
    sys.stdout.flush()
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return given, out


def _can_wait(descriptor: int, event: int) -> bool:
    with select.epoll() as found:
        try:
            found.register(descriptor, event)
        except PermissionError:  # a file
            return False
    return True
