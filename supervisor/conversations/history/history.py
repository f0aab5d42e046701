"""Reads stored events back: the messages, and the open tool calls. Pure; events are stored dicts."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from supervisor.conversations.history.prompt import MCP_COMMAND
from supervisor.conversations.recording.answers import BY_OSTLER, NO_ANSWER
from supervisor.conversations.recording.tool_calls.events import interrupted_acp, interrupted_action
from supervisor.events import Event, new_event_id

REPEATED_BYTES: Final = 16 * 1024
"""Bytes up to which the first event of a call is repeated in the closing one.

A dead server may leave thousands of calls open, and the rest need not be in memory.
"""

_CALL_FIELDS: Final = ("title", "tool_kind")
_CALL_PAYLOADS: Final = ("raw_input", "content")

NOT_FOR_AGENTS: Final = frozenset({MCP_COMMAND})
"""Messages that Ostler answers itself, without an agent."""

OUTPUT_CHARS: Final = 500
"""Characters of a tool's output in a transcript: enough to know what it was."""


class OpenCalls:
    """The tool calls that a turn leaves open.

    Feed it the turn's events one by one, oldest first. It keeps only what the closing events need, and no
    large payload.
    """

    KINDS: Final = frozenset(
        {
            "ACPToolCallEvent",
            "ActionEvent",
            "ObservationEvent",
            "AgentErrorEvent",
            "UserRejectObservation",
        }
    )
    """The kinds of events that matter."""

    def __init__(self) -> None:
        self._calls: dict[str, Mapping[str, Any]] = {}
        self._actions: dict[str, str] = {}

    def take(self, event: Mapping[str, Any], size: int) -> None:
        """Take the next event. `size`: its bytes of JSON."""
        kind, call_id = event.get("kind"), str(event.get("tool_call_id"))
        if kind == "ACPToolCallEvent":
            if event.get("status") in {"completed", "failed"}:
                self._calls.pop(call_id, None)
            else:
                payloads = () if size > REPEATED_BYTES else _CALL_PAYLOADS
                fields = {name: event.get(name) for name in (*_CALL_FIELDS, *payloads)}
                self._calls[call_id] = {**dict.fromkeys(_CALL_PAYLOADS), **fields}
        elif kind == "ActionEvent":
            self._actions[call_id] = event["tool_name"]
        elif kind in self.KINDS:
            self._actions.pop(call_id, None)

    @property
    def open(self) -> frozenset[str]:
        """The ids of those that are open now."""
        return frozenset((*self._actions, *self._calls))

    def closing(self, asked: Collection[str] = ()) -> list[Event]:
        """The events that close them, of the same shape as at the end of a turn (`tool_calls.end_events`).
        `asked`: ids of the calls that a person was asked about."""
        closing: list[Event] = []
        for call_id in dict.fromkeys((*self._actions, *self._calls)):
            begun = call_id not in asked
            if call_id in self._actions:
                name = self._actions[call_id]
                closing.append(interrupted_action(new_event_id(), name, call_id, begun=begun))
            if call_id in self._calls:
                closing.append(interrupted_acp(new_event_id(), call_id, begun=begun, **self._calls[call_id]))
        return closing


def speech(event: Mapping[str, Any]) -> tuple[str, str] | None:
    """An event as a line of a transcript: speaker and text. None if it is not part of the dialogue."""
    kind = event.get("kind")
    if kind == "MessageEvent":
        words = _text(event["llm_message"].get("content"))
        if words.strip() in NOT_FOR_AGENTS:
            return None
        who = {"user": "User", "agent": "Assistant"}.get(str(event.get("source")))
        return (who, words) if who and words else None
    if kind == "ActionEvent":
        action = event.get("action") or {}
        if action.get("kind") == "FinishAction":
            if event.get("summary") in {BY_OSTLER, NO_ANSWER}:
                return None
            return ("Assistant", action["message"]) if action.get("message") else None
        return ("Tool call", str(event.get("summary") or event.get("tool_name")))
    if kind == "ObservationEvent":
        observation = event.get("observation") or {}
        if observation.get("kind") == "FinishObservation":
            return None
        return ("Tool output", _text(observation.get("content"))[:OUTPUT_CHARS])
    if kind in {"AgentErrorEvent", "UserRejectObservation"}:
        return ("Tool output", str(event.get("error") or event.get("rejection_reason"))[:OUTPUT_CHARS])
    if kind == "ACPToolCallEvent" and event.get("status") in {"completed", "failed"}:
        output = event.get("raw_output")
        shown = f": {output[:OUTPUT_CHARS]}" if isinstance(output, str) and output else ""
        return ("Tool call", f"{event.get('title')} ({event.get('status')}){shown}")
    return None


def _text(content: Any) -> str:
    if not isinstance(content, list):
        return ""
    return "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
