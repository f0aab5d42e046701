"""The calls that a connection makes when the agent sends something."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, Protocol

import attrs

from supervisor.acp.errors import RpcError
from supervisor.acp.framing import Oversize
from supervisor.acp.repeats import Repeats


class Mask(Protocol):
    """Replaces what must not be shown of what an agent says."""

    def suspects(self, document: bytes) -> bool:
        """Whether a JSON text may hold something of it; asked for every frame."""

    def value(self, value: Any) -> Any:
        """A JSON value without it."""

    def text(self, text: str) -> str:
        """A text without it."""

    def beginning(self, text: str) -> str:
        """A text that is cut off, without it."""


@attrs.frozen
class Result:
    """The agent's answer to a request: `error` None means success, with any `value`, null included."""

    value: Any
    error: RpcError | None = None

    def masked(self, mask: Mask) -> Result:
        """The same, with nothing in it that must not be shown."""
        if self.error is None:
            return Result(mask.value(self.value))
        error = self.error
        return Result(None, RpcError(error.code, mask.text(error.message), mask.value(error.data)))


class Handler(Protocol):
    """What a connection does with what the agent sends. Implemented by a conversation.

    `notification`, `noise` and `oversize` are called by the reader itself, in order of arrival; an
    exception from them ends the connection and comes out of `open_connection`.
    """

    def notification(self, method: str, params: Any) -> None:
        """The agent told something."""

    def request(self, method: str, params: Any) -> Awaitable[Any]:
        """The agent asks for something.

        Called in order of arrival; the result is awaited in a task of its own, which is cancelled when the
        agent takes the request back. Raise RpcError to answer with an error
        (`RpcError.method_not_found(method)` for what is not offered); any other exception is logged and
        answered as an internal error. With `async def` everything happens in the task.
        """

    def prepare(self, method: str, params: Any) -> Sequence[Any]:
        """Make little of the parameters of a large notification or request, in a worker thread.

        `notification` is then called with each of what this gives, one after the other; `request` with the
        first. Must touch nothing that another task may.
        """

    def noise(self, line: bytes) -> None:
        """The agent wrote a line that is no message; `line` is cut to its first 4 KiB. The first few only:
        see `repeated`."""

    def oversize(self, frame: Oversize) -> None:
        """The agent sent a message over the size cap, or too large in another way, that was no answer to a
        request. It is gone. The first few only: see `repeated`."""

    def repeated(self, counted: Repeats) -> None:
        """So much more came of what is told a few times only, since the last time it was said: lines that are
        no messages (`noise`), messages that are too large (`oversize`). At growing intervals, and at the end
        of the connection."""

    async def backpressure(self) -> None:
        """Return when more can be taken. Awaited after each piece read; while it waits, nothing is read."""
