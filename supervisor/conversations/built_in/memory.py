"""The directories of the built-in agent's memory, and its copies for forks."""

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
