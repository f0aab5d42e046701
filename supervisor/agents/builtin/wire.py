"""JSON-RPC over the standard streams: any thread writes lines, a separate thread reads them.

Every reader accepts the lines: they are not too long, not too deep, and without NaN. What is too long is cut:
long strings in their middle, long lists at their end.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import math
import os
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import islice
from typing import Any

log = logging.getLogger(__name__)

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
NOT_FOUND = -32002

LINE_BYTES = 8 * 1024 * 1024
"""Bytes of one message; Ostler ends an agent whose lines are longer than 16 MiB."""

DEPTH = 100
"""Levels of nested objects and lists; deeper values come only from a model."""

SHORTEST = 256
"""Characters of a string, and entries of a list, that are kept at least."""

HIDDEN_CHARS = 6
"""Characters of the shortest secret that is hidden: a shorter one is too common a text."""

TELLING = frozenset({"params", "result", "error"})
"""The members of a message that have content."""

PROTOCOL = frozenset(
    {
        "_meta",
        "code",
        "id",
        "item_id",
        "key",
        "kind",
        "optionId",
        "sessionId",
        "source",
        "stopReason",
        "timestamp",
        "toolCallId",
        "tool_call_id",
        "type",
    }
)
"""Properties with names and ids of the protocol: hiding text in them would break it."""

Handler = Callable[[dict[str, Any]], Awaitable[Any]]


class RpcError(Exception):
    """A request is refused, or was refused by the client."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


