"""The cookie that lets a browser show files of a workspace: images, frames, links carry no header.

Its value is made from the session key and a time, and is not the key: it opens the files of workspaces, for
reading, and nothing else, wherever it turns up. It ends with the key, and by itself.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import time
from collections.abc import Sequence
from typing import Final

from quart import Request, Response

from gateway.configuration.address import is_loopback

NAME: Final = "oh_workspace_session_key"
"""The wire's name."""

PATH: Final = "/api/conversations"

MAX_AGE_SECONDS: Final = 30 * 24 * 3600
"""How long it is good. Clients ask for a new one with every page."""

AHEAD_SECONDS: Final = 24 * 3600
"""How far in the future it may be dated: clocks of servers differ, and one that was ahead is set right."""

_VALUE: Final = re.compile(r"1\.(\d{1,12})\.([0-9a-f]{64})")
_PURPOSE: Final = b"ostler workspace cookie 1"


def issue(key: str, now: float | None = None) -> str:
    """The cookie's value for a client that has presented this key."""
    begun = int(time.time() if now is None else now)
    return f"1.{begun}.{_seal(key, begun)}"


def is_good(value: str | None, keys: Sequence[str], now: float | None = None) -> bool:
    """Whether a value was made with one of the keys, and not too long ago."""
    found = _VALUE.fullmatch(value or "")
    if found is None:
        return False
    begun = int(found[1])
    age = (time.time() if now is None else now) - begun
    matches = sum(hmac.compare_digest(_seal(key, begun), found[2]) for key in keys)
    return matches > 0 and -AHEAD_SECONDS <= age <= MAX_AGE_SECONDS


def _seal(key: str, begun: int) -> str:
    text = _PURPOSE + b" %d" % begun
    return hmac.new(key.encode("utf-8", "surrogatepass"), text, hashlib.sha256).hexdigest()


def put(response: Response, request: Request, value: str, max_age: int) -> None:
    """Have the browser keep it, also in the frame of another site (SameSite=None). An empty one is cleared.

    Browsers keep such a cookie only with `Secure`, which they take over https and from this machine; with
    `Partitioned` it is sent only below the site that has asked for it.
    """
    secure = "; Secure; Partitioned" if _is_secure(request) else ""
    response.headers.add(
        "Set-Cookie", f"{NAME}={value}; Path={PATH}; HttpOnly; SameSite=None; Max-Age={max_age}{secure}"
    )


def _is_secure(request: Request) -> bool:
    """Whether the browser accepts a Secure cookie. X-Forwarded-Proto is trusted: a client that forges it only
    affects whether its own browser keeps the cookie."""
    forwarded = request.headers.get("X-Forwarded-Proto", "").partition(",")[0].strip().lower()
    if (forwarded or request.scheme) == "https":
        return True
    host = request.headers.get("X-Forwarded-Host", "").partition(",")[0].strip() or request.host
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
    return name.lower() == "localhost" or is_loopback(name)
