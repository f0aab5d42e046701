"""Whether a text has a blank where a secret was probably meant: the shell puts nothing in the place of
`${NAME}` in double quotes where it has no such variable. Pure."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl, urlsplit

QUOTES: Final = (
    "the shell has perhaps put nothing in the place of ${NAME}: in single quotes it stays, and means the "
    "secret of that name"
)

TELLING: Final = r"[\w.-]{0,32}(?:key|token|secret|passw|pwd|auth|credential|session|signature)[\w.-]{0,32}"
"""A name of what is probably a secret."""

SCHEMES: Final = ("api-key", "api_key", "apikey", "basic", "bearer", "digest", "dpop", "key", "token")
"""Words before a credential, in lower case."""

AUTHORIZATION: Final = frozenset({"authorization", "proxy-authorization"})

_SCHEME: Final = "|".join(SCHEMES)

_CUT: Final = re.compile(
    # A scheme with nothing behind its space, or with a quote there, as in a header in an argument or JSON.
    rf"(?:^|[\s:=\"'])(?:{_SCHEME})\s+(?:$|[\"'])"
    rf"|[:\"']\s*(?:bearer|basic)\s*(?:$|[\"'])"
    # A name of a secret, with nothing behind its equals sign or colon.
    rf"|(?:^|[\s;,&?{{\"'-]){TELLING}[\"']?\s*(?:=|:\s*(?=[\"']|$))\s*(?:$|[\"']{{2}}|(?=[;,&\s}}]))",
    re.IGNORECASE,
)
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://[^\s\"'<>]*", re.IGNORECASE)


def blank_in_header(name: str, value: str) -> bool:
    """Whether the value of a header, as it was given, is blank or ends before its credential."""
    word = value.strip()
    if not word or word.lower() in SCHEMES:
        return True
    one = re.fullmatch(r"[A-Za-z][A-Za-z0-9_-]*\s+", value.lstrip()) is not None
    return (one and name.lower() in AUTHORIZATION) or blank_in(value) is not None


def blank_in(text: str) -> str | None:
    """What is blank in a value, an argument or a URL, without a value of it; None where nothing is."""
    if not text.strip():
        return "the value is empty"
    if _CUT.search(text):
        return "a value is missing"
    return next((found for match in _URL.finditer(text) if (found := blank_in_url(match[0]))), None)


def blank_in_url(url: str) -> str | None:
    """What is blank in a URL, without a value of it; None where nothing is."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        query = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return None
    if "@" in parts.netloc and (not parts.username or parts.password == ""):
        return "the user or the password of the URL is empty"
    if host.startswith(".") or ".." in host:
        return "a part of the URL's host is empty"
    if re.search(r"(?<!:)//", parts.path):
        return "a part of the URL's path is empty"
    given = parts.query.split("&")
    empty = [name for name, value in query if not value and f"{name}=" in given]
    return f"{empty[0]} in the URL has no value" if empty else None
