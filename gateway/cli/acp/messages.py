"""The JSON-RPC messages that the bridge reads and makes itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs
import orjson

from gateway.api.acp.offer import initialized

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
INTERNAL_ERROR: Final = -32603
AUTH_REQUIRED: Final = -32000

INITIALIZE: Final = "initialize"
PROMPT: Final = "session/prompt"
CANCEL: Final = "session/cancel"
LOAD: Final = "session/load"
CANCEL_REQUEST: Final = "$/cancel_request"
ATTACH: Final = "_ostler/attach"

OPENING: Final = frozenset({"session/new", LOAD, "session/resume", "session/fork"})
"""Requests whose success opens a session."""

CLOSING: Final = frozenset({"session/close", "session/delete"})

KEY_VARIABLE: Final = "OSTLER_API_KEY"
LOGIN_OPTION: Final = "--login"


@attrs.frozen
class Line:
    """A message of the editor, as it came. `key` is its id as JSON, None for a notification."""

    body: bytes
    key: bytes | None = None
    method: str = ""
    params: Mapping[str, Any] = attrs.field(factory=dict)
    """Those of a request; without what is large."""

    @property
    def session(self) -> str | None:
        """The session that it is about."""
        found = self.params.get("sessionId")
        return found if isinstance(found, str) else None


class Unreadable(Exception):
    """A line of the editor is not a message; `answer` says so."""

    def __init__(self, code: int, reason: str, key: bytes = b"null") -> None:
        super().__init__(reason)
        self.answer = error(key, code, reason)


def read(body: bytes) -> Line | None:
    """The editor's message; an answer has no method. None for an empty line. Raises Unreadable."""
    if not body.strip():
        return None
    try:
        message = orjson.loads(body)
    except orjson.JSONDecodeError as problem:
        raise Unreadable(PARSE_ERROR, f"the line is not JSON: {problem}") from None
    if not isinstance(message, dict):
        raise Unreadable(INVALID_REQUEST, "a line must be one JSON object; batches are not supported")
    identity, method = message.get("id"), message.get("method")
    if isinstance(identity, bool | list | dict):
        raise Unreadable(INVALID_REQUEST, "id must be a string, a number or null")
    key = orjson.dumps(identity) if "id" in message else None
    if not isinstance(method, str):
        if key is None or "method" in message:
            raise Unreadable(INVALID_REQUEST, "method must be a string", key or b"null")
        return Line(body, key)
    params = message.get("params")
    kept = params if isinstance(params, dict) else {}
    if method not in (INITIALIZE, *OPENING):
        kept = {"sessionId": kept.get("sessionId")}
    return Line(body, key, method, kept)


def is_cancelled(body: bytes) -> bool:
    """Whether an answer of the editor says that it was cancelled, and nothing else."""
    match orjson.loads(body):
        case {"error": {"code": -32800}} | {"result": {"outcome": {"outcome": "cancelled"}}}:
            return True
    return False


def identified(key: bytes) -> Any:
    """The id of a key."""
    return orjson.loads(key)


def error(key: bytes, code: int, message: str) -> bytes:
    """The answer that a request failed."""
    answer = {"jsonrpc": "2.0", "id": identified(key), "error": {"code": code, "message": message}}
    return orjson.dumps(answer)


def result(key: bytes, value: object) -> bytes:
    """The answer to a request."""
    return orjson.dumps({"jsonrpc": "2.0", "id": identified(key), "result": value})


def request(key: bytes, method: str, params: object) -> bytes:
    """A request of the bridge."""
    return orjson.dumps({"jsonrpc": "2.0", "id": identified(key), "method": method, "params": params})


def request_ended(key: bytes) -> bytes:
    """The notification that an answer is no longer awaited."""
    params = {"requestId": identified(key)}
    return orjson.dumps({"jsonrpc": "2.0", "method": CANCEL_REQUEST, "params": params})


def without_key(request: Line) -> bytes:
    """The answer to `initialize` where the server has refused the key: how to give one."""
    assert request.key is not None
    return result(request.key, initialized(methods(request.params)))


def methods(params: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The ways to give a key, of which this client knows: `params` are those of its `initialize`."""
    found: list[dict[str, Any]] = [
        {
            "id": "ostler-key",
            "type": "env_var",
            "name": "Session key",
            "description": f"Set {KEY_VARIABLE} to one of the Ostler server's session keys.",
            "vars": [{"name": KEY_VARIABLE, "label": "Session key", "secret": True}],
        }
    ]
    match params:
        case {"clientCapabilities": {"auth": {"terminal": True}}}:
            found.append(
                {
                    "id": "ostler-login",
                    "type": "terminal",
                    "name": "Type the session key in a terminal",
                    "description": "Asks for the key once, checks it, and keeps it for this server.",
                    "args": [LOGIN_OPTION],
                }
            )
    return found
