"""Headers of HTTP/1.1 for one connection alone, which are not passed on (RFC 9110, section 7.6.1). Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

Headers = Iterable[tuple[bytes, bytes]]

OF_A_CONNECTION: Final = frozenset(
    b"connection keep-alive proxy-authenticate proxy-authorization proxy-connection te trailer "
    b"transfer-encoding upgrade".split()
)
"""Their names, in lower case. A message may name more of them in `Connection`."""


def named_by_connection(headers: Headers) -> frozenset[bytes]:
    """The names of those that a message names itself, in lower case."""
    named = [value for name, value in headers if name.lower() == b"connection"]
    return frozenset(word.strip().lower() for value in named for word in value.split(b","))


def passed_on(headers: Headers, without: frozenset[bytes] = frozenset()) -> list[tuple[bytes, bytes]]:
    """The headers of a message without those of its connection, and `without`."""
    headers = list(headers)
    dropped = OF_A_CONNECTION | named_by_connection(headers) | without
    return [(name, value) for name, value in headers if name.lower() not in dropped]
