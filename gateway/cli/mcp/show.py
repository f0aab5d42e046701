"""MCP servers as rows and as JSON, with their credentials masked. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

MASK: Final = "**********"

PLAIN: Final = frozenset(
    [
        "command",
        "args",
        "cwd",
        "transport",
        "type",
        "description",
        "enabled",
        "disabled",
        "timeout",
        "strategy",
        "username",
        "header_name",
        "icon",
    ]
)
"""Keys of an entry whose values are not credentials. `url` has its own rule; an unknown key's value may be
one."""

AUTH_WORDS: Final = frozenset({"oauth", "oauth2", "none"})

URLS: Final = frozenset({"url", "httpUrl", "serverUrl"})

REFERENCE: Final = re.compile(r"(?:[A-Za-z]+ )?\$\{[A-Za-z_][A-Za-z0-9_]*\}")
"""A value that only names a secret."""


def masked(entry: Any) -> Any:
    """An entry with every value hidden that may be a credential."""
    if not isinstance(entry, Mapping):
        return MASK if isinstance(entry, str) else entry
    shown: dict[str, Any] = {}
    for key, value in entry.items():
        if key in URLS and isinstance(value, str):
            shown[key] = masked_url(value)
        elif key in PLAIN or (key == "auth" and value in AUTH_WORDS if isinstance(value, str) else False):
            shown[key] = value
        else:
            shown[key] = _hidden(value, auth=key == "auth")
    return shown


def _hidden(value: Any, *, auth: bool = False) -> Any:
    if isinstance(value, str):
        return value if REFERENCE.fullmatch(value) else MASK
    if isinstance(value, Mapping):
        return {
            name: item if auth and name in PLAIN else _hidden(item, auth=auth) for name, item in value.items()
        }
    if isinstance(value, list):
        return [_hidden(item, auth=auth) for item in value]
    if value is None or isinstance(value, bool):
        return value
    return MASK


def masked_url(url: str) -> str:
    """A URL without the password and the values of its query."""
    try:
        parts = urlsplit(url)
        query = parse_qsl(parts.query, keep_blank_values=True)
    except ValueError:
        return MASK
    netloc = parts.netloc
    if "@" in netloc:
        netloc = f"{MASK}@{netloc.rpartition('@')[2]}"
    if parts.query:
        hidden = [(name, value if REFERENCE.fullmatch(value) else MASK) for name, value in query]
        text = urlencode(hidden, safe="*${}") if hidden else MASK
    else:
        text = ""
    return urlunsplit((parts.scheme, netloc, parts.path, text, MASK if parts.fragment else ""))


def target_of(entry: Mapping[str, Any]) -> str:
    """The command with its arguments, or the URL."""
    for key in ("url", "httpUrl", "serverUrl"):
        if isinstance(entry.get(key), str):
            return str(entry[key])
    args = entry.get("args")
    words = [entry.get("command"), *(args if isinstance(args, list) else [])]
    return " ".join(str(word) for word in words if word is not None)


def details(entry: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Names and values of headers and variables, one line each."""
    lines: list[tuple[str, str]] = []
    for key, label in (("env", "env"), ("headers", "header")):
        value = entry.get(key)
        if isinstance(value, Mapping):
            joint = "=" if key == "env" else ": "
            lines += [(label, f"{name}{joint}{item}") for name, item in value.items()]
    auth = entry.get("auth")
    if isinstance(auth, str):
        lines.append(("auth", auth))
    elif isinstance(auth, Mapping):
        lines.append(("auth", str(auth.get("strategy") or auth.get("type") or "?")))
    if isinstance(entry.get("cwd"), str):
        lines.append(("cwd", str(entry["cwd"])))
    return lines
