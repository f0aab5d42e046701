"""Errors of a connection, and the classification of agents' errors by code and text."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any, Final, Literal

import orjson

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
REQUEST_CANCELLED: Final = -32800
AUTH_REQUIRED: Final = -32000
RESOURCE_NOT_FOUND: Final = -32002

NOT_JSON: Final = "not valid JSON"
"""The reason for refusing a large message that is not JSON."""

ERROR_TEXT_CHARS: Final = 500
"""Longest `error_text`, in characters: enough for any message for people; some agents append whole
responses."""

_SCAN_CHARS: Final = 8_000
"""How many characters of an error's text are searched: the meaning is at the beginning."""


_JSON_CHARS: Final = 64 * 1024
"""The longest message that is parsed as JSON, characters: it may be the error body of a model API."""


class AcpError(Exception):
    """Base of the errors of this package."""


class RpcError(AcpError):
    """A JSON-RPC error: the agent's answer to Ostler's request, or Ostler's to the agent's.

    `data` is any JSON value; None stands for absent.
    """

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(code, message, data)
        self.code = code
        self.message = message
        self.data = data

    def __str__(self) -> str:
        return error_text(self)

    @classmethod
    def method_not_found(cls, method: str) -> RpcError:
        """The answer to a request for a method that is not offered."""
        return cls(METHOD_NOT_FOUND, f"Method not found: {method[:200]}")

    @classmethod
    def invalid_params(cls, message: str, data: Any = None) -> RpcError:
        """The answer to a request whose parameters cannot be used."""
        return cls(INVALID_PARAMS, message, data)


def refusal(size: int, limit: int, reason: str | None) -> str:
    """Why a message of the agent, of `size` bytes, was refused, and what to do about it.

    `limit` is the frame cap, bytes; `reason` that of `Oversize`.
    """
    if reason is None:
        return (
            f"it has {size} bytes, and Ostler takes at most {limit} in one message. "
            "Raise OSTLER_MAX_FRAME_BYTES, or have the agent send less at once."
        )
    if reason == NOT_JSON:
        return "it is not valid JSON. This is a fault of the agent: update it, or tell its makers."
    has = "is" if reason.startswith("nested") else "has"
    return f"it {has} {reason}, Ostler's fixed limit for one message. Have the agent send less at once."


class FrameTooLarge(RpcError):
    """The answer, of `size` bytes, was discarded: it exceeded the frame cap (`limit`, bytes), or for another
    `reason` (see `refusal`)."""

    def __init__(self, size: int, limit: int, reason: str | None = None) -> None:
        super().__init__(
            INTERNAL_ERROR,
            f"The agent's answer was discarded: {refusal(size, limit, reason)}",
            {"size": size, "maxFrameBytes": limit},
        )
        self.size = size
        self.limit = limit


class RequestTimeout(AcpError):
    """The agent did not answer `method` within `timeout` seconds. Ostler has sent `$/cancel_request`."""

    def __init__(self, method: str, timeout: float) -> None:
        super().__init__(f"the agent did not answer {method} within {timeout:g} s")
        self.method = method
        self.timeout = timeout


