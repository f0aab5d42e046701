"""The frames of a conversation's session socket, over as many connections as necessary."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any, Final

import trio

from gateway.cli.client import Server
from gateway.cli.failures import Unreachable
from gateway.cli.follow.connection import Lost, websocket

PATIENCE_SECONDS: Final = 60.0
"""Seconds to wait for a server that has ended: its warden restarts it within seconds."""

RETRY_SECONDS: Final = 0.5

GONE_SECONDS: Final = 3.0
"""Seconds without a server until a person reads that it is gone: a warden restarts one sooner."""

LOST: Final = "lost"
"""A type of frames that no server sends."""


class Position:
    """The position in the log, so that a new connection can continue there. `after_seq` None: at its end."""

    def __init__(self, after_seq: int | None) -> None:
        self.after_seq = after_seq
        self._through = -1

    def note(self, frame: dict[str, Any]) -> None:
        """Take a frame into account."""
        match frame:
            case {"type": "durable", "seq": int(seq)}:
                self.after_seq = seq
            case {"type": "sync", "from_seq": int(seq), "through_seq": int(through)}:
                self._through = through
                if self.after_seq is None:
                    self.after_seq = seq - 1

    @property
    def behind(self) -> bool:
        """Whether events that existed when the connection was opened are still to come."""
        return self.after_seq is not None and self.after_seq < self._through

    def caught_up(self, frame: dict[str, Any]) -> bool:
        """Whether, with this frame, all events that existed when the connection was opened have arrived."""
        return frame.get("type") in ("durable", "transient") and not self.behind


@trio.as_safe_channel
async def following(
    server: Server, conversation_id: str, after_seq: int | None
) -> AsyncGenerator[tuple[str, dict[str, Any]]]:
    """Yield frames after a sequence number, as text and read; None: new frames only.

    A lost connection is reopened, and continues after the last event; a frame of type LOST has what to say of
    it, and a second one follows where the server is gone.
    Never ends by itself. Raises Unreachable if the server stays unreachable, and Failure.
    """
    position = Position(after_seq)
    connected, said, lost_at = False, False, 0.0
    until: float | None = None
    while True:
        try:
            async with _connection(server, conversation_id, position.after_seq) as texts:
                async for text in texts:
                    connected, until = True, None
                    frame = json.loads(text)
                    position.note(frame)
                    yield text, frame
        except (Lost, Unreachable) as error:
            if until is None:
                if not connected and isinstance(error, Unreachable):
                    raise
                lost_at, said = trio.current_time(), False
                until = lost_at + PATIENCE_SECONDS
                yield "", {"type": LOST, "said": f"connection lost ({error}); trying again"}
            elif trio.current_time() > until:
                raise Unreachable(str(error)) from None
            elif isinstance(error, Unreachable) and not said and trio.current_time() > lost_at + GONE_SECONDS:
                said = True
                yield "", {"type": LOST, "said": _gone(server)}
        await trio.sleep(RETRY_SECONDS)


def _gone(server: Server) -> str:
    start = "; start it again with `ostler serve`" if server.local and not server.temporary else ""
    return f"the server at {server.url} is gone{start} (Ctrl-C leaves)"


@trio.as_safe_channel
async def _connection(server: Server, conversation_id: str, after_seq: int | None) -> AsyncGenerator[str]:
    """Yield the text frames of one connection.

    Never ends by itself. Raises Lost, Unreachable, or Failure if another try would not help.
    """
    query = "" if after_seq is None else f"?after_seq={after_seq}"
    async with websocket(server, f"/sockets/session/{conversation_id}{query}") as socket:
        while True:
            text = await socket.get_message()
            if isinstance(text, str):
                yield text
