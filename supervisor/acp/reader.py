"""Reads what an agent sends, in order of arrival, and gives each message to those that it concerns."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Final

import attrs
import trio

from supervisor.acp import jsonrpc
from supervisor.acp.errors import INVALID_REQUEST, FrameTooLarge, RpcError, refusal
from supervisor.acp.framing import HEAD_BYTES, FrameSplitter, Oversize, salvage
from supervisor.acp.handler import Handler, Mask, Result, masked
from supervisor.acp.repeats import RepeatLimiter, Repeats
from supervisor.acp.serving import Serving, work
from supervisor.acp.trace import Trace
from supervisor.fairness import share
from supervisor.reading.weight import SMALL_BYTES, is_large

RECEIVE_BYTES: Final = 64 * 1024
"""Bytes read at once: the default size of a pipe."""

FLUSH_MESSAGES: Final = 16
FLUSH_BYTES: Final = 16 * 1024
"""Notifications, and bytes of them, after which the handler is flushed at the latest. Batching is cheaper,
and a batch of this size takes less than a millisecond, far less than a reader's turn."""

REQUEST_MESSAGES: Final = 10
"""How many messages a request counts as in a reader's turn, since the task that answers it runs after the
turn."""

NON_PROTOCOL_LINES: Final = 16
"""How many of the last non-protocol lines are kept: they may explain why the agent exited."""

NON_PROTOCOL_BYTES: Final = 4096
"""Bytes of each non-protocol line that are kept and passed on."""


