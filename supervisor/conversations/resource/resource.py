"""A conversation as clients read it: the REST resource and the state snapshot, field by field. Encoder and
schema are made of the fields. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import attrs

from supervisor.conversations.recording.usage import USAGE_ID, stats
from supervisor.conversations.state.record import ANALYZER, ConversationRecord
from supervisor.conversations.state.state import TURN
from supervisor.conversations.state.status import ExecutionStatus
from supervisor.events import ConversationStateUpdateEvent, dump_event, new_event_id
from supervisor.reading.model import Like, Model, described
from supervisor.reading.shapes import as_json
from supervisor.settings.agent import BuiltInSettings
from supervisor.settings.built_in import KIND
from supervisor.settings.exposure import REDACTED, replace_secrets
from supervisor.settings.wire_aliases import settings_on_wire

Json = Mapping[str, Any]


@attrs.frozen(kw_only=True)
class LocalWorkspace(Model):
    """Where the agent works: a directory of this machine."""

    NAME: ClassVar[str] = "LocalWorkspace"
    TAG: ClassVar[str | None] = "kind"
    kind: ClassVar[str] = "LocalWorkspace"

    working_dir: str


@attrs.frozen(kw_only=True)
class LaunchedAgentProfile(Model):
    """The agent profile as it was when the conversation was started with it."""

    agent_profile_id: str = attrs.field(metadata=described(format="uuid"))
    revision: int
    secret_refs: tuple[str, ...] | None = attrs.field(
        metadata=described("The secrets that the agent may have; null: all")
    )
    llm_profile_ref: str | None


@attrs.frozen(kw_only=True)
class ACPModelInfo(Model):
    """A model that the agent offers."""

    model_id: str
    name: str | None
    description: str | None = None


@attrs.frozen(kw_only=True)
class ConversationRuntimeInfo(Model):
    """Where the conversation runs: here, always."""

    runtime_status: Literal["available"]
    can_resume: bool
    runtime_error: Json | None


@attrs.frozen(kw_only=True)
class ConversationStats(Model):
    """What was used, by what it was used for."""

    usage_to_metrics: Mapping[str, Json]


@attrs.frozen(kw_only=True)
class SecretRegistry(Model):
    """The secrets of the conversation's own: names and kinds, no values."""

    secret_sources: Mapping[str, Json]


@attrs.frozen(kw_only=True)
class AgentDump(Model):
    """The agent, as the polymorphic object that clients decode. Credentials are redacted."""

    NAME: ClassVar[str] = "ConversationAgent"
    TAG: ClassVar[str | None] = "kind"
    TAG_REQUIRED: ClassVar[bool] = True
    SCHEMA: ClassVar[Mapping[str, Any]] = {"additionalProperties": True}
    kind: ClassVar[str] = "ACPAgent"

    llm: Json
    tools: tuple[Any, ...]
    mcp_config: Json
    include_default_tools: tuple[str, ...]
    acp_server: str
    acp_command: tuple[str, ...]
    acp_args: tuple[str, ...]
    acp_model: str | None
    acp_session_mode: str | None
    acp_prompt_timeout: float
    acp_startup_timeout: float
    acp_isolate_data_dir: bool
    acp_file_secrets: tuple[Json, ...]
    acp_home: Literal["own", "shared"] | None = None
    acp_home_links: tuple[str, ...] = ()
    acp_home_copies: tuple[str, ...] = ()
    acp_env: Mapping[str, str] = attrs.field(factory=dict)
    acp_env_plain: tuple[str, ...] = ()
    acp_client_methods: Literal["none", "fs", "terminal", "both"] | None = None
    acp_after_cut_off: Literal["restore", "new_session"] | None = None


@attrs.frozen(kw_only=True)
class BuiltInAgentDump(Model):
    """The built-in agent, as its library writes it: before it has started, as it was asked for."""

    NAME: ClassVar[str] = "ConversationBuiltInAgent"
    TAG: ClassVar[str | None] = "kind"
    TAG_REQUIRED: ClassVar[bool] = True
    SCHEMA: ClassVar[Mapping[str, Any]] = {"additionalProperties": True}
    kind: ClassVar[str] = KIND

    llm: Json
    tools: tuple[Any, ...]
    mcp_config: Json
    include_default_tools: tuple[str, ...]