class Wire:
    """One client on two file descriptors.

    `notify` may be called from any thread: lines keep the order of the calls, and a client that does not read
    blocks the caller (backpressure). Each request is handled on the event loop, in a separate task. No line
    is longer than LINE_BYTES.
    """

    def __init__(self, reading: int, writing: int) -> None:
        self._reading = reading
        self._writing = writing
        self._lock = threading.Lock()
        self._ids = itertools.count(1)
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._hidden: tuple[str, ...] = ()

    def hide(self, secrets: Iterable[str]) -> None:
        """Hide these from every text from now on, wherever one occurs as a whole, but not from numbers or
        from names and ids of the protocol."""
        wanted = {secret for secret in secrets if len(secret) >= HIDDEN_CHARS}
        wanted |= {json.dumps(secret, ensure_ascii=False)[1:-1] for secret in wanted}
        # The longer of two that overlap is replaced first.
        self._hidden = tuple(sorted({*self._hidden, *wanted}, key=len, reverse=True))

    def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Send a notification. Ignored if the client is gone."""
        self._send({"jsonrpc": "2.0", "method": method, "params": params})

    async def ask(self, method: str, params: Mapping[str, Any]) -> Any:
        """Send a request and wait for its answer. Raises RpcError."""
        number = next(self._ids)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._asked[number] = future
        try:
            self._send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
            return await future
        finally:
            del self._asked[number]

    async def serve(
        self,
        handlers: Mapping[str, Handler],
        at_once: Mapping[str, Callable[..., None]],
        at_end: Callable[[], None],
    ) -> None:
        """Handle messages until the input ends.

        `at_once`: functions that are called on the reading thread, in the order of the input, before the
        handler of a request: a cancel must not wait for a busy loop. `at_end` is called there, too, when the
        input has ended.
        """
        loop = asyncio.get_running_loop()
        ended = asyncio.Event()

        def read() -> None:
            with contextlib.suppress(OSError), os.fdopen(self._reading, "rb", closefd=False) as lines:
                for line in lines:
                    self._take(line, loop, handlers, at_once)
            at_end()
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(ended.set)

        threading.Thread(target=read, name="stdin", daemon=True).start()
        await ended.wait()

    def _take(
        self,
        line: bytes,
        loop: asyncio.AbstractEventLoop,
        handlers: Mapping[str, Handler],
        at_once: Mapping[str, Callable[..., None]],
    ) -> None:
        try:
            message = json.loads(line)
        except ValueError:
            self._send({"jsonrpc": "2.0", "id": None, "error": {"code": PARSE_ERROR, "message": "Not JSON."}})
            return
        if not isinstance(message, dict):
            return
        method = message.get("method")
        if isinstance(method, str) and method in at_once:
            params = message.get("params")
            try:
                at_once[method](params if isinstance(params, dict) else {})
            except Exception:  # the client's input must still be read
                log.exception("%s failed", method)
            if "id" not in message:
                return
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            loop.call_soon_threadsafe(self._dispatch, message, handlers)

    def _dispatch(self, message: dict[str, Any], handlers: Mapping[str, Handler]) -> None:
        method = message.get("method")
        if not isinstance(method, str):
            self._answered(message)
        elif "id" in message:
            task = asyncio.get_running_loop().create_task(self._handle(message, handlers.get(method)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _answered(self, message: dict[str, Any]) -> None:
        number = message.get("id")
        future = self._asked.get(number) if isinstance(number, int) else None
        if future is None or future.done():
            return
        error = message.get("error")
        if isinstance(error, dict):
            future.set_exception(RpcError(error.get("code", INTERNAL_ERROR), str(error.get("message"))))
        else:
            future.set_result(message.get("result"))

    async def _handle(self, message: dict[str, Any], handler: Handler | None) -> None:
        answer: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
        params = message.get("params") or {}
        try:
            answer["result"] = await _checked(message["method"], handler, params)(params)
        except RpcError as error:
            answer["error"] = {"code": error.code, "message": error.message, "data": error.data}
        except Exception as error:  # noqa: BLE001  # the client gets any error as an answer
            text = f"{type(error).__name__}: {error}"
            answer["error"] = {"code": INTERNAL_ERROR, "message": text, "data": {"details": text}}
        self._send(answer)

    def _send(self, message: Mapping[str, Any]) -> None:
        line = line_of(_without(message, self._hidden) if self._hidden else message)
        with self._lock:
            view = memoryview(line)
            try:
                while view:
                    view = view[os.write(self._writing, view) :]
            except OSError:  # the client is gone; the input ends, too, and then this process
                return


def _without(message: Mapping[str, Any], secrets: tuple[str, ...]) -> Mapping[str, Any]:
    """Return the message without these secrets. Call it before cutting: half a secret is not found."""
    telling = {key: each for key, each in message.items() if key in TELLING}
    try:
        telling = _replaced(telling, secrets)
    except RecursionError:
        telling = _replaced(shortened(telling, LINE_BYTES), secrets)
    return {**message, **telling}


def _replaced(value: Any, secrets: tuple[str, ...]) -> Any:
    if isinstance(value, str):
        for secret in secrets:
            if secret in value:
                value = value.replace(secret, "<secret-hidden>")
        return value
    if isinstance(value, dict):
        return {key: each if key in PROTOCOL else _replaced(each, secrets) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(each, secrets) for each in value]
    return value


def _checked(method: str, handler: Handler | None, params: Any) -> Handler:
    if handler is None:
        raise RpcError(METHOD_NOT_FOUND, f"Method not found: {method}")
    if not isinstance(params, dict):
        raise RpcError(INVALID_PARAMS, "The parameters are not an object.")
    return handler


def line_of(message: Any, size: int = LINE_BYTES) -> bytes:
    """Return a message as a line of at most `size` bytes. Cuts are marked. Raises ValueError if that is not
    enough."""
    try:
        line = _encode(message)
    except (RecursionError, ValueError):  # too deep, or not a number
        message = shortened(message, size)
        line = _encode(message)
    chars = size // 4
    while len(line) > size:
        if chars < SHORTEST:
            raise ValueError(f"A message of {len(line)} bytes does not fit into {size}.")
        line = _encode(shortened(message, chars))
        chars //= 4
    return line


def shortened(value: Any, chars: int, depth: int = DEPTH) -> Any:
    """Return `value` with strings longer than `chars` cut in their middle, and lists and objects at their
    end.

    A long data URL is dropped as a whole: half an image is useless. What JSON cannot express is null.
    """
    if isinstance(value, str):
        return _cut(value, chars)
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict | list) and depth == 0:
        return "[...]"
    if isinstance(value, dict):
        return {key: shortened(each, chars, depth - 1) for key, each in islice(value.items(), chars)}
    if isinstance(value, list):
        return [shortened(each, chars, depth - 1) for each in value[:chars]]
    return value


def _encode(message: Any) -> bytes:
    text = json.dumps(message, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode(errors="replace") + b"\n"


def _cut(text: str, chars: int) -> str:
    if len(text) <= chars:
        return text
    if text.startswith("data:"):
        return "data:,"
    half = chars // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half} characters cut ...]\n{text[-half:]}"
