"""Who may call: session keys, the host names that a server answers to, web pages of other servers."""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence
from typing import Final

from quart import Request, Response
from werkzeug.datastructures import Headers

from gateway.configuration.address import KEY_HEADER, ip_address, is_loopback
from gateway.configuration.config import Config

KEY_PARAMETER = "session_api_key"

BEARER = "bearer "
"""The scheme of RFC 6750, in lower case."""

HOST_HEADER: Final = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[^\[\]:@/?#\s]+))(?::\d{1,5})?")
"""The parts of `name:port`, of `[address]:port`, and of either without a port."""

LOCAL_ORIGIN = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])(:\d{1,5})?")
METHODS = "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT"
DEFAULT_HEADERS = f"Content-Type, {KEY_HEADER}, X-Expose-Secrets"
PREFLIGHT_SECONDS = 600
"""Seconds that a browser may cache a preflight's answer."""


def is_known(presented: str | None, keys: Sequence[str]) -> bool:
    """Whether one of the keys was presented, in constant time. A server without keys is open."""
    if presented is None:
        return False
    candidate = _bytes(presented)
    # Every key is compared, so that the response time does not reveal which one came close.
    return sum(hmac.compare_digest(candidate, _bytes(key)) for key in keys) > 0


def _bytes(text: str) -> bytes:
    # JSON and the environment may hold lone surrogates.
    return text.encode("utf-8", "surrogatepass")


def from_authorization(value: str | None) -> str | None:
    """The key in an Authorization header, which metrics scrapers can send."""
    if value is None or not value.lower().startswith(BEARER):
        return None
    return from_header(value[len(BEARER) :].strip())


def from_header(value: str | None) -> str | None:
    """A header's value as text: servers decode UTF-8 header bytes as Latin-1."""
    if value is None:
        return None
    return value.encode("latin-1", "replace").decode("utf-8", "replace")


class Hosts:
    """The host names that a server answers to: protection against DNS rebinding.

    A foreign web page can have its own name resolve to this machine. To the browser its requests are requests
    to the page's own server: no CORS rule holds them back, and reads carry no Origin. Only the Host header,
    which still has the page's name, gives them away.

    A server with session keys accepts every name: such a page has no key, and no cookie that a browser would
    add by itself. So reverse proxies can use any name. If the operator lists names, the list applies there
    too.
    """

    def __init__(self, config: Config) -> None:
        names = {name.lower().rstrip(".") for name in config.allowed_hosts}
        self._any = "*" in names or (bool(config.session_api_keys) and not names)
        self._exact = {name for name in names if not name.startswith("*.")} | {config.host.lower()}
        self._suffixes = tuple(name[1:] for name in names if name.startswith("*."))
        # An address cannot be rebound. But one of a network does not lead to a server that listens on the
        # loopback address alone, so another claim is false.
        host = config.host.lower()
        self._addresses = not (is_loopback(host) or host == "localhost" or host.endswith(".localhost"))

    def allows(self, header: str | None) -> bool:
        """Whether this Host header names this server. None: the request had none."""
        if self._any:
            return True
        found = HOST_HEADER.fullmatch(header or "")
        name = (found["six"] or found["name"].rstrip(".")).lower() if found is not None else ""
        if not name:
            return False
        if name in self._exact or name.endswith(self._suffixes):
            return True
        address = ip_address(name)
        if address is not None:
            return address.is_loopback or self._addresses
        return name == "localhost" or name.endswith(".localhost")


class Cors:
    """Which web pages may call the server from a browser.

    Pages served from this machine may, on any port, with credentials; other pages need the operator's
    permission. CORS only keeps a page from reading answers, and from requests that a form could not send.
    Requests that a page can send without a preflight - a POST without a body, a WebSocket - are refused by
    their Origin where no key protects the server (`may_act`).
    """

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
