"""The host names that an open server answers to: protection against DNS rebinding.

A foreign web page can have its own name resolve to this machine. To the browser its requests are requests to
the page's own server: no CORS rule holds them back, and reads carry no Origin. Only the Host header, which
still has the page's name, gives them away.

A server with session keys accepts every name: such a page has no key, and no cookie that a browser would add
by itself. So reverse proxies can use any name. If the operator lists names, the list applies there too.
"""

from __future__ import annotations

import re
from typing import Final

from gateway.configuration.address import ip_address, is_loopback
from gateway.configuration.config import Config

HOST_HEADER: Final = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<name>[^\[\]:@/?#\s]+))(?::\d{1,5})?")
"""The parts of `name:port`, of `[address]:port`, and of either without a port."""


class Hosts:
    """The host names of one server."""

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
        name = host_name(header or "")
        if name is None:
            return False
        if name in self._exact or name.endswith(self._suffixes):
            return True
        address = ip_address(name)
        if address is not None:
            return address.is_loopback or self._addresses
        return name == "localhost" or name.endswith(".localhost")


def host_name(header: str) -> str | None:
    """The name or address in a Host header, in lower case and without brackets; None if there is none."""
    found = HOST_HEADER.fullmatch(header)
    if found is None:
        return None
    return (found["six"] or found["name"].rstrip(".")).lower() or None
