"""An ACP connection over two byte streams: one reader, one writer, one task per request of the agent.

One task handles everything that the agent sends, in order of arrival, and calls the handler's hooks as plain
functions. So an answer can neither overtake the updates before it, nor be overtaken by those after it. Slow
work (a permission, a terminal) runs in child tasks.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

import attrs
import structlog
import trio

from supervisor.acp import jsonrpc
from supervisor.acp.errors import ConnectionLost, RequestTimeout
from supervisor.acp.framing import MAX_FRAME_BYTES
from supervisor.acp.handler import Handler, Mask, Result
from supervisor.acp.reader import Reader
from supervisor.acp.trace import Trace
from supervisor.acp.writer import Writer

LAST_OUTPUT_SECONDS: Final = 0.5
"""Seconds to read the agent's remaining output after it closed its input. An exiting agent closes both."""

EXPLAIN_SECONDS: Final = 0.5
"""Seconds that the owner of the process may take to explain why the output ended.

The exit is known within milliseconds. A process that closed its output but still runs must not delay the
tasks that wait for it.
"""


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
        max_frame: int,
        explain: Callable[[], Awaitable[str]] | None,
        mask: Mask | None,
        nursery: trio.Nursery,
    ) -> None:
        self.trace = Trace()
        self.reason: str | None = None
        """Why the connection ended; None while it is open."""
        self.closed = trio.Event()
        """Set when the agent has closed its output, or the connection has failed."""
        self._explain = explain
        self._reading = trio.CancelScope()
        self._nursery = nursery
        self._last_id = 0
        self._calls: dict[int, _Call] = {}
        """Requests without an answer, by their ids, which are never reused."""
        self._writer = Writer(send, self.trace, self.fail)
        self._reader = Reader(
            receive, handler, mask, self.trace, max_frame, nursery, self._writer.send, self._answered
        )
        self.non_protocol_lines = self._reader.non_protocol_lines

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
        if self.reason is not None:
            raise ConnectionLost(self.reason)
        request_id = self._last_id + 1
        frame = jsonrpc.encode_request(request_id, method, params)
        self._last_id = request_id
        # Entered before the frame is queued: an agent may answer at once.
        call = self._calls[request_id] = _Call(on_response)
        self._writer.send(frame)
        try:
            with trio.move_on_after(timeout):
                await call.done.wait()
        finally:
            # Without an answer: by a timeout or a cancellation. A late one finds no call, and is dropped.
            if self._calls.pop(request_id, None) is not None:
                self.notify(jsonrpc.CANCEL_REQUEST, {"requestId": request_id})
        if call.result is None:
            if self.reason is not None:
                raise ConnectionLost(self.reason)
            raise RequestTimeout(method, timeout)
        if call.result.error is not None:
            raise call.result.error
        return call.result.value

    def notify(self, method: str, params: Mapping[str, Any] | None) -> None:
        """Send a notification, or queue it. After the end of the connection it does nothing."""
        self._writer.send(jsonrpc.encode_notification(method, params))

    def hand_over(self, handler: Handler, mask: Mask | None) -> None:
        """Pass later messages of the agent, masked with `mask`, to `handler`. Log lines about them have the
        caller's context.

        The former handler keeps what was read before.
        """
        self._reader.handler, self._reader.mask = handler, mask
        known = structlog.contextvars.get_contextvars()
        for task in self._nursery.child_tasks:
            task.context.run(structlog.contextvars.bind_contextvars, **known)

    def fail(self, reason: str) -> None:
        """End the connection: pending requests fail with ConnectionLost(reason), nothing more is read.

        For the owner of the process, which knows its exit status and stderr. The first reason wins.
        """
        self._lose(reason)
        self._reading.cancel()

    async def _write_all(self) -> None:
        """The writer task. Only the end of the connection cancels it."""
        await self._writer.run()
        if self.reason is None:
            # Earlier output is still unread; it may contain the answer to a pending request.
            with trio.move_on_after(LAST_OUTPUT_SECONDS):
                await self.closed.wait()
            self.fail(await self._explained("the agent closed its input"))

    async def _read_all(self) -> None:
        """The reader task."""
        with self._reading:
            reason = await self._reader.run()
            self._lose(await self._explained(reason))

    async def _explained(self, reason: str) -> str:
        if self._explain is not None and self.reason is None:
            with trio.move_on_after(EXPLAIN_SECONDS):
                return await self._explain()
        return reason

    def _lose(self, reason: str) -> None:
        if self.reason is not None:
            return
        self.reason = reason
        self.closed.set()
        for call in self._calls.values():
            call.done.set()
        self._calls.clear()
        self._reader.ended = True
        # Nothing can be answered any more; what the agent asked for ends with it.
        self._reader.serving.cancel()
        self._writer.close()

    def _answered(self, request_id: jsonrpc.Id, result: Result) -> None:
        call = self._calls.pop(request_id, None) if isinstance(request_id, int) else None
        if call is None:
            return
        call.result = result
        call.done.set()
        if call.on_response is not None:
            call.on_response(result)


@asynccontextmanager
async def open_connection(
    receive: trio.abc.ReceiveStream,
    send: trio.abc.SendStream,
    handler: Handler,
    *,
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
    requests of the agent included, drops what is queued, and fails the pending requests. The block's own
    exceptions come out unchanged.
    """
    failure: BaseException | None = None
    try:
        async with trio.open_nursery() as nursery:
            connection = Connection(
                receive,
                send,
                handler,
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
