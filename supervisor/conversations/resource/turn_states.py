"""The states that mark turns: when each began and ended, and which message it was about.

Each begun turn gets exactly one end in the log: `ConversationRecord.turn` is the turn without an end yet, and
changes in the same transactions as these states.
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
"""Stop reason of a turn that was cut off by a crash of the server."""


def begin(record: ConversationRecord, message_id: str) -> ConversationStateUpdateEvent:
    """Note in the record that the turn of this message begins, and return the state for it."""
    record.now.turns += 1
    record.now.turn = {"number": record.now.turns, "message_id": message_id}
    return _state({"status": RUNNING, **record.now.turn})


def joined(record: ConversationRecord, message_id: str) -> ConversationStateUpdateEvent:
    """The state for a message that joined the current turn."""
    return _state({"status": JOINED, **(record.now.turn or {}), "joined": message_id})


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
    """The state for the end of a turn (its `number` and `message_id`).

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
    """After a crash of the server: remove the turn without an end from the record, and return its end."""
    turn, record.now.turn = record.now.turn, None
    return [] if turn is None else [end(turn, INTERRUPTED)]


def _state(value: dict[str, Any]) -> ConversationStateUpdateEvent:
    return ConversationStateUpdateEvent(id=new_event_id(), key=TURN, value=value)
