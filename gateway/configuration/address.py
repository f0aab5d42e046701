"""The server's address and keys, as the server and the commands both read them.

The standard library alone, so that commands start quickly.
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Mapping
from typing import Final, TypeVar

T = TypeVar("T")

DEFAULT_HOST: Final = "127.0.0.1"
DEFAULT_PORT: Final = 8000
DEFAULT_STATE: Final = "~/.ostler"

KEY_HEADER: Final = "X-Session-API-Key"
"""The header that carries a session key."""

ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - not to listen on
"""Addresses that a server listens on, and what reaches it there from the same machine."""


def read_host(text: str) -> str:
    """A host name or address. Raises ValueError."""
    if not text or any(character.isspace() for character in text):
        raise ValueError(f"{text!r} is not a host name or an address")
    return text


def read_port(text: str) -> int:
    """A port number, 0 included. Raises ValueError."""
    try:
        port = int(text)
    except ValueError:
        port = -1
    if not 0 <= port <= 65535:
        raise ValueError(f"{text!r} is not a port number; give one from 0 to 65535")
    return port


def local_url(env: Mapping[str, str]) -> str:
    """The address of the server that these variables would start. Raises ValueError, naming the variable."""
    host = _named(env, "OSTLER_HOST", read_host, DEFAULT_HOST)
    port = _named(env, "OSTLER_PORT", read_port, str(DEFAULT_PORT))
    if port == 0:
        raise ValueError("OSTLER_PORT: port 0 is any free one: the server's first line has its address")
    return http_url(ANYWHERE.get(host, host), port)


def _named(env: Mapping[str, str], variable: str, read: Callable[[str], T], default: str) -> T:
    try:
        return read(env.get(variable) or default)
    except ValueError as error:
        raise ValueError(f"{variable}: {error}") from None


def http_url(host: str, port: int) -> str:
    """The URL of a server; an IPv6 address is put into brackets."""
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address


def ip_address(text: str) -> IPAddress | None:
    """An IP address, None for a name. IPv4 addresses written as IPv6 ones are IPv4 addresses."""
    try:
        found = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found


def is_loopback(text: str) -> bool:
    """Whether this is an IP address that only this machine reaches. False for names."""
    address = ip_address(text)
    return address is not None and address.is_loopback


def open_refusal(host: str) -> str:
    """Why a server without session keys does not listen on this address: one line for the terminal."""
    return (
        f"{host} is reached from other machines, and without a session key anybody there could run agents: "
        "set OSTLER_SESSION_API_KEY, or allow an open server with OSTLER_ALLOW_OPEN=1"
    )


def listed(text: str) -> list[str]:
    """The parts of a comma-separated list, empty ones dropped."""
    return [part.strip() for part in text.split(",") if part.strip()]


def session_keys(env: Mapping[str, str]) -> tuple[str, ...]:
    """Keys from Ostler's variables and from those that deployments of the wire already set; empty ones
    dropped.

    Setting any of these variables means that the server needs a key, so all of them count. Raises ValueError,
    naming the variable.
    """
    keys = listed(env.get("OSTLER_SESSION_API_KEYS", ""))
    array = env.get("OH_SESSION_API_KEYS", "").strip()
    if array:
        try:
            values = json.loads(array)
        except ValueError:
            values = None
        if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
            raise ValueError("OH_SESSION_API_KEYS is not a JSON array of strings")
        keys += values
    keys += [value for name, value in env.items() if re.fullmatch(r"OH_SESSION_API_KEYS_\d+", name)]
    keys += [env.get("OSTLER_SESSION_API_KEY", ""), env.get("SESSION_API_KEY", "")]
    return tuple(dict.fromkeys(key for key in keys if key.strip()))
