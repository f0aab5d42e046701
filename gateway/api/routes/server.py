"""The server itself: liveness, readiness, description. These routes need no session key."""

from __future__ import annotations

import platform
from typing import Any, Final

from quart import Response, current_app, request

from gateway.api import schemas
from gateway.api.responses import json_response
from gateway.api.routing import Group
from gateway.api.services import Services
from gateway.pages import console
from gateway.pages import docs as description
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

STATUS: Final = schemas.ref("Status")

_about: Final = Group(TAG, {"/": {}, "/server_info": {}})
_alive: Final = Group(TAG, {"/alive": {}, "/health": {}})
_server: Final = Group(TAG, "")
_docs: Final = Group(TAG, {"/docs": {}, "/redoc": {}})


@_about("GET", result=schemas.ref("ServerInfo"))
async def describe(services: Services) -> Any:
    """Describe this server.

    Names the version of the wire, that of Ostler, the usable tools of the built-in agent, and the
    capabilities that clients look for. It needs no session key. At `/` a browser gets the console.
    """
    if request.path == "/" and console.wanted(request):
        return await console.page()
    tools = await services.usable_tools()
    # Read in this order, so that it was never idle for longer than it was up.
    idle, uptime = services.activity.idle(), services.activity.uptime()
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


@_alive("GET", result=STATUS)
async def alive() -> Any:
    """Check that the server answers.

    Answers while the process serves requests, for probes of liveness. It says nothing of agents, and needs no
    session key.
    """
    return {"status": "ok"}


@_server(
    "GET /ready",
    result=STATUS,
    errors={503: "The server does not accept work now"},
    error_results={503: STATUS},
)
async def ready(services: Services) -> Any:
    """Check that the server accepts work.

    Answers 503 with the reason while the server shuts down, or cannot store events. It needs no session key.
    """
    if services.closing.is_set():
        return json_response({"status": "initializing", "message": "The server is shutting down"}, 503)
    trouble = services.supervisor.journal.trouble
    if trouble is not None:
        message = f"The journal cannot be written: {trouble.reason}"
        return json_response({"status": "degraded", "message": message}, 503)
    return {"status": "ready"}


@_server("GET /openapi.json", result={"type": "object"})
async def openapi() -> bytes:
    """This description.

    An OpenAPI 3.1 document of every request, with an example for each body. WebSockets are on [a page of
    their own](docs/sockets.html).
    """
    written: bytes = current_app.config["INTERFACE_DESCRIPTION"]()
    return written


@_docs("GET", result=schemas.STRING, media_type="text/html")
async def docs() -> Response:
    """This description, for people.

    Swagger UI, shipped with the server: the page asks no other host. "Try it out" sends a request, whose body
    is at first the example.
    """
    return await description.page()


GROUPS: Final = (_about, _alive, _server, _docs)
