"""The callbacks of a connection for messages of the agent."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

import attrs

from supervisor.acp import jsonrpc
from supervisor.acp.errors import RpcError
from supervisor.acp.framing import Oversize
from supervisor.acp.repeats import Repeats


class Mask(Protocol):
    """Replaces secrets in the agent's output."""

    @property
    def known(self) -> object:
        """A token for the present set of secrets; it changes when secrets are added."""

    def suspects(self, document: bytes) -> bool:
        """Whether a JSON text may contain a secret; called for every frame."""

    def value(self, value: Any) -> Any:
        """Return a JSON value with its secrets masked."""

    def text(self, text: str) -> str:
        """Return a text with its secrets masked."""

    def beginning(self, text: str) -> str:
        """Mask a text that is cut off: also the part of a secret at its end."""


@attrs.frozen
class Result:
    """The agent's answer to a request: `error` None means success, with any `value`, null included."""

    value: Any
    error: RpcError | None = None


def masked(message: jsonrpc.Message, mask: Mask) -> jsonrpc.Message:
    """Mask notifications and answers; requests stay unchanged."""
    if isinstance(message, jsonrpc.Notification):
        return jsonrpc.Notification(message.method, mask.value(message.params))
    if isinstance(message, jsonrpc.Response):
        if message.error is None:
            return jsonrpc.Response(message.id, mask.value(message.result), None)
        error = message.error
        error = RpcError(error.code, mask.text(error.message), mask.value(error.data))
        return jsonrpc.Response(message.id, None, error)
    return message


class Handler(Protocol):
    """Handles the agent's messages. Implemented by a conversation.

    The reader task calls `notification`, `flush`, `non_protocol_output` and `oversize` itself, in order of
    arrival; an exception from them ends the connection and propagates from `open_connection`.
    """

    def notification(self, method: str, params: Any) -> None:
        """The agent sent a notification. Its effects may be deferred until `flush`."""

    def flush(self) -> None:
        """Publish the deferred effects of the notifications so far. Called after a batch of them, before any
        other callback, and before the reader waits: no other task runs in between."""

    def request(self, method: str, params: Any) -> Awaitable[Any]:
        """The agent sent a request.

        Called in order of arrival. The result is awaited in a separate task, which is cancelled when the
        agent cancels the request. Raise RpcError to answer with an error
        (`RpcError.method_not_found(method)` for a method that is not offered); any other exception is logged
        and answered as an internal error. With `async def` everything happens in the task.
        """

    def prepare(self, method: str, params: Any) -> Sequence[Any]:
        """Cut the parameters of a large notification or request, in a worker thread.

        `notification` is then called with each of the results, one after the other; `request` with the first.
        It must touch nothing that another task may touch.
        """

    def non_protocol_output(self, line: bytes) -> None:
        """The agent wrote a non-protocol line, cut to its first 4 KiB. Only the first few are reported: see
        `repeated`."""

    def oversize(self, frame: Oversize) -> None:
        """The agent sent a message over the size limit, or too complex, that was not an answer to a request.

        The message is dropped. Only the first few are reported: see `repeated`.
        """

    def repeated(self, counted: Repeats) -> None:
        """Further non-protocol lines, oversize messages or faults since the last report. Called at growing
        intervals, and at the end of the connection."""

    async def backpressure(self) -> None:
        """Wait until more can be handled. The reader awaits it after each piece, and reads nothing
        meanwhile."""
