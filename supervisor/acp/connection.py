"""An ACP connection over two byte streams: one reader, one writer, one task per request of the agent.

One task handles everything that the agent sends, in order of arrival, and calls the handler's hooks as plain
functions. So an answer can neither overtake the updates before it, nor be overtaken by those after it. Slow
work (a permission, a terminal) runs in child tasks.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import attrs
import structlog
import trio

from supervisor.acp import jsonrpc
from supervisor.acp.errors import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    REQUEST_CANCELLED,
    ConnectionLost,
    FrameTooLarge,
    RequestTimeout,
    RpcError,
    refusal,
)
from supervisor.acp.framing import HEAD_BYTES, MAX_FRAME_BYTES, FrameSplitter, Oversize, salvage
from supervisor.acp.handler import Handler, Mask, Result
from supervisor.acp.jsonrpc import CANCEL_REQUEST
from supervisor.acp.large import encoded, masked, work
from supervisor.acp.repeats import RepeatLimiter
from supervisor.acp.trace import Trace
from supervisor.fairness import share
from supervisor.reading.weight import SMALL_BYTES, is_large

RECEIVE_BYTES: Final = 64 * 1024
"""Bytes read at once: the default size of a pipe."""

WRITE_BYTES: Final = 64 * 1024
"""Queued frames are joined into writes of about this size, bytes."""

AT_ONCE_BYTES: Final = 16 * 1024
"""The largest frame that is written immediately if the queue is empty, bytes. This saves one pass of Trio's
loop, which the writer task would need."""

MAX_QUEUED_BYTES: Final = 64 * 1024 * 1024
"""Bytes that may be queued for an agent that does not read its input, beyond one frame.

More ends the connection, since neither side could continue.
"""

MAX_AGENT_REQUESTS: Final = 1000
"""The most requests of the agent in progress. Beyond that, further ones are answered with errors."""

MAX_AGENT_REQUEST_BYTES: Final = 64 * 1024 * 1024
"""The most bytes of the agent's requests in progress together; further ones are refused.

Four of the largest, which is as many files as are written at a time.
"""

LONG_ANSWERS: Final = frozenset({"fs/read_text_file", "terminal/output"})
"""Methods that may return megabytes for a request of a few bytes."""

LONG_ANSWERS_AT_ONCE: Final = 2
"""The most such answers encoded for one agent at a time: a thousand would take gigabytes.

Two, since one may be blocked on a file system.
"""

FRAME_OVERHEAD_BYTES: Final = 64
"""Bytes that a queued frame counts in addition to its length, so that a million small answers are bounded."""

FLUSH_MESSAGES: Final = 16
FLUSH_BYTES: Final = 16 * 1024
"""Notifications, and bytes of them, after which the handler is flushed at the latest. Batching is cheaper,
and a batch of this size takes less than a millisecond, far less than a reader's turn."""

REQUEST_MESSAGES: Final = 10
"""How many messages a request counts as in a reader's turn, since the task that answers it runs after the
turn."""

NOISE_LINES: Final = 16
"""How many of the last non-protocol lines are kept: they may explain why the agent exited."""

NOISE_BYTES: Final = 4096
"""Bytes of each non-protocol line that are kept and passed on."""

SHOWN_METHOD_CHARS: Final = 100
"""Characters of a method's name in the log."""

LAST_WORDS_SECONDS: Final = 0.5
"""Seconds to read the agent's remaining output after it closed its input. An exiting agent closes both."""

EXPLAIN_SECONDS: Final = 0.5
"""Seconds that the owner of the process may take to explain why the output ended.

The exit is known within milliseconds. A process that closed its output but still runs must not delay the
tasks that wait for it.
"""

log = structlog.get_logger(__name__)


@attrs.define(eq=False)
class _Call:
    on_response: Callable[[Result], None] | None
    done: trio.Event = attrs.field(factory=trio.Event)
    result: Result | None = None


