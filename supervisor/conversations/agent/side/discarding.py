"""Who hears an agent that has no conversation: nobody."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

import trio

from supervisor.acp import Oversize, Repeats, RpcError
from supervisor.conversations.agent.side.session import refuse


class Mute:
    """The connection's `Handler`: what the agent says is dropped, what it asks for is refused."""

    def notification(self, method: str, params: Any) -> None:
        """Ignored."""

    def flush(self) -> None:
        """There is nothing."""

    def request(self, method: str, params: Any) -> Awaitable[Any]:
        """Refused: there is nothing to work on. Raises RpcError."""
        refused = refuse(method, params)
        if refused is None:
            raise RpcError.method_not_found(method)
        return _at_once(refused)

    def prepare(self, method: str, params: Any) -> Sequence[Any]:
        """Nothing of it is kept."""
        return [None]

    def noise(self, line: bytes) -> None:
        """Ignored."""

    def oversize(self, frame: Oversize) -> None:
        """Ignored."""

    def repeated(self, counted: Repeats) -> None:
        """Ignored."""

    async def backpressure(self) -> None:
        """Nothing is behind."""
        await trio.lowlevel.checkpoint()


async def _at_once(answer: Any) -> Any:
    return answer
