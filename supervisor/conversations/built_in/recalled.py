"""What Ostler's log has of a built-in agent that takes up its memory again: so that the agent tells what is
missing there, and takes over what Ostler wrote in its absence."""

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
"""Kinds of events, and their source, that only the agent tells."""

RECALLED: Final = ("last_event_id", "closed")
"""The parameters of a session that come from here."""

CLOSED_MAX: Final = 100
"""Results that Ostler wrote: more than any model calls tools at a time."""

PAGE_EVENTS: Final = 500
"""Events read at once."""

STATE: Final = "ConversationStateUpdateEvent"
"""Ostler's alone: no agent tells one as an event."""


def is_agents(kind: object, source: object) -> bool:
    """Whether an event of this kind and source is one that only the agent tells."""
    return (kind, None) in AGENTS or (kind, source) in AGENTS


@attrs.frozen
class Recalled:
    """`own`: parameters of the session (`last_event_id`, `closed`). `known`: ids that are in the log."""

    own: dict[str, Any]
    known: frozenset[str]


async def recalled(log: Log, record: ConversationRecord) -> Recalled:
    """Look it up. Raises JournalError."""
    await log.flushed_unless_troubled()
    newest: list[tuple[int, str]] = []
    for kind, source in AGENTS:
        found = await log.search(kind=kind, source=source, order="desc", limit=1)
        newest += [(item.seq, item.id) for item in found.items]
    seq, last = max(newest, default=(-1, None))
    known = set() if last is None else {last}
    # All of them: one that the agent tells again would otherwise be in the log twice.
    while page := await log.read(seq, PAGE_EVENTS):
        known.update(item.id for item in page if item.kind != STATE)
        seq = page[-1].seq
    if last is None:
        return Recalled({}, frozenset(known))
    # It may have these behind that event, although they came before that was told.
    known.update(record.joined)
    messages = await log.read(record.prompted_seq, PAGE_EVENTS, kind="MessageEvent", source="user")
    known.update(item.id for item in messages)
    errors = await log.read(record.prompted_seq, CLOSED_MAX, kind="AgentErrorEvent")
    closed = [orjson.loads(item.body) for item in errors]
    known.update(item.id for item in errors)
    return Recalled({"last_event_id": last, **({"closed": closed} if closed else {})}, frozenset(known))