class Connection:
    """An open connection. Made by `open_connection`; used from Trio tasks only."""

    def __init__(
        self,
        receive: trio.abc.ReceiveStream,
        send: trio.abc.SendStream,
        handler: Handler,
        trace: Trace,
        max_frame: int,
        explain: Callable[[], Awaitable[str]] | None,
        mask: Mask | None,
        nursery: trio.Nursery,
    ) -> None:
        self.trace = trace
        self.closed = trio.Event()
        """Set when the agent has closed its output, or the connection has failed."""
        self.noise_lines: deque[tuple[float, bytes]] = deque(maxlen=NOISE_LINES)
        """The agent's last non-protocol lines, each with its arrival time (Trio's clock). Not masked."""
        self._receive = receive
        self._send = send
        self._handler = handler
        self._splitter = FrameSplitter(max_frame)
        self._explain = explain
        self._mask = mask
        self._nursery = nursery
        self._calls: jsonrpc.RequestTable[_Call] = jsonrpc.RequestTable()
        self._serving: dict[jsonrpc.Id, trio.CancelScope] = {}
        self._serving_bytes = 0
        self._long_answers = trio.Semaphore(LONG_ANSWERS_AT_ONCE)
        self._share = share()
        self._noise, self._oversize = RepeatLimiter("noise"), RepeatLimiter("oversize")
        self._faults = RepeatLimiter("faults")
        self._reading = trio.CancelScope()
        self._reason: str | None = None
        self._outbox: deque[bytes] = deque()
        self._queued = 0  # bytes in the outbox and in the write under way
        self._to_send = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self._now = trio.current_time()
        # Notifications that the handler has not flushed:
        self._unflushed = 0
        self._unflushed_bytes = 0
        self._clean: object = None
        """The set of secrets (`Mask.known`) that the current frame is known not to contain."""

    @property
    def reason(self) -> str | None:
        """Why the connection ended; None while it is open."""
        return self._reason

    async def request(
        self,
        method: str,
        params: Mapping[str, Any] | None,
        *,
        timeout: float,
        on_response: Callable[[Result], None] | None = None,
    ) -> Any:
        """Send a request, and return the result: any JSON value, null included.

        `timeout`: in seconds. `on_response`: called by the reader when the answer arrives, before any later
        message; not called without an answer.

        Raises RpcError (the agent's error; FrameTooLarge for an answer over the limit), RequestTimeout,
        ConnectionLost.

        Cancellation and timeout both send `$/cancel_request`; a late answer is dropped.
        """
        if self._reason is not None:
            raise ConnectionLost(self._reason)
        frame = jsonrpc.encode_request(self._calls.next_id, method, params)
        call = _Call(on_response)
        request_id = self._calls.open(call)
        self._enqueue(frame)
        try:
            with trio.move_on_after(timeout):
                await call.done.wait()
        finally:
            if self._calls.abandon(request_id):
                self.notify(CANCEL_REQUEST, {"requestId": request_id})
        if call.result is None:
            if self._reason is not None:
                raise ConnectionLost(self._reason)
            raise RequestTimeout(method, timeout)
        if call.result.error is not None:
            raise call.result.error
        return call.result.value

    def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Send a notification. It is only queued; `drained` waits until it is written.

        After the end of the connection it does nothing.
        """
        self._enqueue(jsonrpc.encode_notification(method, params))

    async def drained(self) -> None:
        """Wait until everything queued has been written to the stream, or the connection has ended."""
        await self._idle.wait()

    def hand_over(self, handler: Handler, mask: Mask | None) -> None:
        """Pass later messages of the agent, masked with `mask`, to `handler`. Log lines about them have the
        caller's context.

        The former handler keeps what was read before.
        """
        self._handler, self._mask = handler, mask
        known = structlog.contextvars.get_contextvars()
        for task in self._nursery.child_tasks:
            task.context.run(structlog.contextvars.bind_contextvars, **known)

    def fail(self, reason: str) -> None:
        """End the connection: pending requests fail with ConnectionLost(reason), nothing more is read.

        For the owner of the process, which knows its exit status and stderr. The first reason wins.
        """
        self._lose(reason)
        self._reading.cancel()

    # -- writing -------------------------------------------------------------------------------------------

    def _enqueue(self, frame: bytes) -> None:
        if self._reason is not None:
            return
        if self._queued and self._queued + len(frame) > MAX_QUEUED_BYTES:
            self.fail(f"the agent does not read its input: {self._queued} bytes wait in its queue")
            return
        self.trace.record(">", trio.current_time(), frame)
        if not self._queued and len(frame) <= AT_ONCE_BYTES:
            frame = frame[self._write_at_once(frame) :]
            if not frame:
                return
        self._outbox.append(frame)
        self._queued += len(frame) + FRAME_OVERHEAD_BYTES
        self._to_send.set()
        if self._idle.is_set():
            self._idle = trio.Event()

    def _write_at_once(self, frame: bytes) -> int:
        """Write what the pipe takes without waiting, if nothing is queued; return the number of bytes. The
        writer task reports errors: its next write fails in the same way."""
        if not isinstance(self._send, trio.lowlevel.FdStream):
            return 0
        descriptor = self._send.fileno()
        if descriptor < 0:
            return 0
        try:
            return os.write(descriptor, frame)  # does not block: FdStream made it so
        except OSError:
            return 0

    async def _write_all(self) -> None:
        """The writer task. Only the end of the connection cancels it."""
        try:
            while True:
                await self._to_send.wait()
                if self._reason is not None:
                    return
                batch = [self._outbox.popleft()]
                size = len(batch[0])
                while self._outbox and size + len(self._outbox[0]) <= WRITE_BYTES:
                    batch.append(self._outbox.popleft())
                    size += len(batch[-1])
                await self._send.send_all(b"".join(batch) if len(batch) > 1 else batch[0])
                self._queued -= size + len(batch) * FRAME_OVERHEAD_BYTES
                if not self._outbox:
                    self._to_send = trio.Event()
                    self._idle.set()
        except (trio.BrokenResourceError, trio.ClosedResourceError, OSError):
            # Earlier output is still unread; it may contain the answer to a pending request.
            with trio.move_on_after(LAST_WORDS_SECONDS):
                await self.closed.wait()
            self.fail(await self._explained("the agent closed its input"))

    # -- reading -------------------------------------------------------------------------------------------

    async def _read_all(self) -> None:
        """The reader task. It yields after each turn (`fairness`), even in the middle of a piece."""
        reason = "the agent closed its output"
        with self._told_at_the_end(), self._reading:
            try:
                while data := await self._receive.receive_some(RECEIVE_BYTES):
                    self._now = trio.current_time()
                    piece = bytes(data)
                    begins = self._splitter.between  # else this piece has only the end of the first frame
                    searched = self._searched(piece)
                    self._clean = searched if begins else None
                    for frame in self._splitter.frames(piece):
                        if self._share.spent():
                            self._flush()
                            await self._share.turn()
                        if type(frame) is bytes and (len(frame) <= SMALL_BYTES or not is_large(frame)):
                            if frame:
                                self._dispatch(frame)
                        else:
                            self._flush()
                            await self._take(frame)
                        if self._reason is not None:
                            self._flush()
                            return  # handling the last frame ended the connection
                        self._clean = searched
                    self._flush()
                    self._share.rest()
                    await self._handler.backpressure()
            except (trio.BrokenResourceError, trio.ClosedResourceError, OSError) as error:
                reason = f"reading the agent's output failed: {error}"
            for frame in self._splitter.finish():
                await self._take(frame)
            self._flush()
            self._lose(await self._explained(reason))

    async def _explained(self, reason: str) -> str:
        if self._explain is not None and self._reason is None:
            with trio.move_on_after(EXPLAIN_SECONDS):
                return await self._explain()
        return reason

    def _lose(self, reason: str) -> None:
        if self._reason is not None:
            return
        self._reason = reason
        self.closed.set()
        self._to_send.set()
        for call in self._calls.take_all():
            call.done.set()
        for scope in self._serving.values():
            scope.cancel()
        self._outbox.clear()
        self._idle.set()

    async def _take(self, frame: bytes | Oversize) -> None:
        if isinstance(frame, Oversize):
            self._take_oversize(frame)
        elif is_large(frame):
            await self._take_large(frame)
        else:
            self._dispatch(frame)

    def _dispatch(self, frame: bytes) -> None:
        message = jsonrpc.parse(frame)
        if type(message) is jsonrpc.Noise:
            self._take_noise(message.line)
            return
        self.trace.record("<", self._now, frame)
        mask = self._mask
        if mask is not None and mask.known is not self._clean and mask.suspects(frame):
            message = masked(message, mask)
        if type(message) is jsonrpc.Notification and message.method != CANCEL_REQUEST:
            self._notified(message, len(frame))
        else:
            self._act(message, frame)

    def _searched(self, piece: bytes) -> object:
        """The set of secrets (`Mask.known`) that this piece was searched for and does not contain; None if it
        may contain one.

        Searching a piece is cheaper than searching its frames one by one.
        """
        mask = self._mask
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
        self.trace.record("<", self._now, frame)
        for message in messages:
            if self._share.spent():
                await self._share.turn()
            if self._reason is None:
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
        if self._mask is not None and self._mask.suspects(frame):
            message = masked(message, self._mask)
        if isinstance(message, jsonrpc.Notification | jsonrpc.Request):
            prepared = self._handler.prepare(message.method, message.params)
            return [attrs.evolve(message, params=params) for params in prepared]
        return [message]

    def _flush(self) -> None:
        if self._unflushed:
            self._unflushed = self._unflushed_bytes = 0
            self._handler.flush()

    def _notified(self, message: jsonrpc.Notification, size: int) -> None:
        self._unflushed += 1
        self._unflushed_bytes += size
        self._handler.notification(message.method, message.params)
        if self._unflushed >= FLUSH_MESSAGES or self._unflushed_bytes > FLUSH_BYTES:
            self._flush()

    def _act(self, message: jsonrpc.Message, frame: bytes) -> None:
        if isinstance(message, jsonrpc.Notification) and message.method != CANCEL_REQUEST:
            self._notified(message, len(frame))
            return
        self._flush()
        if isinstance(message, jsonrpc.Notification):
            self._take_back(message.params)
        elif isinstance(message, jsonrpc.Response):
            self._answered(message.id, Result(message.result, message.error))
        elif isinstance(message, jsonrpc.Request):
            self._share.spent(REQUEST_MESSAGES - 1)
            self._serve(message, len(frame))
        elif isinstance(message, jsonrpc.Invalid):
            self._refuse(message.id, RpcError(INVALID_REQUEST, f"Invalid request: {message.reason}"))
        elif isinstance(message, jsonrpc.Refused):
            self._take_oversize(salvage(frame[:HEAD_BYTES], len(frame), message.reason))
        else:
            self._take_noise(message.line)

    def _take_noise(self, line: bytes) -> None:
        self._flush()
        counted = self._counted(self._noise, len(line))
        line = line[:NOISE_BYTES]
        self.noise_lines.append((self._now, line))
        if counted:
            return
        self.trace.record("<", self._now, line)
        if self._mask is not None:
            line = self._mask.beginning(line.decode("utf-8", "replace")).encode()
        self._handler.noise(line)

    def _counted(self, repeats: RepeatLimiter, size: int) -> bool:
        """Whether this occurrence is only counted, not reported."""
        if repeats.note(size, self._now):
            return False
        told = repeats.due(self._now)
        if told is not None:
            self._handler.repeated(told)
        return True

    @contextmanager
    def _told_at_the_end(self) -> Iterator[None]:
        try:
            yield
        finally:
            for repeats in (self._noise, self._oversize, self._faults):
                told = repeats.rest()
                if told is not None:
                    self._handler.repeated(told)

    def _answered(self, request_id: jsonrpc.Id, result: Result) -> None:
        call = self._calls.take(request_id)
        if call is None:
            return
        call.result = result
        call.done.set()
        if call.on_response is not None:
            call.on_response(result)

    def _take_oversize(self, frame: Oversize) -> None:
        limit = self._splitter.max_frame
        reason = f"over the limit of {limit} bytes" if frame.reason is None else frame.reason
        if frame.answers and frame.id is not None:
            self._answered(frame.id, Result(None, FrameTooLarge(frame.size, limit, frame.reason)))
            return
        if frame.id is not None and frame.method is not None:
            data = {"size": frame.size, "maxFrameBytes": limit}
            words = f"Message refused: {refusal(frame.size, limit, frame.reason)}"
            self._refuse(frame.id, RpcError(INVALID_REQUEST, words, data))
        if not self._counted(self._oversize, frame.size):
            self.trace.record("<", self._now, f"(discarded: {reason})".encode(), frame.size)
            self._handler.oversize(frame)

    # -- requests of the agent -----------------------------------------------------------------------------

    def _refuse(self, request_id: jsonrpc.Id, error: RpcError) -> None:
        self._enqueue(jsonrpc.encode_error(request_id, error))

    def _serve(self, request: jsonrpc.Request, size: int) -> None:
        if request.id in self._serving:
            self._refuse(request.id, RpcError(INVALID_REQUEST, "A request with this id is still in progress"))
            return
        if len(self._serving) >= MAX_AGENT_REQUESTS or (
            self._serving and self._serving_bytes + size > MAX_AGENT_REQUEST_BYTES
        ):
            self._refuse(request.id, RpcError(INTERNAL_ERROR, "Too many requests at once"))
            return
        try:
            answer = self._handler.request(request.method, request.params)
        except RpcError as error:
            self._refuse(request.id, error)
            return
        except Exception:  # noqa: BLE001 - logged by _fault
            self._refuse(request.id, self._fault(request))
            return
        scope = self._serving[request.id] = trio.CancelScope()
        self._serving_bytes += size
        self._nursery.start_soon(self._answer, request, answer, scope, size, name="agent request")

    async def _answer(
        self, request: jsonrpc.Request, answer: Awaitable[Any], scope: trio.CancelScope, size: int
    ) -> None:
        """The task of one request of the agent; cancelled when the agent cancels the request or the
        connection ends."""
        frame = b""
        with scope:
            try:
                frame = await self._made(request, answer)
            except RpcError as error:
                frame = jsonrpc.encode_error(request.id, error)
            except Exception:  # noqa: BLE001 - logged by _fault
                frame = jsonrpc.encode_error(request.id, self._fault(request))
        del self._serving[request.id]
        self._serving_bytes -= size
        if scope.cancelled_caught:
            frame = jsonrpc.encode_error(request.id, RpcError(REQUEST_CANCELLED, "Request cancelled"))
        self._enqueue(frame)

    async def _made(self, request: jsonrpc.Request, answer: Awaitable[Any]) -> bytes:
        """Encode the answer as a line. Long answers take turns (LONG_ANSWERS_AT_ONCE)."""
        if request.method not in LONG_ANSWERS:
            return await encoded(request.id, await answer)
        try:
            await self._long_answers.acquire()
        except trio.Cancelled:
            if isinstance(answer, Coroutine):
                answer.close()
            raise
        try:
            return await encoded(request.id, await answer)
        finally:
            self._long_answers.release()

    def _take_back(self, params: Any) -> None:
        request_id = params.get("requestId") if isinstance(params, dict) else None
        if isinstance(request_id, int | float | str) and request_id in self._serving:
            self._serving[request_id].cancel()

    def _fault(self, request: jsonrpc.Request) -> RpcError:
        """Report an internal error to the agent and to the log; the connection stays open."""
        if not self._counted(self._faults, 0):
            log.exception("agent request failed", method=request.method[:SHOWN_METHOD_CHARS])
        return RpcError(INTERNAL_ERROR, "Internal error")


@asynccontextmanager
async def open_connection(
    receive: trio.abc.ReceiveStream,
    send: trio.abc.SendStream,
    handler: Handler,
    *,
    trace: Trace | None = None,
    max_frame: int = MAX_FRAME_BYTES,
    explain: Callable[[], Awaitable[str]] | None = None,
    mask: Mask | None = None,
) -> AsyncIterator[Connection]:
    """Run a connection over two byte streams while the block runs.

    `mask` is applied to notifications, answers and non-protocol lines. The agent's requests are not masked,
    since a file that it writes must keep its content. The trace stores frames unmasked; rendering masks them.

    `explain` is called, for at most half a second, when the agent's output ends; its result becomes the
    reason of ConnectionLost.

    The caller owns the streams; they are not closed here. Leaving the block stops everything at once,
    requests of the agent included, and fails the pending requests; use `drained` before, if queued frames
    must arrive. The block's own exceptions come out unchanged.
    """
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            connection = Connection(
                receive,
                send,
                handler,
                trace if trace is not None else Trace(),
                max_frame,
                explain,
                mask,
                nursery,
            )
            nursery.start_soon(connection._read_all, name="agent reader")
            nursery.start_soon(connection._write_all, name="agent writer")
            try:
                yield connection
            finally:
                connection.fail("the connection was closed")
                nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        # The nursery is an implementation detail: remove its exception group, one level.
        if len(group.exceptions) != 1:
            raise
        failure = group.exceptions[0]
    if failure is not None:
        raise failure
