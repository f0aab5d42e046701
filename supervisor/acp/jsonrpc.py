"""JSON-RPC 2.0 messages. No I/O.

Reading is liberal: a missing `jsonrpc`, ids of any scalar type (echoed verbatim), `result: null`, lone
surrogates, invalid UTF-8, NaN. Writing is strict: one line of valid JSON.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import attrs
import orjson

from supervisor.acp.errors import INTERNAL_ERROR, NOT_JSON, RpcError
from supervisor.reading.weight import MAX_DEPTH, too_heavy
from supervisor.tight import tight

Id = int | float | str | None
"""A request id. Ostler's are integers; an agent's may be anything, null included."""

CANCEL_REQUEST: Final = "$/cancel_request"
"""The notification, in both directions, that the sender no longer needs the answer to a request."""

MAX_REPAIR_BYTES: Final = 1024 * 1024
"""The longest frame of invalid JSON that is repaired, bytes: the repair holds the GIL for some 40 ms per
megabyte."""


# Treat messages as immutable. They are not frozen, since attrs takes three times as long to create frozen
# objects.


@attrs.define
class Request:
    """A request of the agent, which waits for an answer with this id."""

    id: Id
    method: str
    params: Any


@attrs.define
class Notification:
    """A notification of the agent."""

    method: str
    params: Any


@attrs.define
class Response:
    """An answer of the agent. `error` None means success, with any `result`, null included."""

    id: Id
    result: Any
    error: RpcError | None


@attrs.frozen
class Invalid:
    """Invalid JSON-RPC that is reported to the agent (error -32600 with this id)."""

    id: Id
    reason: str


@attrs.frozen
class NonProtocolOutput:
    """A line that is not a message: a banner, a log line, a piece of pretty-printed JSON."""

    line: bytes


@attrs.frozen
class Refused:
    """A frame that is too expensive to read: too many values, too deep, too long to repair."""

    reason: str


Message = Request | Notification | Response | Invalid | NonProtocolOutput | Refused

_MAY_BE_JSON: Final = frozenset(b"{[ \t")


def parse(frame: bytes) -> Message:
    """Parse one frame. Never raises, for any bytes.

    Holds the GIL for some 20 ms at most, however long the frame is.
    """
    if not frame or frame[0] not in _MAY_BE_JSON:
        return NonProtocolOutput(frame)
    reason = too_heavy(frame) if len(frame) > MAX_DEPTH else None
    if reason is not None:
        return Refused(reason) if frame.lstrip().startswith(b"{") else NonProtocolOutput(frame)
    try:
        obj = orjson.loads(frame)
    except orjson.JSONDecodeError:
        if len(frame) > MAX_REPAIR_BYTES and frame.lstrip().startswith(b"{"):
            return Refused(NOT_JSON)
        obj = _repaired(frame)
    if type(obj) is not dict:
        if type(obj) is list:
            return Invalid(None, "ACP has no batches")
        return NonProtocolOutput(frame)
    method = obj.get("method")
    if type(method) is str:
        if "id" not in obj:
            return Notification(method, obj.get("params"))
        if _is_id(obj["id"]):
            return Request(obj["id"], method, obj.get("params"))
        return Invalid(None, "the id is neither a string nor a number")
    if "id" in obj and _is_id(obj["id"]):
        if obj.get("error") is not None:
            return Response(obj["id"], None, _error(obj["error"]))
        if "result" in obj:
            return Response(obj["id"], obj["result"], None)
        if method is not None:
            return Invalid(obj["id"], "the method is not a string")
        if obj.keys() <= {"jsonrpc", "id", "error"}:
            return Response(obj["id"], None, None)  # JavaScript leaves `result: undefined` out
    return NonProtocolOutput(frame)


def _is_id(value: Any) -> bool:
    return value is None or (isinstance(value, int | float | str) and not isinstance(value, bool))


def _error(value: Any) -> RpcError:
    if not isinstance(value, dict):
        return RpcError(INTERNAL_ERROR, value if isinstance(value, str) else "malformed error", value)
    code, message = value.get("code"), value.get("message")
    return RpcError(
        code if isinstance(code, int) and not isinstance(code, bool) else INTERNAL_ERROR,
        message if isinstance(message, str) else "",
        value.get("data"),
    )


_ESCAPE: Final = re.compile(
    r"\\(?:\\|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|u[dD][89a-fA-F][0-9a-fA-F]{2})"
)
"""An escaped backslash, a surrogate pair, or a lone surrogate: distinguished by their lengths."""

_LONE_ESCAPE_CHARS: Final = 6
_INT64_DIGITS: Final = 18


def _repaired(frame: bytes) -> Any:
    """Parse the invalid JSON that JavaScript and Python agents may write; None if that fails.

    Text streamed in pieces of UTF-16 code units splits emoji into lone surrogates.
    """
    if not frame.lstrip().startswith(b"{"):
        return None
    text = _ESCAPE.sub(
        lambda match: r"\ufffd" if len(match[0]) == _LONE_ESCAPE_CHARS else match[0],
        frame.decode("utf-8", "replace"),
    )
    try:
        return json.loads(
            text,
            strict=False,
            parse_constant=lambda _name: None,
            parse_int=lambda digits: int(digits) if len(digits) <= _INT64_DIGITS else float(digits),
        )
    except (ValueError, RecursionError):
        return None


def encode_request(request_id: int, method: str, params: Any) -> bytes:
    """Encode a request as one line. Raises TypeError for values that JSON cannot represent."""
    return _line({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})


def encode_notification(method: str, params: Any) -> bytes:
    """Encode a notification as one line. Raises TypeError for values that JSON cannot represent."""
    return _line({"jsonrpc": "2.0", "method": method, "params": params})


def encode_result(request_id: Id, result: Any) -> bytes:
    """Encode a result for the agent as one line. Raises TypeError for values that JSON cannot represent."""
    return _line({"jsonrpc": "2.0", "id": request_id, "result": result})


def encode_error(request_id: Id, error: RpcError) -> bytes:
    """Encode an error answer to the agent as one line. Omits data that JSON cannot represent."""
    body: dict[str, Any] = {"code": error.code, "message": error.message}
    if error.data is not None:
        body["data"] = error.data
    answer = {"jsonrpc": "2.0", "id": request_id, "error": body}
    try:
        return _line(answer)
    except TypeError:
        body.pop("data", None)
        body["message"] = error.message.encode("utf-8", "replace").decode()
        return _line(answer)


def _line(message: dict[str, Any]) -> bytes:
    # The encoder escapes control characters, so that the only line feed is the one at the end.
    return tight(orjson.dumps(message, option=orjson.OPT_APPEND_NEWLINE))