class ConnectionLost(AcpError):
    """The connection ended before the answer came. `reason` is one or more lines, fit for a person."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class UnsupportedProtocolVersion(AcpError):
    """The agent answered `initialize` with an unsupported protocol version."""

    def __init__(self, answered: Any) -> None:
        super().__init__(f"the agent speaks protocol version {str(answered)[:40]}; Ostler requires version 1")
        self.answered = answered


ErrorClass = Literal[
    "auth",
    "rate_limit",
    "usage_policy",
    "not_found",
    "invalid_params",
    "method_not_found",
    "transient",
    "internal",
    "cancelled",
]

_BY_CODE: Final[dict[int, ErrorClass]] = {
    AUTH_REQUIRED: "auth",
    RESOURCE_NOT_FOUND: "not_found",
    METHOD_NOT_FOUND: "method_not_found",
    REQUEST_CANCELLED: "cancelled",
}
"""Codes that decide the classification; the text is ignored."""

_NO_SESSION: Final = (
    r"\b(?:session|conversation|rollout)\b[^.\n]{0,80}\b(?:not found|does not exist|is unknown)\b"
    r"|\b(?:no|unknown) (?:such |previous )?(?:session|conversation|rollout)s?\b"
    # opencode's answer to session/load and session/resume of a session that it does not have.
    r"|\bOpenCode service failure\b"
)

_WORDS: Final[tuple[tuple[ErrorClass, str], ...]] = (
    ("usage_policy", r"(?:usage|content) polic(?:y|ies)"),
    ("not_found", rf"{_NO_SESSION}|\bresource not found\b"),
    (
        "rate_limit",
        r"\brate.?limit|\btoo many requests\b|\bresource.?exhausted\b|\binsufficient.?quota\b"
        r"|\bquota (?:\w+ )?exceeded\b|\bexceeded [^.\n]{0,40}\bquota\b|\busage.?limit"
        r"|\b(?:error|status|code|http)\W{1,4}429\b",
    ),
    (
        "auth",
        r"\bunauthori[sz]ed\b|\bunauthenticated\b|\bauthentication\b|\bnot (?:logged|signed) in\b"
        r"|\bplease (?:run )?/?log ?in\b|\bpermission_denied\b|\boauth token\b"
        r"|\b(?:invalid|incorrect|missing|expired|no) api.?key\b"
        r"|\bapi.?key\b[^.\n]{0,40}\b(?:invalid|incorrect|missing|expired)\b"
        r"|\bapi.?key\b[^.\n]{0,40}\bnot (?:valid|found|set|configured)\b"
        r"|\bmissing environment variable\W{1,3}\w*(?:key|token)\b"
        # An HTTP status, not a line number, a port or a part of a version.
        r"|(?<!line )(?<![\w.:#/-])40[13](?![\w-]|\.\d)",
    ),
    (
        "transient",
        r"\boverloaded\b|\bat capacity\b|\bserver.?error\b|\bservice unavailable\b|\bbad gateway\b"
        r"|\bgateway timeout\b|\btimed? ?out\b|\bconnection (?:reset|refused|closed|error|aborted)\b"
        r"|\bECONN(?:RESET|REFUSED|ABORTED)\b|\bETIMEDOUT\b|\bENOTFOUND\b|\bEAI_AGAIN\b|\bfetch failed\b"
        r"|\bsocket hang up\b|\bnetwork error\b|\bstream.?disconnected\b"
        r"|\b(?:error|status|code|http)\W{1,4}5(?:0[0234]|29)\b",
    ),
)
"""Texts that adapters send with ambiguous codes, mostly -32603. The first match wins."""

_PATTERNS: Final = tuple((name, re.compile(words, re.IGNORECASE)) for name, words in _WORDS)

_OTHERWISE: Final[dict[int, ErrorClass]] = {
    INVALID_REQUEST: "invalid_params",
    INVALID_PARAMS: "invalid_params",
    # One agent uses the HTTP status of its model API as the code.
    400: "invalid_params",
    401: "auth",
    403: "auth",
    404: "not_found",
    408: "transient",
    429: "rate_limit",
    500: "transient",
    502: "transient",
    503: "transient",
    504: "transient",
    529: "transient",
}
"""The classification by code when no text matches."""

_WORDLESS: Final = frozenset({401, 403, 429})
"""HTTP statuses that outweigh the text sent with them."""


def classify_error(error: RpcError) -> ErrorClass:
    """Classify an agent's error. Never raises.

    Only `transient` may be retried, and only if the turn had no effect yet; `internal` is the rest, presumed
    deterministic.
    """
    known = _BY_CODE.get(error.code)
    if known is not None:
        return known
    if error.code not in _WORDLESS:
        words = _all_words(error)[:_SCAN_CHARS]
        for name, pattern in _PATTERNS:
            # Invalid params stay invalid regardless of the text, except that some agents report an
            # unknown session with this code.
            if (error.code != INVALID_PARAMS or name == "not_found") and pattern.search(words):
                return name
    return _OTHERWISE.get(error.code, "internal")


_SESSION: Final = re.compile(_NO_SESSION, re.IGNORECASE)

_SOMETHING_ELSE: Final = re.compile(
    r"\b(?:models?|deployment|provider|endpoint|url|file|path|directory|tool|command|server|agent|image|skill)\b",
    re.IGNORECASE,
)
"""Other things that an agent may report as not found."""

_ID_CHARS: Final = 8
"""Session ids shorter than this, in characters, also occur in ordinary words and numbers."""


def session_not_found(error: RpcError, session_id: str) -> bool:
    """Whether an agent's error reports this session as missing, rather than a model (some agents forward its
    404) or a file. Never raises."""
    if classify_error(error) != "not_found":
        return False
    words = _all_words(error)[:_SCAN_CHARS]
    if _SESSION.search(words):
        return True
    text = f"{words}\n{_brief(error.data)[:_SCAN_CHARS]}"
    if len(session_id) >= _ID_CHARS and session_id in text:
        return True
    return error.code == RESOURCE_NOT_FOUND and not _SOMETHING_ELSE.search(words)


def error_text(error: RpcError) -> str:
    """`[code] message: details` on one line of at most 500 characters."""
    message = _plain(error.message)[:_SCAN_CHARS]
    details = _details(error.data)[:_SCAN_CHARS]
    whole = f"[{error.code}] {message or 'no message'}"
    if details and details not in message:
        whole += f": {details}"
    whole = " ".join(whole[: 4 * ERROR_TEXT_CHARS].split())
    return whole if len(whole) <= ERROR_TEXT_CHARS else whole[: ERROR_TEXT_CHARS - 1] + "…"


_SAYS_NOTHING: Final = re.compile(
    r"\W*(?:an? )?(?:(?:internal|unknown|unexpected|internal server) )?(?:error|failure)?(?: occurred)?\W*",
    re.IGNORECASE,
)


def says_nothing(error: RpcError) -> bool:
    """Whether an agent's error names no cause. Never raises."""
    said = (error.message, _details(error.data))
    return all(_SAYS_NOTHING.fullmatch(each[: ERROR_TEXT_CHARS + 1]) for each in said)


