"""A Handler that discards everything, for agents without a conversation."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

import trio

from supervisor.acp import Oversize, Repeats, RpcError
from supervisor.conversations.agent.side.side_session import refuse


class Mute:
    """A `Handler` that drops the agent's notifications and refuses its requests."""

    def notification(self, method: str, params: Any) -> None:
        """Ignored."""

    def flush(self) -> None:
        """Nothing to publish."""

    def request(self, method: str, params: Any) -> Awaitable[Any]:
        """Refuse. Raises RpcError."""
        refused = refuse(method, params)
        if refused is None:
            raise RpcError.method_not_found(method)
        return at_once(refused)

    def prepare(self, method: str, params: Any) -> Sequence[Any]:
        """Drop it."""
        return [None]

    def non_protocol_output(self, line: bytes) -> None:
        """Ignored."""

    def oversize(self, frame: Oversize) -> None:
        """Ignored."""

    def repeated(self, counted: Repeats) -> None:
        """Ignored."""

    async def backpressure(self) -> None:
        """Never wait."""
        await trio.lowlevel.checkpoint()


async def at_once(answer: Any) -> Any:
    """An answer that is known already, to be awaited."""
    return answer
