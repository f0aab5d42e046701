"""Answers an agent's requests: one task for each, which the agent can cancel."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final

import attrs
import structlog
import trio

from supervisor.acp import jsonrpc
from supervisor.acp.errors import INTERNAL_ERROR, INVALID_REQUEST, REQUEST_CANCELLED, RpcError
from supervisor.acp.handler import Handler
from supervisor.acp.repeats import RepeatLimiter
from supervisor.reading.weight import LARGE_BYTES

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

LARGE_AT_ONCE: Final = 1
"""How many large frames of all agents are parsed at a time: each of these threads competes with the Trio
thread for the GIL."""

SHOWN_METHOD_CHARS: Final = 100
"""Characters of a method's name in the log."""

log = structlog.get_logger(__name__)


@attrs.frozen
class Work:
    """The queue and the threads for large frames, shared by all connections of a Trio run."""

    turns: trio.Lock = attrs.field(factory=trio.Lock)
    threads: trio.CapacityLimiter = attrs.field(factory=lambda: trio.CapacityLimiter(LARGE_AT_ONCE))


_shared: trio.lowlevel.RunVar[Work] = trio.lowlevel.RunVar("large frames")


def work() -> Work:
    """Return the `Work` of this Trio run; create it on first use."""
    try:
        return _shared.get()
    except LookupError:
        made = Work()
        _shared.set(made)
        return made


class Serving:
    """The requests of the agent in progress. `send` gets the answers, encoded."""

    def __init__(self, nursery: trio.Nursery, send: Callable[[bytes], None], faults: RepeatLimiter) -> None:
        self._nursery = nursery
        self._send = send
        self._faults = faults
        self._scopes: dict[jsonrpc.Id, trio.CancelScope] = {}
        self._bytes = 0
        self._long_answers = trio.Semaphore(LONG_ANSWERS_AT_ONCE)

    def take(self, request: jsonrpc.Request, size: int, handler: Handler) -> None:
        """Have the handler answer a request of `size` bytes, or refuse it."""
        if request.id in self._scopes:
            self.refuse(request.id, RpcError(INVALID_REQUEST, "A request with this id is still in progress"))
            return
        if len(self._scopes) >= MAX_AGENT_REQUESTS or (
            self._scopes and self._bytes + size > MAX_AGENT_REQUEST_BYTES
        ):
            self.refuse(request.id, RpcError(INTERNAL_ERROR, "Too many requests at once"))
            return
        try:
            answer = handler.request(request.method, request.params)
        except Exception as error:  # noqa: BLE001 - logged by _error
            self.refuse(request.id, self._error(request, error))
            return
        scope = self._scopes[request.id] = trio.CancelScope()
        self._bytes += size
        self._nursery.start_soon(self._answer, request, answer, scope, size, name="agent request")

    def refuse(self, request_id: jsonrpc.Id, error: RpcError) -> None:
        """Answer a request with an error."""
        self._send(jsonrpc.encode_error(request_id, error))

    def take_back(self, params: Any) -> None:
        """The agent cancels a request."""
        request_id = params.get("requestId") if isinstance(params, dict) else None
        if isinstance(request_id, int | float | str) and request_id in self._scopes:
            self._scopes[request_id].cancel()

    def cancel(self) -> None:
        """Cancel all requests in progress."""
        for scope in self._scopes.values():
            scope.cancel()

    async def _answer(
        self, request: jsonrpc.Request, answer: Awaitable[Any], scope: trio.CancelScope, size: int
    ) -> None:
        """The task of one request; cancelled when the agent cancels it or the connection ends."""
        frame = b""
        with scope:
            try:
                frame = await self._frame(request, answer)
            except Exception as error:  # noqa: BLE001 - logged by _error
                frame = jsonrpc.encode_error(request.id, self._error(request, error))
        del self._scopes[request.id]
        self._bytes -= size
        if scope.cancelled_caught:
            frame = jsonrpc.encode_error(request.id, RpcError(REQUEST_CANCELLED, "Request cancelled"))
        self._send(frame)

    async def _frame(self, request: jsonrpc.Request, answer: Awaitable[Any]) -> bytes:
        """The answer as a line. Long answers take turns (LONG_ANSWERS_AT_ONCE)."""
        if request.method not in LONG_ANSWERS:
            return await _encoded(request.id, await answer)
        try:
            await self._long_answers.acquire()
        except trio.Cancelled:
            if isinstance(answer, Coroutine):
                answer.close()
            raise
        try:
            return await _encoded(request.id, await answer)
        finally:
            self._long_answers.release()

    def _error(self, request: jsonrpc.Request, error: Exception) -> RpcError:
        """The error of an answer. A fault is logged; the connection stays open."""
        if isinstance(error, RpcError):
            return error
        if self._faults.should_report(0, trio.current_time()):
            log.error("agent request failed", method=request.method[:SHOWN_METHOD_CHARS], exc_info=error)
        return RpcError(INTERNAL_ERROR, "Internal error")


async def _encoded(request_id: jsonrpc.Id, result: Any) -> bytes:
    """Encode an answer as a line; in a thread if it contains a long text, such as a file's."""
    encode = partial(jsonrpc.encode_result, request_id, result)
    if isinstance(result, dict) and any(isinstance(v, str) and len(v) > LARGE_BYTES for v in result.values()):
        return await trio.to_thread.run_sync(encode, abandon_on_cancel=True, limiter=work().threads)
    return encode()
