"""The memory of the built-in agent: its directories, copies for forks, and how it and the log agree.

A restored agent reports the events that the log lacks, and adopts what Ostler wrote in its absence.
"""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs
import orjson

from supervisor.conversations.agent.launch.homes import OWN_PATHS
from supervisor.conversations.state.record import ConversationRecord
from supervisor.journal.log import Log
from supervisor.patience import in_time

MEMORY_DIR: Final = "memory"
"""Subdirectory of the conversation's directory with the agent's memory; deleted with the conversation."""

SESSION_DIR: Final = re.compile("[0-9a-f]{32}")
"""The names in it: session ids."""


def memory_directory(data: Path, conversation_id: str) -> Path:
    """The directory of the agent's memory of a conversation."""
    return data / conversation_id / MEMORY_DIR


async def move_memory(data: Path, source_id: str, conversation_id: str) -> None:
    """Move a copy of the source's memory, made next to it, to the directory of another conversation. Raises
    OSError.

    Cancellation waits for the move.
    """
    name = uuid.UUID(conversation_id).hex

    def move() -> None:
        place = memory_directory(data, conversation_id)
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        if (place / name).exists():
            shutil.rmtree(place / name)  # left by an abandoned fork
        (memory_directory(data, source_id) / name).rename(place / name)

    await in_time(move, "to move the agent's memory", limiter=OWN_PATHS.of(source_id), shield=True)


async def drop_copy(data: Path, source_id: str, conversation_id: str) -> None:
    """Remove the copy next to a conversation's memory that was made for an abandoned fork.

    Raises OSError. Cancellation waits for it.
    """
    copy = memory_directory(data, source_id) / uuid.UUID(conversation_id).hex
    remove = partial(shutil.rmtree, copy, ignore_errors=True)
    limiter = OWN_PATHS.of(source_id)
    await in_time(remove, "to remove a copy of the agent's memory", limiter=limiter, shield=True)


async def drop_copies(data: Path, record: ConversationRecord, forks: Collection[str] = ()) -> None:
    """Remove every such copy except those for `forks`, which are still to be moved. Call it while no process
    of the agent runs: an agent that answered too late, or whose server died, may have left copies. Raises
    OSError."""
    kept = (record.id, record.now.session_id, *forks)
    own = {each.replace("-", "") for each in kept if each is not None}

    def remove() -> None:
        place = memory_directory(data, record.id)
        for entry in place.iterdir() if place.is_dir() else ():
            if SESSION_DIR.fullmatch(entry.name) and entry.name not in own:
                shutil.rmtree(entry, ignore_errors=True)

    await in_time(remove, "to look after the agent's memory", limiter=OWN_PATHS.of(record.id))


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
