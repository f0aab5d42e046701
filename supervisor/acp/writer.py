"""Sends frames to an agent: at once if its input takes them, else through a bounded queue."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from supervisor.acp.trace import Trace

WRITE_BYTES: Final = 64 * 1024
"""Queued frames are joined into writes of about this size, bytes."""

AT_ONCE_BYTES: Final = 16 * 1024
"""The largest frame that is written immediately if the queue is empty, bytes. This saves one pass of Trio's
loop, which the writer task would need."""

MAX_QUEUED_BYTES: Final = 64 * 1024 * 1024
"""Bytes that may be queued for an agent that does not read its input, beyond one frame.

More ends the connection, since neither side could continue.
"""

FRAME_OVERHEAD_BYTES: Final = 64
"""Bytes that a queued frame counts in addition to its length, so that a million small answers are bounded."""


class Writer:
    """The way to an agent's input. `fail` is called with the reason when too much is queued."""

    def __init__(self, stream: trio.abc.SendStream, trace: Trace, fail: Callable[[str], None]) -> None:
        self._stream = stream
        self._trace = trace
        self._fail = fail
        self._closed = False
        self._outbox: deque[bytes] = deque()
        self._queued = 0  # bytes in the outbox and in the write under way
        self._to_send = trio.Event()

    def send(self, frame: bytes) -> None:
        """Send a frame, or queue it. Does nothing after `close`."""
        if self._closed:
            return
        if self._queued and self._queued + len(frame) > MAX_QUEUED_BYTES:
            self._fail(f"the agent does not read its input: {self._queued} bytes wait in its queue")
            return
        self._trace.record(">", trio.current_time(), frame)
        if not self._queued and len(frame) <= AT_ONCE_BYTES:
            frame = frame[self._write_at_once(frame) :]
            if not frame:
                return
        self._outbox.append(frame)
        self._queued += len(frame) + FRAME_OVERHEAD_BYTES
        self._to_send.set()

    def _write_at_once(self, frame: bytes) -> int:
        """Write what the pipe takes without waiting, if nothing is queued; return the number of bytes. `run`
        finds errors: its next write fails in the same way."""
        if not isinstance(self._stream, trio.lowlevel.FdStream):
            return 0
        descriptor = self._stream.fileno()
        if descriptor < 0:
            return 0
        try:
            return os.write(descriptor, frame)  # does not block: FdStream made it so
        except OSError:
            return 0

    def close(self) -> None:
        """Drop what is queued, and end `run`."""
        self._closed = True
        self._outbox.clear()
        self._to_send.set()

    async def run(self) -> None:
        """Write what is queued, until the agent closes its input or the writer is closed."""
        try:
            while True:
                await self._to_send.wait()
                if self._closed:
                    return
                batch = [self._outbox.popleft()]
                size = len(batch[0])
                while self._outbox and size + len(self._outbox[0]) <= WRITE_BYTES:
                    batch.append(self._outbox.popleft())
                    size += len(batch[-1])
                await self._stream.send_all(b"".join(batch) if len(batch) > 1 else batch[0])
                self._queued -= size + len(batch) * FRAME_OVERHEAD_BYTES
                if not self._outbox:
                    self._to_send = trio.Event()
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            return