_DETAIL_KEYS: Final = ("details", "message", "detail", "error")


def _details(data: Any) -> str:
    if isinstance(data, str):
        return data
    if not isinstance(data, Mapping):
        return ""
    for key in _DETAIL_KEYS:
        value = data.get(key)
        if isinstance(value, Mapping):
            value = value.get("message")
        if isinstance(value, str) and value:
            return value
    return ""


def _plain(message: str) -> str:
    # One agent puts the JSON body of its model API's error into the message.
    if len(message) > _JSON_CHARS or not message.lstrip().startswith("{"):
        return message
    try:
        body = orjson.loads(message)
    except orjson.JSONDecodeError:
        return message
    return _details(body) or message


_KINDS_MAX: Final = 10
"""The most members of an object in an error's data that are read, where an object names the kind of error."""

_KIND_KEYS: Final = ("errorKind", "errorName", "codexErrorInfo", "codex_error_info", "type", "status")


def _all_words(error: RpcError) -> str:
    words = [error.message[:_SCAN_CHARS], _details(error.data)[:_SCAN_CHARS]]
    if isinstance(error.data, Mapping):
        words += [_brief(error.data[key]) for key in _KIND_KEYS if error.data.get(key)]
    return "\n".join(words)


def _brief(value: Any, depth: int = 3) -> str:
    """The beginning of a value as text: keys and their values."""
    if isinstance(value, Mapping) and depth:
        members = itertools.islice(value.items(), _KINDS_MAX)
        return " ".join(f"{key[:_SCAN_CHARS]}: {_brief(item, depth - 1)}" for key, item in members)
    return value[:_SCAN_CHARS] if isinstance(value, str) else str(value) if isinstance(value, int) else ""
