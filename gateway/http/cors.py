"""CORS: which web pages may call the server from a browser.

Pages served from this machine may, on any port, with credentials; other pages need the operator's permission.
CORS only keeps a page from reading answers, and from requests that a form could not send. Requests that a
page can send without a preflight - a POST without a body, a WebSocket - are refused by their Origin where no
key protects the server (`may_act`).
"""

from __future__ import annotations

import re

from quart import Request, Response
from werkzeug.datastructures import Headers

from gateway.configuration.address import KEY_HEADER
from gateway.configuration.config import Config

LOCAL_ORIGIN = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?")
METHODS = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
DEFAULT_HEADERS = f"Content-Type, {KEY_HEADER}, X-Expose-Secrets"
PREFLIGHT_SECONDS = 600
"""Seconds that a browser may cache a preflight's answer."""


class Cors:
    """The origin rules of one server."""

    def __init__(self, config: Config) -> None:
        self.origins = frozenset(config.cors_origins)
        self.pattern = re.compile(config.cors_origin_regex) if config.cors_origin_regex else None

    def allows(self, origin: str) -> bool:
        """Whether a page of this origin may read answers."""
        return (
            origin in self.origins
            or LOCAL_ORIGIN.fullmatch(origin) is not None
            or (self.pattern is not None and self.pattern.fullmatch(origin) is not None)
        )

    def may_act(self, headers: Headers) -> bool:
        """Whether its Origin permits a request to change something, or to open a WebSocket.

        Browsers always send an Origin with these; other clients send none. A page that this server serves
        may, under any name that it was loaded from: `Hosts` checks the name.
        """
        origin = headers.get("Origin")
        if origin is None or self.allows(origin):
            return True
        host = headers.get("Host")
        # The scheme may differ: a proxy may terminate TLS.
        return bool(host) and origin.lower() in (f"http://{host}".lower(), f"https://{host}".lower())

    def preflight(self, request: Request) -> Response | None:
        """The answer to a preflight; None if the request is not one."""
        origin = request.headers.get("Origin")
        if (
            request.method != "OPTIONS"
            or not origin
            or "Access-Control-Request-Method" not in request.headers
        ):
            return None
        response = Response(b"", status=204)
        del response.headers["Content-Type"]
        if self.allows(origin):
            response.headers["Access-Control-Allow-Methods"] = METHODS
            response.headers["Access-Control-Allow-Headers"] = request.headers.get(
                "Access-Control-Request-Headers", DEFAULT_HEADERS
            )
            response.headers["Access-Control-Max-Age"] = str(PREFLIGHT_SECONDS)
        return response

    def mark(self, request_headers: Headers, response_headers: Headers) -> None:
        """Add the headers by which the browser decides whether the page may read this response."""
        response_headers.add("Vary", "Origin")
        origin = request_headers.get("Origin")
        if origin and self.allows(origin):
            response_headers["Access-Control-Allow-Origin"] = origin
            response_headers["Access-Control-Allow-Credentials"] = "true"
