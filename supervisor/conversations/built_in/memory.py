"""Where the built-in agent keeps its memory, and the copies of it for forks."""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Collection
from functools import partial
from pathlib import Path
from typing import Final

from supervisor.conversations.agent.homes import OWN_PATHS
from supervisor.conversations.state.record import ConversationRecord
from supervisor.patience import in_time

MEMORY_DIR: Final = "memory"
"""Its memory of one conversation, in the directory of that: it is deleted with it."""

SESSION_DIR: Final = re.compile("[0-9a-f]{32}")
"""The names in it: of a session each, its id."""


def memory_directory(data: Path, conversation_id: str) -> Path:
    """Where it keeps its memory of a conversation."""
    return data / conversation_id / MEMORY_DIR


async def move_memory(data: Path, source_id: str, conversation_id: str) -> None:
    """Put a copy of a conversation's memory, made beside it, to where that of another one is. Raises OSError.

    Cancellation waits for the move.
    """
    name = uuid.UUID(conversation_id).hex

    def move() -> None:
        place = memory_directory(data, conversation_id)
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        if (place / name).exists():
            shutil.rmtree(place / name)  # of a fork that was given up
        (memory_directory(data, source_id) / name).rename(place / name)

    await in_time(move, "to move the agent's memory", limiter=OWN_PATHS.of(source_id), shield=True)


async def drop_copy(data: Path, source_id: str, conversation_id: str) -> None:
    """Remove what was copied beside a conversation's memory for a fork that will not have it.

    Raises OSError. Cancellation waits for it.
    """
    copy = memory_directory(data, source_id) / uuid.UUID(conversation_id).hex
    remove = partial(shutil.rmtree, copy, ignore_errors=True)
    limiter = OWN_PATHS.of(source_id)
    await in_time(remove, "to remove a copy of the agent's memory", limiter=limiter, shield=True)


async def drop_copies(data: Path, record: ConversationRecord, forks: Collection[str] = ()) -> None:
    """Remove every such copy, while no process of the agent can make one: an agent that did not answer in
    time, or whose server died, may have made it afterwards. Those for `forks` are still to be moved.
    Raises OSError."""
    kept = (record.id, record.session_id, *forks)
    own = {each.replace("-", "") for each in kept if each is not None}

    def remove() -> None:
        place = memory_directory(data, record.id)
        for entry in place.iterdir() if place.is_dir() else ():
            if SESSION_DIR.fullmatch(entry.name) and entry.name not in own:
                shutil.rmtree(entry, ignore_errors=True)

    await in_time(remove, "to look after the agent's memory", limiter=OWN_PATHS.of(record.id))
