"""`/sockets/agents/ID`: what an agent writes to standard error, or the frames between it and the server.

Frames: `sync`, then what there is, then each new line (`lines`) or frame (`frames`) once. Nothing is held for
a client: one that is slow finds in `skipped` how many were dropped meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson
import trio
from quart import Response

from gateway.api.requests.reading import Handshake, path_uuid
from gateway.api.responses import trace_line
from gateway.api.services import Services
from gateway.api.sockets.exchange import Exchange, Talk
from gateway.api.sockets.handshake import serve_socket
from gateway.api.sockets.websocket import send_text
from supervisor.conversations.agent.lifecycle.last_output import Mark

STDERR: Final = "stderr"
TRACE: Final = "trace"

LOOK_SECONDS: Final = 0.25
"""How often new lines are looked for. A person sees no difference below this, and most looks compare two
numbers."""

ITEMS: Final = 50
"""Lines or frames in a frame of the socket, at most 200 KiB: other tasks have their turn between two."""


async def serve_output(services: Services, conversation_id: str) -> Response | None:
    """Serve the current WebSocket; see `serve_socket`."""

    def read(query: Handshake) -> tuple[str, Talk]:
        known, of = path_uuid(conversation_id, "conversation_id"), _wanted(query)

        async def talk(exchange: Exchange) -> None:
            # Before anything is sent: another server may have it.
            await _look(services, known, of, None)
            await exchange.run(lambda: _write(services, known, of))

        return known, talk

    return await serve_socket(services, read)


def _wanted(query: Handshake) -> str:
    """What is followed. Raises ValueError."""
    of = query.text("of") or STDERR
    if of not in (STDERR, TRACE):
        raise ValueError(f"of {of!r}")
    return of


async def _write(services: Services, conversation_id: str, of: str) -> None:
    mark: Mark | None = None
    while True:
        mark, again, skipped, items = await _look(services, conversation_id, of, mark)
        if again:
            await send_text(orjson.dumps({"type": "sync", "of": of}))
        name = "lines" if of == STDERR else "frames"
        for start in range(0, max(len(items), bool(skipped)), ITEMS):
            frame = {"type": name, name: items[start : start + ITEMS], "skipped": 0 if start else skipped}
            await send_text(orjson.dumps(frame))
        await trio.sleep(LOOK_SECONDS)


async def _look(
    services: Services, conversation_id: str, of: str, mark: Mark | None
) -> tuple[Mark, bool, int, Sequence[Any]]:
    if of == STDERR:
        lines = await services.supervisor.stderr_after(conversation_id, mark)
        return lines.mark, lines.again, lines.skipped, lines.items
    found = await services.supervisor.trace_after(conversation_id, mark)
    shown = [trace_line(services.clock, each) for each in found.items]
    return found.mark, found.again, found.skipped, shown
