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

CLOSED_MAX: Final = 100
"""Results that Ostler wrote: more than any model calls tools at a time."""

LATER_MAX: Final = 500
"""Events after the agent's last one: messages and states."""


@attrs.frozen
class Recalled:
    """`own`: parameters of the session (`last_event_id`, `closed`). `known`: ids that are in the log."""

    own: dict[str, Any]
    known: frozenset[str]


async def recalled(log: Log, record: ConversationRecord) -> Recalled:
    """Look it up. Raises JournalError."""
    await log.flushed_unless_troubled()
    newest = []
    for kind, source in AGENTS:
        page = await log.search(kind=kind, source=source, order="desc", limit=1)
        newest += [(item.seq, item.id) for item in page.items]
    if not newest:
        return Recalled({}, frozenset())
    seq, last = max(newest)
    later = await log.read(seq, LATER_MAX)
    errors = await log.read(record.prompted_seq, CLOSED_MAX, kind="AgentErrorEvent")
    closed = [orjson.loads(item.body) for item in errors]
    known = frozenset((last, *(item.id for item in (*later, *errors))))
    return Recalled({"last_event_id": last, **({"closed": closed} if closed else {})}, known)
