"""What the built-in agent gets beside ACP's own parameters: `_meta.ostler` (docs/built-in-agent.md)."""

from __future__ import annotations

import re
import shutil
import uuid
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import attrs

from supervisor.conversations.agent.homes import OWN_PATHS
from supervisor.conversations.history.prompt import Blocks, in_words
from supervisor.conversations.state.queue import Queued
from supervisor.conversations.state.record import ConversationRecord
from supervisor.events import TextContent
from supervisor.patience import in_time
from supervisor.settings import BuiltInSettings

MEMORY_DIR: Final = "memory"
"""Its memory of one conversation, in the directory of that: it is deleted with it."""

SESSION_DIR: Final = re.compile("[0-9a-f]{32}")
"""The names in it: of a session each, its id."""

PASSED_ON: Final = (
    "agent_definitions",
    "agent_launch_additions",
    "client_tools",
    "hook_config",
    "load_memory",
    "max_budget_per_run",
    "observability_metadata",
    "observability_parent_span_context",
    "observability_span_name",
    "observability_tags",
    "plugins",
    "stuck_detection_thresholds",
    "tool_module_qualnames",
    "user_id",
)
"""What of a start request concerns the built-in agent alone; Ostler keeps it in `extra`."""


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


def parameters(
    record: ConversationRecord,
    agent: BuiltInSettings,
    secrets: Mapping[str, str],
    routing: Mapping[str, Any],
    data: Path,
    *,
    project_hooks: bool = False,
) -> dict[str, Any]:
    """Those of a session. `agent`: with its document open, which holds keys, as do `secrets` and `routing`
    (`Launcher.routing`). `project_hooks`: whether hooks run that the SDK finds in the workspace."""
    return {
        **routing,
        **(agent.document or {}),
        "conversation_id": record.id,
        "persistence_dir": str(memory_directory(data, record.id)),
        "confirmation_policy": record.confirmation_policy,
        "security_analyzer": record.security_analyzer,
        "max_iterations": record.max_iterations,
        "stuck_detection": record.stuck_detection,
        "tags": dict(record.tags),
        "secrets": dict(secrets),
        "project_hooks": project_hooks,
        **({"waiting": list(record.asked)} if record.asked else {}),
        **{name: record.extra[name] for name in PASSED_ON if record.extra.get(name) is not None},
    }


def title_parameters(record: ConversationRecord) -> dict[str, Any]:
    """Those of the request for a title: whose model, and what it is asked."""
    wanted = {"profile": record.extra.get("title_llm_profile"), "prompt": record.extra.get("prompt")}
    return {name: value for name, value in wanted.items() if value}


def built_in_prompt(item: Queued, transcript: str | None, enclosed: Blocks) -> dict[str, Any]:
    """Those of a prompt: the message as its client wrote it, blocks of other kinds in words, and the id of
    its event. Nothing where the agent is to go on. `transcript`: what stands before it, for an agent that
    lost its memory."""
    if item.goes_on:
        return {}
    from supervisor.events.encode import encode  # with all types of events, which the start does without

    message = in_words(item.message, enclosed)
    if transcript is not None:
        message = attrs.evolve(message, content=(TextContent(text=transcript), *message.content))
    return {"message_id": item.event_id, "message": encode(message)}
