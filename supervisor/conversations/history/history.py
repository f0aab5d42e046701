"""Reads stored events back: the messages, the open tool calls, the last answer, a transcript.

Stored events are dicts. A transcript is for an agent that lost its memory.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Mapping
from typing import Any, Final

import orjson

from supervisor.conversations.history import prompt
from supervisor.conversations.history.prompt import MCP_COMMAND
from supervisor.conversations.recording.answers import BY_OSTLER, NO_ANSWER
from supervisor.conversations.recording.tool_calls.blocks import text_block
from supervisor.conversations.recording.tool_calls.events import interrupted_action, interruption
from supervisor.events import ACPToolCallEvent, Event, new_event_id
from supervisor.journal.log import Log

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
                closing.append(interrupted_action(name, call_id, begun=begun))
            if call_id in self._calls:
                closing.append(_interrupted(call_id, self._calls[call_id], begun=begun))
        return closing


def _interrupted(call_id: str, call: Mapping[str, Any], *, begun: bool) -> ACPToolCallEvent:
    last = text_block(interruption(begun=begun))
    return ACPToolCallEvent(
        id=new_event_id(),
        tool_call_id=call_id,
        status="failed",
        is_error=True,
        **{**call, "content": (*(call["content"] or ()), last)},
    )


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


PAGE_EVENTS: Final = 20
"""Events that are read at once."""


async def final_response(log: Log, branch: Container[int] | None = None) -> str:
    """Return the text of the newest final answer; empty if there is none.

    `branch`: the sequence numbers that count; None: all.

    A final answer is a FinishAction, or a message of the agent, whichever is newer.
    """
    finish = await _newest(log, branch, "ActionEvent", "FinishAction")
    message = await _newest(log, branch, "MessageEvent")
    found = [item for item in (finish, message) if item is not None]
    return max(found)[1] if found else ""


async def _newest(
    log: Log, branch: Container[int] | None, kind: str, body: str | None = None
) -> tuple[int, str] | None:
    """Sequence number and text of the newest agent event of `kind` that has a text."""
    page: str | None = None
    while True:
        found = await log.search(
            kind=kind, source="agent", body=body, order="desc", page=page, limit=PAGE_EVENTS
        )
        for stored in found.items:
            if branch is not None and stored.seq not in branch:
                continue
            text = _answer(orjson.loads(stored.body))
            if text is not None:
                return stored.seq, text
        page = found.next_page_id
        if page is None:
            return None


def _answer(event: Mapping[str, Any]) -> str | None:
    if event["kind"] == "ActionEvent":
        action = event.get("action") or {}
        return str(action.get("message", "")) if action.get("kind") == "FinishAction" else None
    parts = [part["text"] for part in event["llm_message"].get("content", ()) if part.get("type") == "text"]
    return "\n".join(parts) if parts else None


EVENTS_MAX: Final = 400
"""Newest events that a transcript is made of: more than its byte limit lets through."""

READ_MAX: Final = 4_000
"""The most events read in all, including those that are not on the active branch."""


async def transcript(log: Log, branch: Container[int], waiting: Container[str]) -> str:
    """Return the newest part of the conversation, bounded, without the messages of the ids in `waiting`.

    `branch`: the sequence numbers that are part of it.

    Raises JournalError. Cancellation changes nothing.
    """
    lines: list[tuple[str, str]] = []
    read = own = size = 0
    page_id: str | None = None
    # Newest first, and no more than the transcript needs: a page may have a hundred large events.
    while read < READ_MAX and own < EVENTS_MAX and size <= prompt.TRANSCRIPT_BYTES:
        page = await log.search(order="desc", limit=PAGE_EVENTS, page=page_id)
        for item in page.items:
            if item.seq not in branch:
                continue
            own += 1
            line = None if item.id in waiting else speech(orjson.loads(item.body))
            if line is not None:
                lines.append(line)
                size += len(line[1])
        read += len(page.items)
        page_id = page.next_page_id
        if page_id is None:
            break
    return prompt.transcript(reversed(lines))
