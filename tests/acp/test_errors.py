from __future__ import annotations

from typing import Any

import pytest

from supervisor.acp.errors import (
    ERROR_TEXT_CHARS,
    FrameTooLarge,
    RpcError,
    classify_error,
    error_text,
    session_not_found,
)


@pytest.mark.parametrize(
    ("code", "message", "data", "expected"),
    [
        # What real agents answered.
        (-32000, "Authentication required", None, "auth"),
        (-32000, "Gemini API key is missing or not configured.", None, "auth"),
        (-32002, "Resource not found", {"sessionId": "x"}, "not_found"),
        (-32601, '"Method not found": nope/nope', {"method": "nope/nope"}, "method_not_found"),
        (-32603, "Internal error", {"details": "no rollout found for thread id 0"}, "not_found"),
        (-32603, "Internal error", {"details": "No previous sessions found for this project."}, "not_found"),
        (-32602, "Session not found: 0000", None, "not_found"),
        (-32602, "Invalid params: session not found: 0000", {"sessionId": "0000"}, "not_found"),
        (-32603, "Internal error: OpenCode service failure", {"service": "session"}, "not_found"),
        (401, '{"error":{"code":401,"message":"no","status":"UNAUTHENTICATED"}}', None, "auth"),
        (403, '{"error":{"code":403,"message":"no","status":"PERMISSION_DENIED"}}', None, "auth"),
        (400, '{"error":{"code":400,"message":"bad","status":"INVALID_ARGUMENT"}}', None, "invalid_params"),
        (400, '{"error":{"code":400,"message":"API key not valid. Please pass one."}}', None, "auth"),
        (429, '{"error":{"code":429,"message":"slow down"}}', None, "rate_limit"),
        (503, "unavailable", None, "transient"),
        (-32603, "Internal error: fake 401 from the test server", {"errorName": "APIError"}, "auth"),
        (-32603, "Internal error: API Error: 400 bad", {"errorKind": "unknown"}, "internal"),
        (
            -32603,
            "Internal error: API Error: Repeated 529 Overloaded errors. The API is at capacity",
            {"errorKind": "server_error"},
            "transient",
        ),
        # Words.
        (-32603, "blocked by our Usage Policy", None, "usage_policy"),
        (-32603, "Internal error", {"message": "violates the content policy; 429"}, "usage_policy"),
        (-32603, "Internal error", {"error": "Rate limit reached for requests"}, "rate_limit"),
        (-32603, "Internal error", "429 Too Many Requests", "rate_limit"),
        (-32603, "You've hit your usage limit", None, "rate_limit"),
        (-32603, "Please run /login", None, "auth"),
        (-32603, "OAuth token has expired", None, "auth"),
        (-32603, "Internal error", {"error": {"message": "invalid api key"}}, "auth"),
        (-31002, "You are not logged in", None, "auth"),
        (-32603, "unexpected status 503 from the model", None, "transient"),
        (-32603, "connect ECONNREFUSED 127.0.0.1:401", None, "transient"),
        (-32603, "Internal error", {"errorKind": "overloaded"}, "transient"),
        (-32800, "Request cancelled", None, "cancelled"),
        # What must not be mistaken for something else.
        (-32603, "Mode not available: bypassPermissions", None, "internal"),
        (-32603, "context window exceeded: 500 files, 429 lines", None, "internal"),
        (-32603, "at parse (lib.js:401:12), line 403", None, "internal"),
        (-32603, "the cache entry expired", None, "internal"),
        (-32602, "Invalid params: unauthorized mode", None, "invalid_params"),
        (-32600, "Invalid request", None, "invalid_params"),
        (12345, "", None, "internal"),
        (-32603, "Internal error", ["odd", {"data": 1}], "internal"),
    ],
)
def test_what_an_error_means(code: int, message: str, data: Any, expected: str) -> None:
    assert classify_error(RpcError(code, message, data)) == expected


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RpcError(-32603, "Internal error"), "[-32603] Internal error"),
        (
            RpcError(-32603, "Internal error", {"details": "no\nrollout"}),
            "[-32603] Internal error: no rollout",
        ),
        (RpcError(-32603, "Boom: it broke", {"message": "it broke"}), "[-32603] Boom: it broke"),
        (RpcError(-32603, "x", {"error": {"message": "inner"}}), "[-32603] x: inner"),
        (RpcError(-32603, "x", "words"), "[-32603] x: words"),
        (RpcError(-32603, "x", {"details": 5, "detail": "d"}), "[-32603] x: d"),
        (RpcError(401, '{"error":{"code":401,"message":"no key"}}'), "[401] no key"),
        (RpcError(401, "{not json"), "[401] {not json"),
        (RpcError(-1, ""), "[-1] no message"),
    ],
)
def test_an_error_as_text(error: RpcError, expected: str) -> None:
    assert error_text(error) == expected
    assert str(error) == expected


def test_error_text_is_cut() -> None:
    text = error_text(RpcError(-32603, "x" * 10_000, "y" * 100_000_0))
    assert len(text) == ERROR_TEXT_CHARS
    assert text.endswith("x…")


def test_a_frame_too_large_names_the_limit() -> None:
    error = FrameTooLarge(100, 64)
    assert error.data == {"size": 100, "maxFrameBytes": 64}
    assert classify_error(error) == "internal"


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (
            None,
            "it has 100 bytes, and Ostler takes at most 64 in one message. Raise OSTLER_MAX_FRAME",
        ),
        (
            "more than 100000 values",
            "it has more than 100000 values, Ostler's fixed limit for one message.",
        ),
        (
            "nested deeper than 200 levels",
            "it is nested deeper than 200 levels, Ostler's fixed limit",
        ),
        ("not valid JSON", "it is not valid JSON. This is a fault of the agent:"),
    ],
)
def test_a_frame_that_is_discarded_says_which_limit_whose_and_what_to_do(
    reason: str | None, words: str
) -> None:
    assert f"The agent's answer was discarded: {words}" in str(FrameTooLarge(100, 64, reason))


@pytest.mark.parametrize(
    ("code", "message", "data", "is_it"),
    [
        (-32603, "Internal error", {"details": "no rollout found for thread id 0"}, True),
        (-32603, "session not found", None, True),
        (-32602, "Session not found: 0000", None, True),
        (-32603, "Internal error: OpenCode service failure", {"service": "session"}, True),
        (-32002, "Resource not found", {"sessionId": "x"}, True),
        (-32002, "Resource not found: 0123456789-model", {"uri": "0123456789"}, True),
        (-32002, "Resource not found: model gpt-9", None, False),
        (404, "Not found", {"id": "0123456789"}, True),
        (404, "Not found", None, False),
        (404, "The model gpt-9 does not exist", None, False),
        (500, "session not found", None, True),
        (-32000, "Authentication required", None, False),
    ],
)
def test_what_is_not_found_is_the_session_or_something_else(
    code: int, message: str, data: Any, is_it: bool
) -> None:
    assert session_not_found(RpcError(code, message, data), "0123456789") is is_it
