"""Synchronises a restored built-in agent with Ostler's log: the agent reports the events that the log lacks,
and adopts what Ostler wrote in its absence."""

from __future__ import annotations

from typing import Any, Final

import attrs
import orjson

from supervisor.conversations.state.record import ConversationRecord
from supervisor.journal import Log

AGENTS: Final = (
    ("ActionEvent", None),
    ("CondensationRequest", None),
    ("Condensation", None),
    ("MessageEvent", "agent"),
    ("ObservationEvent", None),
    ("SystemPromptEvent", None),
    ("UserRejectObservation", None),
)
"""Kinds of events, with their source (None: any), that only the agent reports."""

RECALLED: Final = ("last_event_id", "closed")
"""The session parameters that this module computes."""

CLOSED_MAX: Final = 100
"""The most results written by Ostler that are passed on: more than any model's parallel tool calls."""

PAGE_EVENTS: Final = 500
"""Events read at once."""

STATE: Final = "ConversationStateUpdateEvent"
"""A kind that only Ostler writes: no agent reports it as an event."""


def is_agents(kind: object, source: object) -> bool:
    """Whether only the agent reports events of this kind and source."""
    return (kind, None) in AGENTS or (kind, source) in AGENTS


@attrs.frozen
class Recalled:
    """`own`: parameters of the session (`last_event_id`, `closed`). `known`: ids that are in the log."""

    own: dict[str, Any]
    known: frozenset[str]


async def recalled(log: Log, record: ConversationRecord) -> Recalled:
    """Read the log. Raises JournalError."""
    await log.flushed_unless_troubled()
    newest: list[tuple[int, str]] = []
    for kind, source in AGENTS:
        found = await log.search(kind=kind, source=source, order="desc", limit=1)
        newest += [(item.seq, item.id) for item in found.items]
    seq, last = max(newest, default=(-1, None))
    known = set() if last is None else {last}
    # All ids after it: an event that the agent reports again would otherwise be in the log twice.
    while page := await log.read(seq, PAGE_EVENTS):
        known.update(item.id for item in page if item.kind != STATE)
        seq = page[-1].seq
    if last is None:
        return Recalled({}, frozenset(known))
    # In the agent's memory these may come after that event, although they precede it in the log.
    known.update(record.now.joined)
    messages = await log.read(record.now.prompted_seq, PAGE_EVENTS, kind="MessageEvent", source="user")
    known.update(item.id for item in messages)
    errors = await log.read(record.now.prompted_seq, CLOSED_MAX, kind="AgentErrorEvent")
    closed = [orjson.loads(item.body) for item in errors]
    known.update(item.id for item in errors)
    return Recalled({"last_event_id": last, **({"closed": closed} if closed else {})}, frozenset(known))
