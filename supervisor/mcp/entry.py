"""An entry of `mcp.json`, as people and other MCP clients spell it, as one of the settings' shape. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from supervisor.mcp.server import TRANSPORTS, MCPServerError, server_errors
from supervisor.reading.model import ErrorDetail

SPELLINGS: Final[Mapping[str, str]] = {
    "stdio": "stdio",
    "local": "stdio",
    "http": "http",
    "streamablehttp": "http",
    "shttp": "http",
    "remote": "http",
    "sse": "sse",
}
"""Transports as others spell them, without case, dashes and underscores."""

URL_KEYS: Final[Mapping[str, str | None]] = {"httpUrl": "http", "serverUrl": None}
"""Other names of `url`, and the transport that each implies."""

KEPT: Final = ("url", "command", "args", "env", "cwd", "description", "headers", "auth", "enabled")
"""The keys that entries here and in the settings have in common. Other keys in the file are ignored."""

OAUTH: Final = "oauth"
AUTH_WORDS: Final[Mapping[str, str]] = {OAUTH: "oauth2", "oauth2": "oauth2", "none": "none"}
"""String values of `auth`, and the settings' strategy for each."""


def settings_entry(entry: object) -> dict[str, Any]:
    """The entry in the shape of settings and start requests, valid there. Raises MCPServerError."""
    if not isinstance(entry, Mapping):
        raise _error((), "it must be an object")
    found = {key: entry[key] for key in KEPT if entry.get(key) is not None}
    for key, implied in URL_KEYS.items():
        if "url" not in found and isinstance(entry.get(key), str):
            found["url"] = entry[key]
            if implied is not None:
                found["transport"] = implied
    if not _whole(found):
        raise _error((), "it must be UTF-8: write half of a surrogate pair (\\ud800 to \\udfff) in full")
    found.update(_transport(entry))
    if "enabled" not in found and isinstance(entry.get("disabled"), bool):
        found["enabled"] = not entry["disabled"]
    for key in ("env", "headers"):
        if isinstance(found.get(key), Mapping):
            found[key] = {name: _text(value) for name, value in found[key].items() if value is not None}
    if isinstance(found.get("args"), list):
        found["args"] = [_text(value) for value in found["args"]]
    if "auth" in found:
        found["auth"] = _auth(found["auth"])
    if errors := server_errors(found):
        raise MCPServerError(tuple(errors))
    return found


def is_enabled(entry: object) -> bool:
    """Whether an entry is switched on; one that says neither is."""
    if not isinstance(entry, Mapping):
        return False
    enabled = entry.get("enabled")
    return enabled if isinstance(enabled, bool) else entry.get("disabled") is not True


def switch(entry: dict[str, Any], enabled: bool) -> None:
    """Switch an entry of the file on or off, in the spelling that it has."""
    if "enabled" not in entry and isinstance(entry.get("disabled"), bool):
        entry["disabled"] = not enabled
    else:
        entry["enabled"] = enabled


def transport_of(server: Mapping[str, Any]) -> str:
    """The transport of a valid entry in the settings' shape: stdio, http or sse."""
    if server.get("command") is not None:
        return "stdio"
    return "sse" if server.get("transport") == "sse" else "http"


def uses_oauth(server: Mapping[str, Any]) -> bool:
    """Whether a valid entry in the settings' shape is one that a person logs in to."""
    auth = server.get("auth")
    return isinstance(auth, Mapping) and auth.get("strategy") == "oauth2" and server.get("url") is not None


def _transport(entry: Mapping[str, Any]) -> dict[str, str]:
    for key in ("transport", "type"):
        given = entry.get(key)
        if given is None:
            continue
        word = given.lower().replace("-", "").replace("_", "") if isinstance(given, str) else ""
        if word not in SPELLINGS:
            raise _error((key,), f"it should be one of {', '.join(TRANSPORTS)}")
        return {"transport": SPELLINGS[word]}
    return {}


def _auth(value: object) -> object:
    if isinstance(value, str):
        strategy = AUTH_WORDS.get(value.lower())
        if strategy is None:
            raise _error(("auth",), "it should be oauth, none, or an object with a strategy")
        return {"strategy": strategy}
    if isinstance(value, Mapping) and "strategy" not in value:
        word = value.get("type")
        if isinstance(word, str) and word.lower() in AUTH_WORDS:
            rest = {key: item for key, item in value.items() if key != "type"}
            return {**rest, "strategy": AUTH_WORDS[word.lower()]}
    return value


def _whole(value: object) -> bool:
    """Whether this can be sent to an agent, and written into an event: JSON escapes may not fit into
    UTF-8."""
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return False
    return True


def _text(value: object) -> object:
    """Numbers and booleans as strings, as they are meant in arguments and variables."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def _error(loc: tuple[str, ...], msg: str) -> MCPServerError:
    return MCPServerError((ErrorDetail(loc=loc, msg=msg, type="value_error"),))
