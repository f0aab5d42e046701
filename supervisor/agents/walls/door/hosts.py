"""Which hosts an agent reaches through its door, and which addresses none of them may lead to. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlsplit

import attrs

VARIABLE: Final = "OSTLER_AGENT_HOSTS"

USUAL: Final = "default"
"""Stands for `DEFAULTS` in a list of hosts."""

NONE: Final = "none"
"""Stands for no host, alone."""

DEFAULTS: Final = (
    # npm
    "registry.npmjs.org",
    "registry.yarnpkg.com",
    "nodejs.org",
    # PyPI
    "pypi.org",
    "files.pythonhosted.org",
    # GitHub and GitLab
    "github.com",
    "api.github.com",
    "codeload.github.com",
    "raw.githubusercontent.com",
    "objects.githubusercontent.com",
    "release-assets.githubusercontent.com",
    "gitlab.com",
)
"""Hosts that agents need for packages and repositories."""

PORTS: Final = frozenset({80, 443})
"""Ports of a host that is named without one."""

PROXY_NAMES: Final = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy")
"""Variables of a proxy, the first choice first."""

PORT_MAX: Final = 65535

ANY: Final = "*"
"""Every host."""

BELOW: Final = "*."
"""Beginning of a pattern for all names below one."""

NAME: Final = re.compile(
    r"(?=.{1,253}\Z)[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*"
)
"""A host's name in lower case, or an IPv4 address."""

SPECIAL: Final = tuple(
    map(
        ipaddress.ip_network, ("168.63.129.16/32", "192.0.0.0/24", "64:ff9b:1::/48", "2001::/23", "2002::/16")
    )
)
"""Networks that are not public although a Python takes them, or a part of them, for it: services of Azure and
of Oracle's cloud for the machine itself, and wrapped IPv4 addresses."""

TRANSLATED: Final = ipaddress.ip_network("64:ff9b::/96")
"""IPv6 addresses of a translator (NAT64), with an IPv4 address in their last four bytes."""

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@attrs.frozen
class Pattern:
    """Hosts that are allowed: one, all below a name, or all."""

    name: str
    """In lower case; empty for all."""
    port: int | None = None
    below: bool = False

    def fits(self, host: str, port: int) -> bool:
        """Whether this host is one of them."""
        if not (port in PORTS if self.port is None else port == self.port):
            return False
        if self.below:
            return not self.name or host.endswith(f".{self.name}")
        return host == self.name


@attrs.frozen
class AllowList:
    """The hosts of one agent."""

    patterns: tuple[Pattern, ...]

    def allows(self, host: str, port: int) -> bool:
        """Whether the agent may reach this host."""
        return any(each.fits(host, port) for each in self.patterns)

    def trusts(self, host: str, port: int) -> bool:
        """Whether the operator named this very host with its port, so that it may be of an inner network."""
        return any(
            each.port is not None and not each.below and each.fits(host, port) for each in self.patterns
        )

    def joined(self, names: Iterable[str]) -> AllowList:
        """The same with further patterns. Raises ValueError."""
        return AllowList((*self.patterns, *(_pattern(each) for each in names)))


@attrs.frozen
class WayOut:
    """The proxy through which the network of Ostler's machine is left."""

    proxy: str | None = attrs.field(default=None, repr=False)
    """Its address, `http://` with a user and a password where it needs them; None: there is none."""
    direct: tuple[str, ...] = ()
    """Names that are reached without it, also all below them; `*` for all."""

    def of(self, host: str) -> str | None:
        """The proxy for this host."""
        literal = _literal(host)
        near = host == "localhost" if literal is None else literal.is_loopback
        if near or any(each == ANY or host == each or host.endswith(f".{each}") for each in self.direct):
            return None
        return self.proxy


def way_out(env: Mapping[str, str]) -> WayOut:
    """The way out that an environment describes. A proxy of another kind than `http://` is ignored."""
    named = next((env[name] for name in PROXY_NAMES if env.get(name)), "")
    direct = (env.get("NO_PROXY") or env.get("no_proxy") or "").replace(",", " ").lower().split()
    proxy = named if named.startswith("http://") and urlsplit(named).hostname else None
    return WayOut(proxy, tuple(each.removeprefix(BELOW).removeprefix(".") for each in direct))


def allow_list(text: str | None) -> AllowList:
    """Read a list of hosts, separated by commas or spaces; nothing is `default`. Raises ValueError, in one
    line."""
    if text == NONE:
        return AllowList(())
    words = (text or USUAL).replace(",", " ").split()
    named = [name for word in words for name in (DEFAULTS if word == USUAL else (word,))]
    return AllowList(tuple(dict.fromkeys(_pattern(each) for each in named)))


def _pattern(text: str) -> Pattern:
    problem = f"{text!r} is not a host; use name.example, *.example, name.example:8443, * or {USUAL}"
    try:
        name, port = _split(text.lower())
    except ValueError:
        raise ValueError(problem) from None
    if name == ANY:
        return Pattern("", port, below=True)
    below = name.startswith(BELOW)
    name = name.removeprefix(BELOW)
    if host(name) is None or (below and _literal(name) is not None):
        raise ValueError(problem)
    return Pattern(name, port, below)


def place(text: str, usual_port: int | None = None) -> tuple[str, int] | None:
    """Read `host:port` of a request; None where it is not that. `usual_port`: where none is named."""
    try:
        name, port = _split(text.lower())
    except ValueError:
        return None
    found = host(name.removesuffix("."))
    port = port or usual_port
    return None if found is None or port is None else (found, port)


def host(name: str) -> str | None:
    """Return a name or an address as patterns have it; None where it is neither."""
    literal = _literal(name)
    if literal is not None:
        return str(literal)
    return name if NAME.fullmatch(name) else None


def _split(text: str) -> tuple[str, int | None]:
    """A host and its port, if there is one. Raises ValueError."""
    if text.startswith("["):
        name, bracket, rest = text[1:].partition("]")
        if not bracket or (rest and not rest.startswith(":")):
            raise ValueError(text)
        port = rest[1:]
    elif text.count(":") > 1:
        name, rest, port = text, "", ""
    else:
        name, rest, port = text.partition(":")
    if not rest:
        return name, None
    if not (port.isascii() and port.isdigit() and 0 < int(port) <= PORT_MAX):
        raise ValueError(text)
    return name, int(port)


def _literal(name: str) -> Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def is_literal(host: str) -> bool:
    """Whether a host is named by its address."""
    return _literal(host) is not None


def inner(address: Address) -> bool:
    """Whether an address is not of the public internet: loopback, link-local, private, reserved, multicast,
    or a cloud's own service; also where it is wrapped into an IPv6 address."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.ipv4_mapped is not None:
            return inner(address.ipv4_mapped)
        if address in TRANSLATED:
            return inner(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if address.is_site_local or address.scope_id is not None:
            return True
    return not address.is_global or address.is_multicast or any(address in each for each in SPECIAL)
