"""The calls that a connection makes when the agent sends something."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

import attrs

from supervisor.acp.errors import RpcError
from supervisor.acp.framing import Oversize
from supervisor.acp.repeats import Repeats


class Mask(Protocol):
    """Replaces secrets in what an agent says."""

    @property
    def known(self) -> object:
        """An object that stands for the secrets that it looks for: another one when there are more."""

    def suspects(self, document: bytes) -> bool:
        """Whether a JSON text may contain a secret; called for every frame."""

    def value(self, value: Any) -> Any:
        """A JSON value without secrets."""

    def text(self, text: str) -> str:
        """A text without secrets."""

    def beginning(self, text: str) -> str:
        """A text that is cut off, without secrets or parts of them."""


@attrs.frozen
class Result:
    """The agent's answer to a request: `error` None means success, with any `value`, null included."""

    value: Any
    error: RpcError | None = None

    def masked(self, mask: Mask) -> Result:
        """The result with secrets masked."""
        if self.error is None:
            return Result(mask.value(self.value))
        error = self.error
        return Result(None, RpcError(error.code, mask.text(error.message), mask.value(error.data)))


class Handler(Protocol):
    """What a connection does with what the agent sends. Implemented by a conversation.

    `notification`, `flush`, `noise` and `oversize` are called by the reader itself, in order of arrival; an
    exception from them ends the connection and comes out of `open_connection`.
    """

    def notification(self, method: str, params: Any) -> None:
        """The agent sent a notification. What comes of it may wait for `flush`."""

    def flush(self) -> None:
        """Pass on what came of the notifications so far. Called after some of them, before anything else is
        called, and before the reader waits: no other task runs in between."""

    def request(self, method: str, params: Any) -> Awaitable[Any]:
        """The agent sent a request.

        Called in order of arrival. The result is awaited in a task of its own, which is cancelled when the
        agent takes the request back. Raise RpcError to answer with an error
        (`RpcError.method_not_found(method)` for a method that is not offered); any other exception is logged
        and answered as an internal error. With `async def` everything happens in the task.
        """

    def prepare(self, method: str, params: Any) -> Sequence[Any]:
        """Cut the parameters of a large notification or request, in a worker thread.

        `notification` is then called with each of the results, one after the other; `request` with the first.
        It must touch nothing that another task may touch.
        """

    def noise(self, line: bytes) -> None:
        """The agent wrote a line that is not a message, cut to its first 4 KiB. Only the first few: see
        `repeated`."""

    def oversize(self, frame: Oversize) -> None:
        """The agent sent a message over the size limit, or too complex, that was not an answer to a request.

        The message is dropped. Only the first few are reported: see `repeated`.
        """

    def repeated(self, counted: Repeats) -> None:
        """More occurrences since the last report: lines that are not messages (`noise`), messages that are
        too large (`oversize`). Called at growing intervals, and at the end of the connection."""

    async def backpressure(self) -> None:
        """Wait until more can be handled. Awaited after each piece read; nothing is read meanwhile."""
