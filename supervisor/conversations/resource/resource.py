"""A conversation as clients read it: the REST resource and the state snapshot. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from supervisor.conversations.recording.usage import USAGE_ID, stats
from supervisor.conversations.resource.info import ConversationInfo
from supervisor.conversations.state.record import ANALYZER, ConversationRecord
from supervisor.conversations.state.state import TURN
from supervisor.events import new_event_id, timestamp_now
from supervisor.reading import as_json
from supervisor.settings import (
    REDACTED,
    BuiltInSettings,
    replace_secrets,
    spoken_settings,
)
from supervisor.tight import tight


def agent_object(record: ConversationRecord) -> dict[str, Any]:
    """The agent, as the polymorphic object that clients decode."""
    if isinstance(record.agent, BuiltInSettings):
        servers = record.written_agent["mcp_config"]
        hidden = replace_secrets({"mcp_config": servers}, lambda _: REDACTED)
        return {**record.agent.shown, **hidden, **record.reported.told.get("agent", {})}
    settings = replace_secrets(record.written_agent, lambda _: REDACTED)
    shown = {name: value for name, value in spoken_settings(settings).items() if name.startswith("acp_")}
    return {
        "kind": "ACPAgent",
        "llm": {"model": record.reported.current_model or USAGE_ID, "usage_id": _usage_id(record)},
        "tools": [],
        "mcp_config": settings["mcp_config"],
        "include_default_tools": [],
        **shown,
    }


def _common(record: ConversationRecord, data: Path, secret_value: str | None, hooks: bool) -> dict[str, Any]:
    return {
        "id": record.id,
        "agent": agent_object(record),
        "workspace": {"working_dir": record.start.working_dir, "kind": "LocalWorkspace"},
        "persistence_dir": str(data / record.id),
        "max_iterations": record.start.max_iterations,
        "stuck_detection": record.start.stuck_detection,
        "execution_status": record.now.execution_status,
        "confirmation_policy": record.confirmation_policy,
        "security_analyzer": record.shown_part(ANALYZER),
        "activated_knowledge_skills": record.reported.told.get("activated_knowledge_skills", []),
        "invoked_skills": record.reported.told.get("invoked_skills", []),
        "blocked_actions": record.reported.told.get("blocked_actions", {}),
        "blocked_messages": {},
        "last_user_message_id": record.now.last_user_message_id,
        "leaf_event_id": record.leaf_event_id,
        "stats": stats_of(record),
        "secret_registry": {
            "secret_sources": {
                **{
                    name: {"description": None, "value": secret_value, "kind": "StaticSecret"}
                    for name in record.secrets
                },
                **{
                    name: {
                        "description": each["description"],
                        "url": each["url"],
                        "headers": {},
                        "kind": "LookupSecret",
                    }
                    for name, each in record.lookups.items()
                },
            }
        },
        "tags": record.tags,
        "agent_state": _agent_state(record),
        "hook_config": record.extra.get("hook_config") if hooks else None,
    }


def tells_stats(record: ConversationRecord) -> bool:
    """Whether the agent tells itself what it uses, whenever that changes."""
    return isinstance(record.agent, BuiltInSettings)


def stats_of(record: ConversationRecord) -> dict[str, Any]:
    """What was used: as the agent tells it, else from what is known."""
    told = record.reported.told.get("stats")
    if told is not None or tells_stats(record):
        return told or {"usage_to_metrics": {}}
    return stats(record.reported.usage, _usage_id(record))


def _usage_id(record: ConversationRecord) -> str:
    return str(record.extra.get("usage_id") or USAGE_ID)


def _agent_state(record: ConversationRecord) -> dict[str, Any]:
    """What is known of the agent. Its name is the catalogue's, also where clients know it as a custom one."""
    state = {**record.reported.agent_state, "acp_server": record.agent.acp_server}
    return state if record.now.turn is None else {**state, TURN: record.now.turn}


def conversation_info(record: ConversationRecord, data: Path, *, hooks: bool = True) -> dict[str, Any]:
    """The conversation resource (nulls present).

    `data` has a directory for each conversation's agent. `hooks`: whether any run, so that they are shown.
    """
    fields = {
        **_common(record, data, None, hooks),
        "title": record.title,
        "metrics": None,
        "created_at": record.start.created_at,
        "updated_at": record.updated_at,
        "forked_from_conversation_id": record.start.forked_from_conversation_id,
        "forked_from_event_id": record.start.forked_from_event_id,
        "parent_conversation_id": record.start.parent_conversation_id,
        "sub_conversation_ids": record.children,
        "current_model_id": record.reported.current_model,
        "available_models": record.reported.models or [],
        "supports_runtime_model_switch": record.reported.can_switch_model,
        "launched_agent_profile": record.start.launched_agent_profile,
        "client_tools": record.extra.get("client_tools") or [],
        "tool_module_qualnames": record.extra.get("tool_module_qualnames") or {},
        "event_vocabulary": record.start.vocabulary.value,
        "runtime_info": {"runtime_status": "available", "can_resume": True, "runtime_error": None},
    }
    # Through the class that the interface description is made of: neither more nor less than it says.
    return as_json(ConversationInfo(**fields))


def full_state(record: ConversationRecord, data: Path, *, hooks: bool = True) -> bytes:
    """The snapshot that sockets send first and after every run, as an event that is not journalled."""
    value = {key: item for key, item in _common(record, data, REDACTED, hooks).items() if item is not None}
    value["activated_path_rules"] = []
    value["head_is_empty"] = record.leaf_event_id is None
    encoded = orjson.dumps(
        {
            "id": new_event_id(),
            "timestamp": timestamp_now(),
            "source": "environment",
            "key": "full_state",
            "value": value,
            "kind": "ConversationStateUpdateEvent",
        },
        option=orjson.OPT_NON_STR_KEYS,
    )
    return tight(encoded)
