"""The smallest events that are right, which tests break in one place."""

from __future__ import annotations

from typing import Any

TEXT: dict[str, Any] = {"type": "text", "text": "hi"}
CALL: dict[str, Any] = {"id": "c1", "name": "x", "arguments": "{}", "origin": "completion"}
ANSWERS: dict[str, Any] = {"tool_name": "x", "tool_call_id": "c1"}
ACTION: dict[str, Any] = {
    "kind": "ActionEvent",
    "thought": [TEXT],
    "tool_call": CALL,
    "llm_response_id": "r1",
    **ANSWERS,
}
OBSERVATION: dict[str, Any] = {"kind": "ObservationEvent", "action_id": "a1", **ANSWERS}
MESSAGE: dict[str, Any] = {"kind": "MessageEvent", "source": "user", "llm_message": {"role": "user"}}
