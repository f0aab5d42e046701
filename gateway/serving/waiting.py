"""What a server answers while it waits for its database: probes, and 503 with the reason to all others."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, Final, cast

import orjson
import structlog
import trio
from hypercorn.typing import ASGIFramework

from gateway.configuration.config import Config
from gateway.http.listener import serve_connections
from gateway.serving.late_application import ALIVE, LIVENESS
from supervisor.database.address import Database

log = structlog.get_logger(__name__)

RETRY_AFTER_SECONDS: Final = 5
"""For clients: a database that starts, or fails over, takes about that long."""


async def await_database(database: Database, config: Config, sockets: Sequence[socket.socket]) -> None:
    """Return when the database answers. Until then `/ready` says why it does not, and so does every request.

    Raises MachinesRefused for what no waiting mends, such as a wrong password. The listening sockets stay
    open; cancellation cuts the connections that were accepted here.
    """
    from supervisor.machines.membership import await_database as wait

    reason = ""
    reported = trio.Event()

    def report(text: str) -> None:
        nonlocal reason
        reason = text
        reported.set()
        log.warning("waiting for the database", database=database.shown, reason=text)

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "websocket":
            await receive()
            await send({"type": "websocket.close"})
            return
        if scope["type"] == "lifespan":
            return
        alive = scope["path"] in LIVENESS
        body = ALIVE if alive else _waiting(scope["path"], reason)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if not alive:
            headers.append((b"retry-after", str(RETRY_AFTER_SECONDS).encode()))
        await send({"type": "http.response.start", "status": 200 if alive else 503, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def serve() -> None:
        # Until the first report clients wait in the kernel's queue, as they do while a server starts.
        await reported.wait()
        copies = [sock.dup() for sock in sockets]  # serving closes its sockets at its end
        await serve_connections(cast(ASGIFramework, answer), copies, config, trio.Event())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(serve)
        await wait(database, report)
        nursery.cancel_scope.cancel()


def _waiting(path: str, reason: str) -> bytes:
    message = f"The server waits for its database: {reason}"
    if path == "/ready":
        return orjson.dumps({"status": "initializing", "message": message})
    return orjson.dumps({"detail": message})
