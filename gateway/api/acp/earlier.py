"""Prompts of a client that comes back: what became of those whose answers it did not get."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final

import attrs
import orjson

from gateway.api.acp.replies import stop_reason
from supervisor.acp import RpcError
from supervisor.conversations.history import inbox
from supervisor.conversations.state.state import ENDED, JOINED, TURN, WITHDRAWN

if TYPE_CHECKING:
    from supervisor.journal.log import Log
    from supervisor.journal.rows import Stored


async def message_of(log: Log, tag: str, searched: int) -> Stored | None:
    """The message that this sender sent, among the newest of people. Raises JournalError."""
    page = await log.search(kind="MessageEvent", source="user", order="desc", limit=searched)
    wanted = orjson.dumps(tag)
    for item in page.items:
        if wanted in item.body and orjson.loads(item.body).get("sender") == tag:
            return item
    return None


@attrs.frozen
class Outcome:
    """How the turn of a message ended: with the event `seq`, and either a result or an error."""

    seq: int
    result: Mapping[str, Any] | None = None
    error: RpcError | None = None


async def outcome_of(log: Log, message: Stored, join: Callable[[str], None]) -> Outcome | None:
    """The answer to a prompt whose turn has ended; None while it has not. `join` gets the message of the turn
    that this one joined, if it did. Raises JournalError."""
    error: Mapping[str, Any] | None = None
    turn = message.id
    async with aclosing(inbox.after(log, message.seq)) as items:
        async for item in items:
            if item.kind == "ConversationErrorEvent":
                error = orjson.loads(item.body)
            elif item.kind == "ConversationStateUpdateEvent" and any(key in item.body for key in _KEYS):
                event = orjson.loads(item.body)
                value = event["value"]
                if event["key"] == WITHDRAWN:
                    if value.get("message_id") == message.id:
                        return Outcome(item.seq, {"stopReason": "cancelled"})
                elif value.get("status") == JOINED and value["joined"] == message.id:
                    turn = str(value["message_id"])
                    join(turn)
                elif value.get("status") == ENDED and value.get("message_id") == turn:
                    return Outcome(item.seq, *stop_reason(value, error))
    return None


_KEYS: Final = tuple(f'"key":"{key}"'.encode() for key in (TURN, WITHDRAWN))
