"""What agents were seen to say of failed calls of their models, and what is none of that."""

from __future__ import annotations

import json
from typing import Any

import pytest

from supervisor.acp import parse_update
from supervisor.acp.schema.bounds import WORDS_CHARS
from supervisor.acp.schema.failing import FAILING, CallFailure, failure_in, failure_in_update

CODEX = {
    "codex": {
        "error": {
            "message": "Reconnecting... 2/5",
            "codexErrorInfo": {"responseStreamDisconnected": {"httpStatusCode": None}},
            "additionalDetails": "failed to lookup address information",
            "turnId": "t",
            "willRetry": True,
        }
    }
}
CLAUDE = {"type": "system", "subtype": "api_retry", "attempt": 4, "max_retries": 10, "retry_delay_ms": 4823}
AIR = {
    "jetbrains": {"air": {"sessionFailure": {"title": "Retrying Claude, attempt 1 of 10.", "actions": []}}}
}


def of_update(update: dict[str, Any]) -> CallFailure | None:
    return failure_in_update(parse_update({"sessionId": "s", "update": update})[1])


@pytest.mark.parametrize(
    ("meta", "words"),
    [
        (CODEX, "Reconnecting... 2/5: failed to lookup address information"),
        (AIR, "Retrying Claude, attempt 1 of 10."),
        ({"x": [{"message": "Overloaded"}]}, "Overloaded"),
        ({"codex": {"threadStatus": {"type": "active", "activeFlags": []}}}, None),
        ({"piAcp": {"queueDepth": 0, "running": True}}, None),
        ("Reconnecting", None),
        (None, None),
    ],
)
@pytest.mark.parametrize("kind", ["session_info_update", "usage_update", "quite_new"])
def test_what_stands_in_the_meta_of_an_update(kind: str, meta: Any, words: str | None) -> None:
    assert of_update({"sessionUpdate": kind, "_meta": meta}) == (words and CallFailure(words))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("The model had a transient failure; trying again\n", True),
        ("Rate limited (429). Retrying in 12 s (attempt 2/10)", True),
        ("API Error: Connection error. Retrying", True),
        ("fetch failed, reconnecting", True),
        ("Let me try again with another path", False),
        ("The function retries the call", False),
        ("The server is overloaded", False),
        ("First I read the file.\nIt handles 503 with a retry", False),
        (
            "The code of the client answers to a 503 with a retry, " + "and more is to be said of it. " * 5,
            False,
        ),
    ],
)
def test_a_thought_that_is_a_notice(text: str, found: bool) -> None:
    chunk = {"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": text}}
    assert of_update(chunk) == (CallFailure(text.strip()) if found else None)
    assert of_update({**chunk, "sessionUpdate": "agent_message_chunk"}) is None
    told = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x"}, "_meta": CODEX}
    assert of_update(told) is not None


def test_an_update_that_the_protocol_does_not_have() -> None:
    status = {"type": "retry", "attempt": 2, "message": "Overloaded", "next": 1_790_000_000_000}
    assert of_update({"sessionUpdate": "session_status", "status": status}) == CallFailure("Overloaded", 2)
    assert of_update({"sessionUpdate": "session_status", "status": {"type": "busy"}}) is None


def test_a_notice_and_what_is_none() -> None:
    notice = {
        "sessionUpdate": "notice",
        "severity": "warning",
        "title": "Connection lost",
        "description": "Wait",
    }
    assert of_update(notice) == CallFailure("Connection lost: Wait")
    assert of_update({**notice, "title": "A newer version is there"}) is None
    assert of_update({**notice, "sessionUpdate": "session_info_update", "title": "Add a retry"}) is None


@pytest.mark.parametrize(
    ("method", "params", "expected"),
    [
        (
            "_claude/sdkMessage",
            {"message": {**CLAUDE, "error_status": None, "error": "unknown"}},
            CallFailure("no HTTP answer", 4, 10, 4.8),
        ),
        (
            "_claude/sdkMessage",
            {"message": {**CLAUDE, "error_status": 529, "error": "overloaded"}},
            CallFailure("overloaded (HTTP 529)", 4, 10, 4.8),
        ),
        (
            "_session/retrying",
            {"category": "server_error", "detail": "HTTP 500"},
            CallFailure("server_error: HTTP 500"),
        ),
        ("_session/retrying", {}, CallFailure("_session/retrying")),
        ("_auth/status_update", {"authStatus": {"kind": "gateway", "detail": "local"}}, None),
        ("_session/retrying", ["odd", 7, None], CallFailure("_session/retrying")),
    ],
)
def test_what_notifications_say(method: str, params: Any, expected: CallFailure | None) -> None:
    assert failure_in(method, params) == expected


def test_what_an_agent_may_send_is_bounded() -> None:
    deep: Any = {"message": "retry"}
    for _ in range(100):
        deep = {"x": deep}
    assert failure_in("", deep) is None
    assert failure_in("", {**{f"m{number}": 1 for number in range(1_000)}, "message": "retry"}) is None
    found = failure_in("", {"message": "retry " * 100_000, "attempt": 10**400, "retry_delay_ms": -1})
    assert found is not None
    assert (len(found.words) <= WORDS_CHARS, found.attempt, found.next_seconds) == (True, None, None)
    assert failure_in("retry", json.loads('{"retry_delay_ms": 1e999, "attempt": true}')) == CallFailure(
        "retry"
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("[2026-11-24T03:41:02.519Z] [WARN] Attempt 2 failed. Retrying with backoff... Error: x", True),
        ('level=ERROR message="stream error" error.error="AI_APICallError: Cannot connect to API"', True),
        ("▲ Provider Error: Error code: 500 - {'error': {'message': 'The server had an ", True),
        ("⟳ Retrying in 10.0s... (Attempt 1/3)", True),
        ("getaddrinfo EAI_AGAIN api.test", True),
        ("    at async Models.generateContent (chunk.js:268643:16)", False),
        ("[session/create] phase=register durationMs=4 totalMs=1170", False),
        ("[acp] starting ACP mode over stdio", False),
    ],
)
def test_what_lines_say(line: str, says: bool) -> None:
    assert (FAILING.search(line) is not None) is says
