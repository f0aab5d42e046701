"""The states that tell turns apart: when each began and ended, and which message it was about.

A turn that began has an end in the log, once: `ConversationRecord.turn` has the one that lacks it, and
changes in the same transactions in which these states are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from supervisor.conversations.state.record import ConversationRecord
from supervisor.events import ConversationStateUpdateEvent, new_event_id

TURN: Final = "turn"
"""The key of these states."""

RUNNING: Final = "running"
JOINED: Final = "joined"
ENDED: Final = "ended"

BLOCKED: Final = "blocked"
"""Stop reason of a message that a hook blocked: the agent never got it."""

INTERRUPTED: Final = "interrupted"
"""Stop reason of a turn whose end nobody saw, since the server died."""


def begin(record: ConversationRecord, message_id: str) -> ConversationStateUpdateEvent:
    """Note in the record that the turn of this message begins, and return the state that tells so."""
    record.turns += 1
    record.turn = {"number": record.turns, "message_id": message_id}
    return _state({"status": RUNNING, **record.turn})


def joined(record: ConversationRecord, message_id: str) -> ConversationStateUpdateEvent:
    """The state that tells that the turn under way is about this message, too."""
    return _state({"status": JOINED, **(record.turn or {}), "joined": message_id})


def end(
    turn: Mapping[str, Any],
    stop_reason: str,
    *,
    error: str | None = None,
    answer_id: str | None = None,
    answered: bool = False,
    usage: Mapping[str, Any] | None = None,
    seconds: float | None = None,
) -> ConversationStateUpdateEvent:
    """The state that tells the end of a turn (its `number` and `message_id`).

    `stop_reason`: ACP's, as the agent said it, or one of `failed` (with the code of the `error`), BLOCKED
    and INTERRUPTED. `answer_id`: the event that has the answer. `answered`: whether the agent said a word.
    `usage`: what the agent reported for it (see `usage.of_turn`).
    """
    return _state(
        {
            "status": ENDED,
            "number": turn.get("number"),
            "message_id": turn.get("message_id"),
            "stop_reason": stop_reason,
            "error": error,
            "answer_id": answer_id,
            "answered": answered,
            "usage": None if usage is None else dict(usage),
            "seconds": None if seconds is None else round(seconds, 3),
        }
    )


def cut_off(record: ConversationRecord) -> list[ConversationStateUpdateEvent]:
    """Of a record that a dead server left: the end of the turn that lacks it, taken out of the record."""
    turn, record.turn = record.turn, None
    return [] if turn is None else [end(turn, INTERRUPTED)]


def _state(value: dict[str, Any]) -> ConversationStateUpdateEvent:
    return ConversationStateUpdateEvent(id=new_event_id(), key=TURN, value=value)