class Reader:
    """Reads one connection.

    `answered` is called with the id and the result of each answer of the agent. `send` gets the answers to
    its requests, each of which has a task in `nursery`.
    """

    def __init__(
        self,
        stream: trio.abc.ReceiveStream,
        handler: Handler,
        mask: Mask | None,
        trace: Trace,
        max_frame: int,
        nursery: trio.Nursery,
        send: Callable[[bytes], None],
        answered: Callable[[jsonrpc.Id, Result], None],
    ) -> None:
        self.handler = handler
        self.mask = mask
        self.ended = False
        """Set to stop after the current frame."""
        self.non_protocol_lines: deque[tuple[float, bytes]] = deque(maxlen=NON_PROTOCOL_LINES)
        """The agent's last non-protocol lines, each with its arrival time (Trio's clock). Not masked."""
        self._stream = stream
        self._trace = trace
        self._splitter = FrameSplitter(max_frame)
        self._answered = answered
        self._share = share()
        self._non_protocol_output = RepeatLimiter("noise", self.repeated)
        self._oversize = RepeatLimiter("oversize", self.repeated)
        self._faults = RepeatLimiter("faults", self.repeated)
        self.serving = Serving(nursery, send, self._faults)
        self._now = trio.current_time()
        # Notifications that the handler has not flushed:
        self._unflushed = 0
        self._unflushed_bytes = 0
        self._clean: object = None
        """The set of secrets (`Mask.known`) that the current frame is known not to contain."""

    def repeated(self, counted: Repeats) -> None:
        """Report occurrences that were only counted."""
        self.handler.repeated(counted)

    async def run(self) -> str:
        """Read until the agent closes its output. Returns why it ended.

        It yields after each turn (`fairness`), even in the middle of a piece.
        """
        reason = "the agent closed its output"
        try:
            try:
                while data := await self._stream.receive_some(RECEIVE_BYTES):
                    await self._take_piece(bytes(data))
                    # Between pieces, so that a flood waits in the agent's pipe, not in memory.
                    await self.handler.backpressure()
            except (trio.BrokenResourceError, trio.ClosedResourceError, OSError) as error:
                reason = f"reading the agent's output failed: {error}"
            for frame in self._splitter.finish():
                await self._take(frame)
            self._flush()
        finally:
            for repeats in (self._non_protocol_output, self._oversize, self._faults):
                repeats.flush()
        return reason

    async def _take_piece(self, piece: bytes) -> None:
        self._now = trio.current_time()
        begins = self._splitter.between  # else this piece has only the end of the first frame
        searched = self._searched(piece)
        self._clean = searched if begins else None
        for frame in self._splitter.frames(piece):
            if self._share.spent():
                self._flush()
                await self._share.turn()
            # The usual case without another call: this is the hottest loop of a flood.
            if type(frame) is bytes and (len(frame) <= SMALL_BYTES or not is_large(frame)):
                if frame:
                    self._dispatch(frame)
            else:
                self._flush()
                await self._take(frame)
            if self.ended:
                break  # handling the last frame ended the connection
            self._clean = searched
        self._flush()
        self._share.rest()

    async def _take(self, frame: bytes | Oversize) -> None:
        if isinstance(frame, Oversize):
            self._take_oversize(frame)
        elif is_large(frame):
            await self._take_large(frame)
        else:
            self._dispatch(frame)

    def _dispatch(self, frame: bytes) -> None:
        message = jsonrpc.parse(frame)
        if type(message) is jsonrpc.NonProtocolOutput:
            self._take_non_protocol_output(message.line)
            return
        self._trace.record("<", self._now, frame)
        mask = self.mask
        if mask is not None and mask.known is not self._clean and mask.suspects(frame):
            message = masked(message, mask)
        self._act(message, frame)

    def _searched(self, piece: bytes) -> object:
        """The set of secrets (`Mask.known`) that this piece was searched for and does not contain; None if it
        may contain one.

        Searching a piece is cheaper than searching its frames one by one.
        """
        mask = self.mask
        if mask is None:
            return None
        known = mask.known
        return None if mask.suspects(piece) else known

    async def _take_large(self, frame: bytes) -> None:
        """Handle a large frame in a thread; later frames wait.

        When the connection ends, the thread is abandoned, but counts against the limit until it is done. It
        competes with the Trio thread for the GIL, so other tasks run before each large frame.
        """
        self._share.rest()
        large = work()
        async with large.turns:
            await self._share.turn()
            self._share.rest()
            messages, seconds = await trio.to_thread.run_sync(
                self._take_apart, frame, abandon_on_cancel=True, limiter=large.threads
            )
            self._share.charge(seconds)
        self._trace.record("<", self._now, frame)
        for message in messages:
            if self._share.spent():
                await self._share.turn()
            if not self.ended:
                self._act(message, frame)
                self._flush()

    def _take_apart(self, frame: bytes) -> tuple[list[jsonrpc.Message], float]:
        """In a thread: parse and mask a large frame, and let the handler cut it (`Handler.prepare`).

        Also returns the thread's CPU time in seconds.
        """
        begun = time.thread_time()
        messages = self._read_large(frame)
        return messages, time.thread_time() - begun

    def _read_large(self, frame: bytes) -> list[jsonrpc.Message]:
        message = jsonrpc.parse(frame)
        if self.mask is not None and self.mask.suspects(frame):
            message = masked(message, self.mask)
        if isinstance(message, jsonrpc.Notification | jsonrpc.Request):
            prepared = self.handler.prepare(message.method, message.params)
            return [attrs.evolve(message, params=params) for params in prepared]
        return [message]

    def _flush(self) -> None:
        if self._unflushed:
            self._unflushed = self._unflushed_bytes = 0
            self.handler.flush()

    def _act(self, message: jsonrpc.Message, frame: bytes) -> None:
        if type(message) is jsonrpc.Notification and message.method != jsonrpc.CANCEL_REQUEST:
            self._unflushed += 1
            self._unflushed_bytes += len(frame)
            self.handler.notification(message.method, message.params)
            if self._unflushed >= FLUSH_MESSAGES or self._unflushed_bytes > FLUSH_BYTES:
                self._flush()
            return
        self._flush()
        if isinstance(message, jsonrpc.Notification):
            self.serving.take_back(message.params)
        elif isinstance(message, jsonrpc.Response):
            self._answered(message.id, Result(message.result, message.error))
        elif isinstance(message, jsonrpc.Request):
            self._share.spent(REQUEST_MESSAGES - 1)
            self.serving.take(message, len(frame), self.handler)
        elif isinstance(message, jsonrpc.Invalid):
            self.serving.refuse(message.id, RpcError(INVALID_REQUEST, f"Invalid request: {message.reason}"))
        elif isinstance(message, jsonrpc.Refused):
            self._take_oversize(salvage(frame[:HEAD_BYTES], len(frame), message.reason))
        else:
            self._take_non_protocol_output(message.line)

    def _take_non_protocol_output(self, line: bytes) -> None:
        self._flush()
        reported = self._non_protocol_output.should_report(len(line), self._now)
        line = line[:NON_PROTOCOL_BYTES]
        self.non_protocol_lines.append((self._now, line))
        if not reported:
            return
        self._trace.record("<", self._now, line)
        if self.mask is not None:
            line = self.mask.beginning(line.decode("utf-8", "replace")).encode()
        self.handler.non_protocol_output(line)

    def _take_oversize(self, frame: Oversize) -> None:
        limit = self._splitter.max_frame
        reason = f"over the limit of {limit} bytes" if frame.reason is None else frame.reason
        if frame.answers and frame.id is not None:
            self._answered(frame.id, Result(None, FrameTooLarge(frame.size, limit, frame.reason)))
            return
        if frame.id is not None and frame.method is not None:
            data = {"size": frame.size, "maxFrameBytes": limit}
            words = f"Message refused: {refusal(frame.size, limit, frame.reason)}"
            self.serving.refuse(frame.id, RpcError(INVALID_REQUEST, words, data))
        if self._oversize.should_report(frame.size, self._now):
            self._trace.record("<", self._now, f"(discarded: {reason})".encode(), frame.size)
            self.handler.oversize(frame)
