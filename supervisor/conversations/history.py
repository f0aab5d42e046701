"""Reading journalled events back: what was said, and what was left open. Pure; events are stored dicts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from supervisor.events import ACPToolCallEvent, AgentErrorEvent, Event, new_event_id

from .mounting import COMMAND
from .translate import BY_OSTLER

INTERRUPTED: Final = (
    "Interrupted: the server stopped before this tool call ended; what it has done is not known."
)

NOT_FOR_AGENTS: Final = frozenset({COMMAND})
"""Messages that Ostler answers: no agent has heard of them."""

OUTPUT_CHARS: Final = 500
"""How much of a tool's output a transcript shows: enough to know what it was."""


def open_calls(events: Sequence[Mapping[str, Any]]) -> list[Event]:
    """The events that close the tool calls which `events` (one turn, oldest first) leave open."""
    cards: dict[str, Mapping[str, Any]] = {}
    actions: dict[str, Mapping[str, Any]] = {}
    for event in events:
        kind, call = event.get("kind"), str(event.get("tool_call_id"))
        if kind == "ACPToolCallEvent":
            if event.get("status") in {"completed", "failed"}:
                cards.pop(call, None)
            else:
                cards[call] = event
        elif kind == "ActionEvent":
            actions[call] = event
        elif kind in {"ObservationEvent", "AgentErrorEvent", "UserRejectObservation"}:
            actions.pop(call, None)
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
        for event in cards.values()
    ]
    return closing


def speech(event: Mapping[str, Any]) -> tuple[str, str] | None:
    """An event as a line of a transcript: who, and what. None for what is no part of the talk."""
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
