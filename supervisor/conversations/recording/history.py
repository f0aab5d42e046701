"""Reads stored events back: the messages, and the open tool calls. Pure; events are stored dicts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from supervisor.conversations.recording.prompt import MCP_COMMAND
from supervisor.conversations.recording.translate import BY_OSTLER
from supervisor.events import ACPToolCallEvent, AgentErrorEvent, Event, new_event_id

INTERRUPTED: Final = "Interrupted: the server stopped before this tool call ended; its effects are unknown."

REPEATED_BYTES: Final = 16 * 1024
"""Bytes up to which the first event of a call is repeated in the closing one.

A dead server may leave thousands of calls open, and the rest need not be in memory.
"""

_CARD_NAMES: Final = ("tool_call_id", "title", "tool_kind")

NOT_FOR_AGENTS: Final = frozenset({MCP_COMMAND})
"""Messages that Ostler answers: no agent has got them."""

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
        self._actions: dict[str, Mapping[str, Any]] = {}

    def take(self, event: Mapping[str, Any], size: int) -> None:
        """The next event, and how many bytes of JSON it has."""
        kind, call = event.get("kind"), str(event.get("tool_call_id"))
        if kind == "ACPToolCallEvent":
            if event.get("status") in {"completed", "failed"}:
                self._calls.pop(call, None)
            else:
                names = _CARD_NAMES if size > REPEATED_BYTES else (*_CARD_NAMES, "raw_input", "content")
                self._calls[call] = {name: event.get(name) for name in names}
        elif kind == "ActionEvent":
            self._actions[call] = {name: event[name] for name in ("tool_name", "tool_call_id")}
        elif kind in self.KINDS:
            self._actions.pop(call, None)

    def closing(self) -> list[Event]:
        """Return the events that close the open calls."""
        return _closing(self._calls, self._actions)


def _closing(calls: Mapping[str, Mapping[str, Any]], actions: Mapping[str, Mapping[str, Any]]) -> list[Event]:
    closing: list[Event] = [
        AgentErrorEvent(
            id=new_event_id(),
            tool_name=event["tool_name"],
            tool_call_id=event["tool_call_id"],
            error=INTERRUPTED,
        )
        for event in actions.values()
    ]
    closing += [
        ACPToolCallEvent(
            id=new_event_id(),
            tool_call_id=event["tool_call_id"],
            title=event["title"],
            status="failed",
            tool_kind=event.get("tool_kind"),
            raw_input=event.get("raw_input"),
            raw_output=INTERRUPTED,
            content=event.get("content"),
            is_error=True,
        )
        for event in calls.values()
    ]
    return closing


def speech(event: Mapping[str, Any]) -> tuple[str, str] | None:
    """An event as a line of a transcript: speaker and text. None if it is no part of the talk."""
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
            if event.get("summary") == BY_OSTLER:
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
