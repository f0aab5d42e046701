"""The conversation resource as clients read it, field by field: encoder and schema are made of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

import attrs

from supervisor.conversations.state.status import ExecutionStatus
from supervisor.reading import Like, Model, described
from supervisor.settings.built_in import KIND

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
