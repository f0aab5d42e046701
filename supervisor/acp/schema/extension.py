"""Ostler's extension notifications, in which the built-in agent reports events in the form of the HTTP API.

They are accepted only from agents whose descriptor allows them (docs/built-in-agent.md). They are validated
strictly: a mismatch is a bug in Ostler's code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, cast, get_args

import attrs

from supervisor.acp.schema.bounds import EXACT_CHARS
from supervisor.acp.schema.read import Json, member, text

PREFIX: Final = "_ostler/"

EVENT: Final = "_ostler/event"
STREAM: Final = "_ostler/stream"
STATE: Final = "_ostler/state"
RECEIVED: Final = "_ostler/received"

CALL: Final = ("tool_call_id", "tool_name")

Kind = Literal["text", "reasoning", "arguments"]


@attrs.frozen
class ReportedEvent:
    """An event for the log, as unvalidated JSON."""

    session_id: str
    event: Json = attrs.field(repr=False)


@attrs.frozen
class ReportedState:
    """One property of the conversation's state."""

    session_id: str
    key: str
    value: Any = attrs.field(repr=False)


@attrs.frozen
class ItemStarted:
    """The following deltas stream the event `item_id`."""

    session_id: str
    item_id: str
    attempt: int = 0


@attrs.frozen
class ItemDelta:
    """A piece of the streamed event; `order` counts from 0. For arguments, it names the tool call, if
    known."""

    session_id: str
    item_id: str
    order: int
    kind: Kind
    content: str
    attempt: int = 0
    tool_call_id: str | None = None
    tool_name: str | None = None


@attrs.frozen
class ItemAborted:
    """The streamed item will not become an event."""

    session_id: str
    item_id: str
    reason: str
    attempt: int = 0


@attrs.frozen
class Received:
    """The agent has stored a user's message in its memory, and reads it in the current turn.
    `extended_content` are texts that it added to the message, for example those of `activated_skills`."""

    session_id: str
    message_id: str
    activated_skills: tuple[str, ...] = ()
    extended_content: tuple[str, ...] = attrs.field(default=(), repr=False)


Reported = ReportedEvent | ReportedState | ItemStarted | ItemDelta | ItemAborted | Received


def parse_reported(method: str, params: Any) -> Reported:
    """Parse an extension notification. Raises ValueError, which names what is wrong."""
    params = params if isinstance(params, Mapping) else {}
    session_id = _text(params, "sessionId")
    if method == EVENT:
        event = params.get("event")
        if not isinstance(event, Mapping):
            raise ValueError(f"{method}: event is not an object")
        return ReportedEvent(session_id, event)
    if method == STATE:
        if "value" not in params:
            raise ValueError(f"{method}: value is missing")
        return ReportedState(session_id, _text(params, "key"), params["value"])
    if method == STREAM:
        return _streamed(session_id, params)
    if method == RECEIVED:
        return Received(session_id, _text(params, "message_id"), _skills(params), _contents(params))
    raise ValueError(f"{method} is not known")


def _streamed(session_id: str, params: Mapping[str, Any]) -> Reported:
    item_id = _text(params, "item_id")
    attempt = 0 if "attempt" not in params else _number(params, "attempt")
    match params.get("type"):
        case "item_started":
            return ItemStarted(session_id, item_id, attempt)
        case "delta":
            order, kind, content = _number(params, "order"), params.get("kind"), params.get("content")
            if kind not in get_args(Kind) or not isinstance(content, str):
                raise ValueError(f"{STREAM}: a delta has order, kind and content")
            call = [None if params.get(name) is None else _text(params, name) for name in CALL]
            return ItemDelta(session_id, item_id, order, cast(Kind, kind), content, attempt, *call)
        case "item_aborted":
            return ItemAborted(session_id, item_id, _text(params, "reason"), attempt)
        case other:
            raise ValueError(f"{STREAM}: type {other!r:.80} is not known")


def _skills(params: Mapping[str, Any]) -> tuple[str, ...]:
    given = params.get("activated_skills", [])
    if not isinstance(given, list) or not all(isinstance(each, str) for each in given):
        raise ValueError(f"{RECEIVED}: activated_skills is not a list of texts")
    return tuple(given)


def _contents(params: Mapping[str, Any]) -> tuple[str, ...]:
    given = params.get("extended_content", [])
    texts = [
        each.get("text") if isinstance(each, Mapping) else None
        for each in (given if isinstance(given, list) else [None])
    ]
    if not all(isinstance(each, str) for each in texts):
        raise ValueError(f"{RECEIVED}: extended_content is not a list of contents with a text")
    return tuple(map(str, texts))


def _number(params: Mapping[str, Any], name: str) -> int:
    value = params.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} is not a whole number from 0 on")
    return value


def _text(params: Mapping[str, Any], name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= EXACT_CHARS:
        raise ValueError(f"{name} is not a text of 1 to {EXACT_CHARS} characters")
    return value


def reported_status(answer: Json) -> str | None:
    """The execution status in the answer to a prompt."""
    return text(_meta(answer), "status")


def reported_action(tool_call: Json) -> str | None:
    """The id of the event that a permission request is about; None if it names none."""
    return text(_meta(tool_call), "eventId")


def reported_child(tool_call: Json) -> str | None:
    """The sub-agent that wants to act, if the named action waits for a sub-agent."""
    return text(_meta(tool_call), "subAgent")


def reported_risk(tool_call: Json) -> str | None:
    """The security risk of that sub-agent's action."""
    return text(_meta(tool_call), "securityRisk")


def _meta(params: Json) -> Json:
    return member(member(params, "_meta"), "ostler")
