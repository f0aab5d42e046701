"""The application, imported lazily: liveness probes alone load neither the routes nor Quart.

A launcher, such as a container platform, first probes whether a new server answers. That needs the journal,
open and recovered, but no routes; these take as long to import as all the rest, and a third of the memory. So
probes are answered here. The first other request, or WebSocket, loads the application; a server that has
conversations loads it after the first probe.
"""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, cast

import structlog
import trio

from gateway.http.wrappers import refuse_malformed
from supervisor.journal.errors import JournalUnavailable

if TYPE_CHECKING:
    from gateway.api.services import Services

log = structlog.get_logger(__name__)

Application = Callable[[Any, Any, Any], Awaitable[None]]
"""Takes scope, receive and send, as ASGI has them."""

LIVENESS: Final = frozenset({"/alive", "/health"})

NOT_PLAIN: Final = frozenset({b"origin", b"content-length", b"transfer-encoding"})
"""Headers that make a request more than a probe: from a page, or with a body. The application handles
these."""

QUIET_SECONDS: Final = 1.0
"""Seconds after the start in which to wait for the first request, so that importing the application does not
delay it."""

ALIVE: Final = b'{"status":"ok"}'
"""The same answer as the application's."""


class LateApplication:
    """An ASGI application in front of the one of `gateway.api.app`. The caller owns the services."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._application: Application | None = None
        self._loading = trio.Lock()
        self._loaded = trio.Event()
        self._alive = refuse_malformed(_alive)
        self._asked = trio.Event()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request. The first one that is not a probe waits for the import; a failed import is tried
        again with the next."""
        if self._application is None and _is_probe(scope):
            await self._alive(scope, receive, send)
            self._asked.set()
            return
        application = self._application or await self._load()
        await application(scope, receive, send)

    async def _load(self) -> Application:
        async with self._loading:
            if self._application is None:
                # In a thread: it takes some tenths of a second, and probes are answered meanwhile.
                self._application = await trio.to_thread.run_sync(self._make)
                self._loaded.set()
                self._asked.set()
        return self._application

    async def prepare(self) -> None:
        """Once the application is loaded, prepare what conversations need, and exclude all permanent objects
        from garbage collection. For a background task; ends by itself.

        A server with conversations expects clients: it loads the application after the first probe, or
        QUIET_SECONDS after the start if there was none.
        """
        with trio.move_on_after(QUIET_SECONDS):
            await self._asked.wait()
        try:
            if not self._loaded.is_set():
                page = await self._services.supervisor.journal.search_records(limit=1)
                if page.items:
                    await self._load()
        except JournalUnavailable as error:
            log.warning("application not loaded yet", reason=str(error))
        except Exception:
            log.exception("application not loaded")  # the first request tries again, and reports it
        await self._loaded.wait()
        try:
            await self._services.supervisor.prepare()
        except Exception:
            log.exception("conversations not prepared")  # the first one tries again, and reports it
        # What is loaded now lives as long as the server; the collector need not look at it again and again.
        gc.freeze()

    def _make(self) -> Application:
        return cast(Application, import_module("gateway.api.app").create_app(self._services))


def _is_probe(scope: Mapping[str, Any]) -> bool:
    return (
        scope["type"] == "http"
        and scope["method"] == "GET"
        and scope["path"] in LIVENESS
        and not any(name in NOT_PLAIN for name, _ in scope["headers"])
    )


async def _alive(scope: Any, receive: Any, send: Any) -> None:
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(ALIVE)).encode()),
        (b"vary", b"Origin"),
        (b"x-content-type-options", b"nosniff"),
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": ALIVE, "more_body": False})
