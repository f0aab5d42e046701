"""The messages to the agent in a conversation's log, and those that still wait."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any, Final

import orjson

from supervisor.conversations.history.prompt import Blocks, own_blobs
from supervisor.conversations.state.branch import Branch
from supervisor.conversations.state.queue import Queued
from supervisor.conversations.state.record import ConversationRecord
from supervisor.events import Message, decode_message
from supervisor.journal.log import Log
from supervisor.journal.rows import Stored

ASKING: Final = ("user", "environment")
"""The sources of messages to the agent. Ostler's messages to the agent, such as a Stop hook's feedback, have
the role `user`; its messages to clients have another."""

PAGE_EVENTS: Final = 500
"""Events read at once when a conversation is loaded: bounded memory, few reads."""


def is_asked(stored: Stored) -> bool:
    """Whether an event is a message to the agent: a user's, or Ostler's in their place."""
    if stored.kind != "MessageEvent" or stored.source not in ASKING:
        return False
    return stored.source == "user" or orjson.loads(stored.body)["llm_message"]["role"] == "user"


def queued(stored: Stored) -> Queued:
    """The message of such an event."""
    message = decode_message(orjson.loads(stored.body)["llm_message"])
    return Queued(stored.seq, stored.id, message, by_user=stored.source == "user")


def resumption(record: ConversationRecord) -> Queued:
    """A queue item that makes the agent continue from its memory, without a message."""
    message = Message(role="user", content=())
    return Queued(record.now.prompted_seq, record.now.last_user_message_id or "", message, False, True)


async def waiting(log: Log, record: ConversationRecord, branch: Branch) -> list[Queued]:
    """The messages of the branch that wait, in order. Raises JournalError."""
    gone = {*record.reported.native_messages, *record.now.withdrawn}
    asked = [
        item
        for source in ASKING
        async for item in after(log, record.now.prompted_seq, kind="MessageEvent", source=source)
        if item.seq in branch and is_asked(item) and item.id not in gone
    ]
    return list(map(queued, sorted(asked, key=lambda item: item.seq)))


async def enclosed(log: Log, item: Queued) -> Blocks:
    """The blocks behind the message's placeholder texts. Raises JournalError."""
    found: dict[str, Any] = {}
    for blob_id in own_blobs(item.message, item.event_id):
        blob = await log.get_blob(blob_id)
        if blob is not None:
            found[blob_id] = orjson.loads(blob.data)
    return found


async def after(log: Log, seq: int, **asked: str) -> AsyncGenerator[Stored, None]:
    """The events after a sequence number, as `Log.read` gives them. Raises JournalError."""
    while page := await log.read(seq, PAGE_EVENTS, **asked):
        for item in page:
            yield item
        seq = page[-1].seq
