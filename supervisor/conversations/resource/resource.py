"""A conversation as clients read it: the REST resource and the state snapshot, field by field. Encoder and
schema are made of the fields. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Protocol

import attrs

from supervisor.conversations.state.record import ANALYZER, ConversationRecord
from supervisor.conversations.state.state import TURN
from supervisor.conversations.state.status import ExecutionStatus
from supervisor.events import ConversationStateUpdateEvent, dump_event, new_event_id
from supervisor.reading.model import Like, Model, described
from supervisor.reading.shapes import as_json
from supervisor.settings.built_in import KIND
from supervisor.settings.exposure import REDACTED

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
    acp_walls: Literal["off", "guard", "strict"] | None = None
    acp_walls_read: tuple[str, ...] = ()
    acp_walls_write: tuple[str, ...] = ()
    acp_url: str | None = None
    acp_headers: Mapping[str, str] = attrs.field(factory=dict)
    acp_limits: Mapping[str, Any] | None = None


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


class Described(Protocol):
    """What the kind of the agent says of it (`kind.AgentKind`)."""

    sends_usage: ClassVar[bool]

    @property
    def record(self) -> ConversationRecord:
        """The conversation's record."""

    def shown(self) -> dict[str, Any]:
        """The agent, as the polymorphic object that clients decode."""

    def usage(self) -> dict[str, Any]:
        """What it used."""


def _common(agent: Described, data: Path, secret_value: str | None, hooks: bool) -> dict[str, Any]:
    record = agent.record
    static = {"description": None, "value": secret_value, "kind": "StaticSecret"}
    sources = dict.fromkeys(record.secrets, static)
    for name, each in record.lookups.items():
        shown = {"description": each["description"], "url": each["url"], "headers": {}}
        sources[name] = {**shown, "kind": "LookupSecret"}
    return {
        "id": record.id,
        "agent": agent.shown(),
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
        "stats": agent.usage(),
        "secret_registry": {"secret_sources": sources},
        "tags": record.tags,
        "agent_state": _agent_state(record),
        "hook_config": record.extra.get("hook_config") if hooks else None,
    }


def _agent_state(record: ConversationRecord) -> dict[str, Any]:
    """What is known of the agent. Its name is the catalogue's, also where clients know it as a custom one."""
    state = {**record.reported.agent_state, "acp_server": record.agent.acp_server}
    return state if record.now.turn is None else {**state, TURN: record.now.turn}


def conversation_info(agent: Described, data: Path, *, hooks: bool = True) -> dict[str, Any]:
    """The conversation resource (nulls present).

    `data` has a directory for each conversation's agent. `hooks`: whether any run, so that they are shown.
    """
    record = agent.record
    fields = {
        **_common(agent, data, None, hooks),
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


def full_state(agent: Described, data: Path, *, hooks: bool = True) -> bytes:
    """The snapshot that sockets send first and after every run, as an event that is not journalled."""
    value = {key: item for key, item in _common(agent, data, REDACTED, hooks).items() if item is not None}
    value["activated_path_rules"] = []
    value["head_is_empty"] = agent.record.leaf_event_id is None
    return dump_event(ConversationStateUpdateEvent(id=new_event_id(), key="full_state", value=value))