@attrs.frozen(kw_only=True)
class ConversationInfo(Model):
    """A conversation. `event_vocabulary` is Ostler's own; all else is the wire's."""

    id: str = attrs.field(metadata=described(format="uuid"))
    agent: Annotated[Json, Like(AgentDump | BuiltInAgentDump)]
    workspace: Annotated[Json, Like(LocalWorkspace)]
    persistence_dir: str = attrs.field(metadata=described("The conversation's own directory on the server"))
    max_iterations: int
    stuck_detection: bool
    execution_status: ExecutionStatus
    confirmation_policy: Json
    security_analyzer: Json | None
    activated_knowledge_skills: tuple[str, ...]
    invoked_skills: tuple[str, ...]
    blocked_actions: Json
    blocked_messages: Json
    last_user_message_id: str | None
    leaf_event_id: str | None
    stats: Annotated[Json, Like(ConversationStats)]
    secret_registry: Annotated[Json, Like(SecretRegistry)]
    tags: Mapping[str, str]
    agent_state: Json
    hook_config: Any
    title: str | None
    metrics: Json | None
    created_at: str = attrs.field(metadata=described(format="date-time"))
    updated_at: str = attrs.field(metadata=described(format="date-time"))
    forked_from_conversation_id: str | None
    forked_from_event_id: str | None
    parent_conversation_id: str | None
    sub_conversation_ids: tuple[str, ...]
    current_model_id: str | None
    available_models: tuple[Annotated[Json, Like(ACPModelInfo)], ...]
    supports_runtime_model_switch: bool
    launched_agent_profile: Annotated[Json, Like(LaunchedAgentProfile)] | None
    client_tools: Any = attrs.field(metadata=described("As the start request gave it"))
    tool_module_qualnames: Any = attrs.field(metadata=described("As the start request gave it"))
    event_vocabulary: Literal["core", "extended"]
    runtime_info: Annotated[Json, Like(ConversationRuntimeInfo)]


def agent_object(record: ConversationRecord) -> dict[str, Any]:
    """The agent, as the polymorphic object that clients decode."""
    if isinstance(record.agent, BuiltInSettings):
        servers = record.written_agent["mcp_config"]
        hidden = replace_secrets({"mcp_config": servers}, lambda _: REDACTED)
        return {**record.agent.shown, **hidden, **record.reported.native_states.get("agent", {})}
    settings = replace_secrets(record.written_agent, lambda _: REDACTED)
    shown = {name: value for name, value in settings_on_wire(settings).items() if name.startswith("acp_")}
    return {
        "kind": "ACPAgent",
        "llm": {"model": record.reported.current_model or USAGE_ID, "usage_id": _usage_id(record)},
        "tools": [],
        "mcp_config": settings["mcp_config"],
        "include_default_tools": [],
        **shown,
    }


def _common(record: ConversationRecord, data: Path, secret_value: str | None, hooks: bool) -> dict[str, Any]:
    static = {"description": None, "value": secret_value, "kind": "StaticSecret"}
    sources = dict.fromkeys(record.secrets, static)
    for name, each in record.lookups.items():
        shown = {"description": each["description"], "url": each["url"], "headers": {}}
        sources[name] = {**shown, "kind": "LookupSecret"}
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
        "activated_knowledge_skills": record.reported.native_states.get("activated_knowledge_skills", []),
        "invoked_skills": record.reported.native_states.get("invoked_skills", []),
        "blocked_actions": record.reported.native_states.get("blocked_actions", {}),
        "blocked_messages": {},
        "last_user_message_id": record.now.last_user_message_id,
        "leaf_event_id": record.leaf_event_id,
        "stats": stats_of(record),
        "secret_registry": {"secret_sources": sources},
        "tags": record.tags,
        "agent_state": _agent_state(record),
        "hook_config": record.extra.get("hook_config") if hooks else None,
    }


def tells_stats(record: ConversationRecord) -> bool:
    """Whether the agent tells itself what it uses, whenever that changes."""
    return isinstance(record.agent, BuiltInSettings)


def stats_of(record: ConversationRecord) -> dict[str, Any]:
    """What was used: as the agent tells it, else from what is known."""
    reported = record.reported.native_states.get("stats")
    if reported is not None or tells_stats(record):
        return reported or {"usage_to_metrics": {}}
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
    return dump_event(ConversationStateUpdateEvent(id=new_event_id(), key="full_state", value=value))
