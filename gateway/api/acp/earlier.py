"""Prompts of a client that comes back: what became of those whose answers it did not get."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import orjson

from gateway.api.acp.replies import stop_reason
from supervisor.conversations.history import inbox
from supervisor.conversations.state.state import ENDED, TURN, WITHDRAWN

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


async def outcome_of(log: Log, message: Stored) -> Mapping[str, Any] | None:
    """The answer to a prompt whose turn has ended; None while it has not. Raises RpcError if it failed,
    JournalError."""
    error: Mapping[str, Any] | None = None
    async for item in inbox.after(log, message.seq):
        if item.kind == "ConversationErrorEvent":
            error = orjson.loads(item.body)
        elif item.kind == "ConversationStateUpdateEvent" and any(key in item.body for key in _KEYS):
            event = orjson.loads(item.body)
            value = event["value"]
            if value.get("message_id") == message.id and event["key"] == WITHDRAWN:
                return {"stopReason": "cancelled"}
            if value.get("message_id") == message.id and value.get("status") == ENDED:
                return stop_reason(value, error)
    return None


_KEYS: Final = tuple(f'"key":"{key}"'.encode() for key in (TURN, WITHDRAWN))
