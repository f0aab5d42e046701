"""The server itself: liveness, readiness, description."""

from __future__ import annotations

import platform
from collections.abc import Callable
from contextlib import suppress
from math import inf
from typing import Any, Final

import attrs
import trio
from quart import Response, request

from gateway.api import schemas
from gateway.api.docs import PAGE, respond
from gateway.api.responses import json_response, raw_json_response
from gateway.api.routing import Route
from gateway.api.services import Services
from supervisor.agents.known import known
from supervisor.patience import PathTimeout, in_time
from supervisor.version import __version__

TITLE: Final = "Ostler"

WIRE_VERSION: Final = "1.58.2"
"""The agent-server version whose wire Ostler implements. Clients refuse servers below 1.28.0 by it."""

CAPABILITIES: Final = (
    "conversation_runtime_routes_v1",
    "idempotent_conversation_create_v1",
    "profile_secret_scope_v1",
)
"""Capabilities beyond the base wire that Ostler announces; it implements all of them."""

TAG: Final = "Server"

TOOLS_SECONDS: Final = 10.0
"""Seconds for which the usable tools are cached: the route needs no key, and computing them reads HOME and
PATH."""

LOOKING: Final = trio.CapacityLimiter(1)
"""Threads that look for a browser. One that hangs blocks only further look-ups, not other work."""


@attrs.define(eq=False)
class ServerRoutes:
    """Handlers outside of `/api`. They need no session key."""

    services: Services
    description: Callable[[], bytes]
    _tools: list[str] = attrs.field(factory=list, init=False)
    _looked: float = attrs.field(default=-inf, init=False)

    async def alive(self) -> Response:
        """The process serves."""
        return json_response({"status": "ok"})

    async def ready(self) -> Response:
        """The server takes work: not while it shuts down, nor while nothing can be stored."""
        if self.services.closing.is_set():
            return json_response({"status": "initializing", "message": "The server is shutting down"}, 503)
        trouble = self.services.supervisor.journal.trouble
        if trouble is not None:
            message = f"The journal cannot be written: {trouble.reason}"
            return json_response({"status": "degraded", "message": message}, 503)
        return json_response({"status": "ready"})

    async def info(self) -> Response:
        """Versions and capabilities."""
        return json_response(self._info(await self._usable_tools()))

    async def _usable_tools(self) -> list[str]:
        """The tools of the built-in agent; none before a disk that hangs has answered once."""
        if trio.current_time() - self._looked > TOOLS_SECONDS:
            environ = self.services.launcher.server_environment
            with suppress(PathTimeout):
                self._tools = await in_time(
                    lambda: known().usable(environ), "to look for a browser", limiter=LOOKING
                )
            self._looked = trio.current_time()
        return self._tools

    async def openapi(self) -> Response:
        """The interface description."""
        return raw_json_response(self.description())

    async def docs(self) -> Response:
        """The interface description for people, with which requests can be tried."""
        return await respond(request, PAGE)

    def _info(self, tools: list[str]) -> dict[str, Any]:
        # Read in this order, so that it was never idle for longer than it was up.
        idle, uptime = self.services.activity.idle(), self.services.activity.uptime()
        return {
            "uptime": round(uptime, 3),
            "idle_time": round(idle, 3),
            "title": TITLE,
            "version": WIRE_VERSION,
            "sdk_version": WIRE_VERSION,
            "tools_version": WIRE_VERSION,
            "workspace_version": "unknown",
            "build_git_sha": "unknown",
            "build_git_ref": "unknown",
            "python_version": platform.python_version(),
            "usable_tools": tools,
            "runtime_idle_timeout_seconds": None,
            "conversation_runtime": "local",
            "available_conversation_runtimes": [],
            "capabilities": list(CAPABILITIES),
            "app_backend_ingress_url": None,
            "max_foreground_terminal_timeout_seconds": None,
            "docs": "/docs",
            "redoc": "/redoc",
            "ostler_version": __version__,
        }

    def routes(self) -> tuple[Route, ...]:
        """All operations of this class."""
        status = schemas.ref("Status")
        return (
            Route(
                method="GET",
                path="/",
                handler=self.info,
                summary="Describe this server",
                tag=TAG,
                result=schemas.ref("ServerInfo"),
            ),
            Route(
                method="GET",
                path="/server_info",
                handler=self.info,
                summary="Describe this server",
                tag=TAG,
                result=schemas.ref("ServerInfo"),
            ),
            Route(
                method="GET",
                path="/alive",
                handler=self.alive,
                summary="Check that the server answers",
                tag=TAG,
                result=status,
            ),
            Route(
                method="GET",
                path="/health",
                handler=self.alive,
                summary="Check that the server answers",
                tag=TAG,
                result=status,
            ),
            Route(
                method="GET",
                path="/ready",
                handler=self.ready,
                summary="Check that the server accepts work",
                tag=TAG,
                result=status,
                errors={503: "The server does not accept work now"},
                error_results={503: status},
            ),
            Route(
                method="GET",
                path="/openapi.json",
                handler=self.openapi,
                summary="This description",
                tag=TAG,
                result={"type": "object"},
            ),
            *(
                Route(
                    method="GET",
                    path=path,
                    handler=self.docs,
                    summary="This description, for people",
                    tag=TAG,
                    result=schemas.STRING,
                    media_type="text/html",
                )
                for path in ("/docs", "/redoc")
            ),
        )
