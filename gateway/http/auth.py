"""Session keys: who may use this server. A server without keys is open."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

KEY_PARAMETER = "session_api_key"


def is_known(presented: str | None, keys: Sequence[str]) -> bool:
    """Whether one of the keys was presented. Runs in constant time."""
    if presented is None:
        return False
    candidate = _bytes(presented)
    # Every key is compared, so that the response time does not reveal which one came close.
    return sum(hmac.compare_digest(candidate, _bytes(key)) for key in keys) > 0


def _bytes(text: str) -> bytes:
    # JSON and the environment may hold lone surrogates.
    return text.encode("utf-8", "surrogatepass")


BEARER = "bearer "
"""The scheme of RFC 6750, in lower case."""


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
