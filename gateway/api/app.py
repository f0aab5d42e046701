"""The application: every route and socket over the services it is given. Opens and closes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from types import ModuleType
from urllib.parse import quote

from quart import Request, Response
from quart.globals import request_ctx
from werkzeug.exceptions import MethodNotAllowed, NotFound
from werkzeug.routing import RequestRedirect

from gateway.api import errors
from gateway.api.errors import ApiError
from gateway.api.files.uploads import with_uploads
from gateway.api.openapi import describe
from gateway.api.responses import bare
from gateway.api.routes import agents, built_in, server, servers
from gateway.api.routes.agents import METRICS
from gateway.api.routes.conversations import (
    built_in_operations,
    conversations,
    events,
    hooks,
    operations,
)
from gateway.api.routes.placeholders import ROUTES as PLACEHOLDERS
from gateway.api.routes.settings import (
    agent_profiles,
    connections,
    credentials,
    llm_profiles,
    mcp,
    meta_profiles,
    secrets,
    settings,
)
from gateway.api.routes.workspace import bash, files, git, pages, skills, sub_agents, workspaces
from gateway.api.routes.workspace.pages import RULES as WORKSPACE_FILES
from gateway.api.routing import Route, register
from gateway.api.services import Services
from gateway.api.sockets.acp import serve_acp
from gateway.api.sockets.bash import serve_bash
from gateway.api.sockets.events import EventsDialect
from gateway.api.sockets.output import serve_output
from gateway.api.sockets.overview import serve_overview
from gateway.api.sockets.serve import serve
from gateway.api.sockets.session_socket import SessionDialect
from gateway.api.sockets.websocket import refusal
from gateway.api.workspace_cookie import NAME as WORKSPACE_COOKIE
from gateway.api.workspace_cookie import is_good
from gateway.configuration.address import KEY_HEADER
from gateway.configuration.joining import HEADER as JOIN_HEADER
from gateway.configuration.joining import PATH as JOIN_PATH
from gateway.http.access import Cors, Hosts, from_authorization, from_header, is_known
from gateway.http.application import After, Application, Before
from gateway.http.client_connection import current
from gateway.http.wrappers import DRAIN_SECONDS, drained, refuse_malformed
from gateway.pages import console, docs

API = "/api/"

PROBES = frozenset({"/alive", "/health", "/ready"})
"""Probes of container platforms, which call them by IP address. The answers hold nothing confidential."""

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
"""Methods that change nothing."""


def create_app(services: Services) -> Application:
    """An ASGI application for Trio. The caller owns the services and closes them when serving has ended."""
    app = Application("gateway", *_guard(services))
    seconds = min(DRAIN_SECONDS, services.config.body_seconds)
    app.asgi_app = drained(  # type: ignore[method-assign, assignment]
        refuse_malformed(app.asgi_app), services.config.max_body_bytes, seconds
    )
    app.config["MAX_CONTENT_LENGTH"] = services.config.max_body_bytes
    app.config["BODY_TIMEOUT"] = services.config.body_seconds
    app.request_class = with_uploads(services.config.max_upload_bytes)
    # A redirect would answer an unknown path in HTML; it must get a JSON 404.
    app.url_map.merge_slashes = False
    errors.install(app)
    if services.machines is not None:
        from gateway.api.forwarding import requests as forwarding

        forwarding.install(app, services)

    @cache
    def description() -> bytes:
        return describe(routes)

    services.supervisor.deleting = partial(conversations.remove, services)
    services.supervisor.make_worktrees(partial(operations.worktrees, services))

    def of(*modules: ModuleType) -> Iterator[Route]:
        for module in modules:
            for group in module.GROUPS:
                yield from group.routes(services)

    routes = (
        *of(
            server,
            conversations,
            operations,
            built_in_operations,
            events,
            settings,
            secrets,
            agent_profiles,
            agents,
            servers,
            credentials,
            mcp,
            hooks,
            skills,
            sub_agents,
            bash,
            files,
            git,
            workspaces,
            pages,
            llm_profiles,
            meta_profiles,
            connections,
            built_in,
        ),
        *PLACEHOLDERS,
    )
    register(app, routes)
    app.config["INTERFACE_DESCRIPTION"] = description
    docs.install(app)
    console.install(app)

    async def remote_acp() -> Response | None:
        return await serve_acp(services, bridge=False) if services.config.acp else refusal()

    for path, socket in (
        ("/acp", remote_acp),
        ("/sockets/acp", partial(serve_acp, services, bridge=True)),
        ("/sockets/agents/<conversation_id>", partial(serve_output, services)),
        ("/sockets/bash-events", partial(serve_bash, services)),
        ("/sockets/events/<conversation_id>", partial(serve, services, dialect_of=EventsDialect.of)),
        ("/sockets/overview", partial(serve_overview, services)),
        ("/sockets/session/<conversation_id>", partial(serve, services, dialect_of=SessionDialect.of)),
    ):
        app.add_websocket(path, path, socket)
    # Last, since this is permanent, while a failed creation is tried again.
    services.known.also.append(services.saved.paths)
    return app


def _guard(services: Services) -> tuple[Before, After]:
    """What happens to every request before and after its route: preflights, keys, names, CORS headers."""
    cors = Cors(services.config)
    hosts = Hosts(services.config)
    keys = services.config.session_api_keys
    shows_key: Callable[[Request], bool | None] | None = None
    if services.machines is not None:
        from gateway.api.forwarding.requests import is_server

        shows_key = partial(is_server, services)

    def before(request: Request) -> Response | None:
        if shows_key is not None and (trusted := shows_key(request)) is not None:
            if not trusted:
                raise ApiError(401, "Unauthorized")
            welcome(of_server=True)
            return None
        preflight = cors.preflight(request)
        if preflight is not None:
            return preflight
        # By the route, not by the path: other spellings of a path may lead to the same route.
        rule = API if request.url_rule is None else request.url_rule.rule
        if rule == JOIN_PATH:
            provisioner = services.provisioner
            if provisioner is None or not provisioner.knows(from_header(request.headers.get(JOIN_HEADER))):
                raise ApiError(401, "Unauthorized")
            welcome()
            return None
        if rule not in PROBES and not hosts.allows(request.headers.get("Host")):
            raise ApiError(421, "Host not allowed. Add it to OSTLER_ALLOWED_HOSTS.")
        if not keys and request.method not in SAFE and not cors.may_act(request.headers):
            raise ApiError(403, "Origin not allowed. Add it to OSTLER_CORS_ORIGINS.")
        if isinstance(request.routing_exception, NotFound) and (redirect := _without_slash(request)):
            return redirect  # without a key, too: it reveals no more than the interface description
        if rule.startswith(API):
            services.activity.touch()
        elif rule != METRICS:
            return None
        if keys and not is_known(_presented(request, rule), keys) and not _has_cookie(request, rule, keys):
            raise ApiError(401, "Unauthorized")
        welcome()
        if isinstance(request.routing_exception, RequestRedirect):
            # It is the path of another route but for a slash; a redirect would be answered in HTML.
            adapter = request_ctx.url_adapter
            raise MethodNotAllowed(valid_methods=adapter.allowed_methods() if adapter else None)
        return None

    def welcome(*, of_server: bool = False) -> None:
        if (connection := current.get(None)) is not None:
            connection.welcome, connection.of_server = True, of_server

    def after(request: Request, response: Response) -> None:
        cors.mark(request.headers, response.headers)
        # Answers repeat untrusted text; browsers must not guess another content type.
        response.headers["X-Content-Type-Options"] = "nosniff"

    return before, after


def _without_slash(request: Request) -> Response | None:
    """A redirect to the same path without the slash at its end, if that is a route. With 307 a client sends
    the same method and body again."""
    path, adapter = request.path.removesuffix("/"), request_ctx.url_adapter
    # A path that begins with two slashes would redirect to another server.
    if path == request.path or path.startswith("//") or adapter is None or not adapter.allowed_methods(path):
        return None
    query = request.query_string.decode("latin-1")
    # Relative to the path that the client asked for, which a proxy may have shortened.
    place = f"../{quote(path.rpartition('/')[2])}" + (f"?{query}" if query else "")
    return bare(307, {"Location": place})


def _has_cookie(request: Request, rule: str, keys: Sequence[str]) -> bool:
    """Whether the request reads a file of a workspace with the cookie for that, which opens nothing else."""
    if rule not in WORKSPACE_FILES or request.method not in SAFE:
        return False
    return is_good(request.cookies.get(WORKSPACE_COOKIE), keys)


def _presented(request: Request, rule: str) -> str | None:
    """The key that a request to this route presents."""
    key = from_header(request.headers.get(KEY_HEADER))
    if rule == METRICS:
        return key or from_authorization(request.headers.get("Authorization"))
    return key
