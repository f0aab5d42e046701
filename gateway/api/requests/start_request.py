"""The body of `POST /api/conversations`: decoded, its profile and its secrets looked up."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

import attrs

from gateway.api.requests.bodies import ConfirmationPolicy, KeptAnalyzer, Secrets, Tags, Title
from gateway.api.requests.messages import SendMessageRequest
from gateway.api.requests.reading import AnyUuid, Request, Whole, attempt_body, refuse
from gateway.api.requests.secret_exposure import opened, opened_agent
from gateway.api.requests.secret_sources import resolve_secrets
from gateway.api.services import Services
from supervisor.conversations.state.start import MAX_ITERATIONS_DEFAULT, StartRequest
from supervisor.credentials.source import LookupSecret
from supervisor.events import Vocabulary
from supervisor.hooks.config import HOOK_CONFIG, check_hook_config
from supervisor.reading.model import Errors, Flaw, Model, Named, described, said
from supervisor.reading.rules import ABOVE_ZERO, NO_NUL, Limit, Size
from supervisor.reading.shapes import as_json
from supervisor.settings.agent import (
    OPENHANDS,
    ACPAgent,
    AgentSettings,
    decode_acp_agent,
    decode_agent_settings,
    read_kind,
    with_own_fields,
)
from supervisor.settings.built_in import KIND, decode_agent, decode_built_in
from supervisor.settings.conversation import confirmation_policy, security_analyzer
from supervisor.settings.document import SettingsDocument
from supervisor.settings.errors import SettingsError

NAMING: Final = ("agent", "agent_settings", "agent_profile_id")
"""The properties that choose the agent; without any of them it is the settings' agent."""

ADDITIONS: Final = "agent_launch_additions"

BUILT_IN: Final = (
    "max_budget_per_run",
    "observability_metadata",
    "observability_parent_span_context",
    "observability_span_name",
    "observability_tags",
    "prompt",
    "stuck_detection_thresholds",
    "title_llm_profile",
    "user_id",
)
"""Properties for the built-in agent alone."""

ECHOED: Final = (
    *BUILT_IN,
    "agent_definitions",
    "client_tools",
    "hook_config",
    "plugins",
    "tool_module_qualnames",
)
"""Properties that the conversation stores unchanged, for the built-in agent, and some for clients to read."""

MAX_ECHOED_BYTES: Final = 256 * 1024
"""Most bytes of JSON of each of these: the definitions of a hundred tools. Each answer about the conversation
includes them."""

MAX_SUFFIX_CHARACTERS: Final = 32768
MAX_PROMPT_CHARACTERS: Final = 2000
MAX_SPAN_CHARACTERS: Final = 128
SPAN_NAME: Final = re.compile(r"[A-Za-z0-9._:/-]+")
"""The wire's."""

MAX_ID_CHARACTERS: Final = 4096
"""Longest external id, of a user or a trace."""

MAX_PATH_CHARACTERS: Final = 4096
"""Longest path of a workspace: what the kernel takes."""

KEPT: Final = described("Kept for clients to read again; of the built-in agent it does what it says")
FOR_BUILT_IN: Final = described("For the built-in agent; without effect for others")
UNUSED: Final = described("Accepted, and without effect here")
"""For properties that clients of the wire send and Ostler does not use; they are not even validated."""

Echoed = Annotated[Any, Size(MAX_ECHOED_BYTES)]

AGENT: Final = "agent"
AGENT_SETTINGS: Final = "agent_settings"
"""The names of the checks of an agent: they need the catalogue, and are made by `_spelled_out`."""

ACP_SETTINGS: Final = "acp_agent_settings"
"""The check's name for settings that must be an ACP agent's."""

SEALED: Final[Mapping[str, tuple[str, ...]]] = {
    AGENT: (),
    AGENT_SETTINGS: (),
    "secrets": ("agent_context", "secrets"),
}
"""Properties that may hold secrets encrypted by this server, and the corresponding path in agent settings."""


@attrs.frozen(kw_only=True)
class Workspace(Request):
    """Where an agent works: a directory of this machine."""

    TAG: ClassVar[str | None] = "kind"
    kind: ClassVar[str] = "LocalWorkspace"

    working_dir: Annotated[str, Limit(min_length=1, max_length=MAX_PATH_CHARACTERS), NO_NUL]


@attrs.frozen(kw_only=True)
class AgentLaunchAdditions(Request):
    """What is added to the agent, however it is named."""

    FORBID: ClassVar[bool] = True

    system_message_suffix_append: Annotated[str, Limit(max_length=MAX_SUFFIX_CHARACTERS)] | None = None
    skills: Annotated[tuple[Mapping[str, Any], ...], Size(MAX_ECHOED_BYTES)] | None = None
    llm_profile_ref: Annotated[str, Limit(min_length=1)] | None = None


@attrs.frozen(kw_only=True)
class StuckDetectionThresholds(Request):
    """How often something has to be repeated until the built-in agent counts as stuck."""

    action_observation: Annotated[int, Limit(ge=1)] = 4
    action_error: Annotated[int, Limit(ge=1)] = 3
    monologue: Annotated[int, Limit(ge=1)] = 3
    alternating_pattern: Annotated[int, Limit(ge=1)] = 6


@attrs.frozen(kw_only=True)
class StartConversationRequest(Request):
    """A new conversation. What is not known is ignored."""

    SCHEMA: ClassVar[Mapping[str, Any]] = {
        "additionalProperties": True,
        "anyOf": [
            {"properties": {"agent_profile_id": {"type": "null"}}},
            {"properties": {"agent": {"type": "null"}, "agent_settings": {"type": "null"}}},
        ],
        "description": "The agent is named by one of agent, agent_settings and agent_profile_id, "
        "or left to the server's settings when none is given.",
    }

    workspace: Workspace
    conversation_id: AnyUuid | None = None
    agent: Annotated[Any, Named(AGENT)] = attrs.field(default=None, repr=False)
    agent_settings: Annotated[Any, Named(AGENT_SETTINGS)] = attrs.field(default=None, repr=False)
    agent_profile_id: AnyUuid | None = None
    event_vocabulary: Literal["core", "extended"] | None = None
    initial_message: SendMessageRequest | None = None
    confirmation_policy: ConfirmationPolicy | None = None
    security_analyzer: KeptAnalyzer | None = said(
        None,
        "Run by the built-in agent. Else kept for clients to read: this server judges by rules of its own",
    )
    max_iterations: Annotated[Whole, Limit(ge=1)] | None = attrs.field(
        default=None,
        metadata=described(
            "The most messages that one run takes up; for the built-in agent, the most steps",
            default=MAX_ITERATIONS_DEFAULT,
        ),
    )
    stuck_detection: bool = said(
        True, "Used by the built-in agent. Else kept for clients to read, and without effect"
    )
    tags: Tags = attrs.field(factory=dict)
    secrets: Secrets = attrs.field(factory=dict, repr=False)
    secrets_encrypted: bool = False
    title: Title | None = None
    autotitle: bool = True
    parent_conversation_id: AnyUuid | None = None
    agent_definitions: Echoed = attrs.field(default=None, metadata=KEPT)
    client_tools: Echoed = attrs.field(default=None, metadata=KEPT)
    hook_config: Annotated[Any, Size(MAX_ECHOED_BYTES), Named(HOOK_CONFIG)] = None
    plugins: Echoed = attrs.field(default=None, metadata=KEPT)
    tool_module_qualnames: Echoed = attrs.field(default=None, metadata=KEPT)
    agent_launch_additions: AgentLaunchAdditions | None = attrs.field(default=None, metadata=FOR_BUILT_IN)
    max_budget_per_run: Annotated[float, ABOVE_ZERO] | None = said(
        None, "Dollars after which a run of the built-in agent fails"
    )
    stuck_detection_thresholds: StuckDetectionThresholds | None = attrs.field(
        default=None, metadata=FOR_BUILT_IN
    )
    title_llm_profile: str | None = said(
        None, "LLM profile that finds a title; else the built-in agent's model"
    )
    prompt: Annotated[str, Limit(max_length=MAX_PROMPT_CHARACTERS)] | None = said(
        None, "What is asked for a title, with {conversation_content}"
    )
    user_id: Annotated[str, Limit(max_length=MAX_ID_CHARACTERS)] | None = attrs.field(
        default=None, metadata=FOR_BUILT_IN
    )
    observability_metadata: Annotated[Mapping[str, Any], Size(MAX_ECHOED_BYTES)] | None = attrs.field(
        default=None, metadata=FOR_BUILT_IN, repr=False
    )
    observability_tags: (
        Annotated[tuple[Annotated[str, Limit(min_length=1)], ...], Size(MAX_ECHOED_BYTES)] | None
    ) = attrs.field(default=None, metadata=FOR_BUILT_IN, repr=False)
    observability_span_name: (
        Annotated[str, Limit(min_length=1, max_length=MAX_SPAN_CHARACTERS, pattern=SPAN_NAME)] | None
    ) = attrs.field(default=None, metadata=FOR_BUILT_IN)
    observability_parent_span_context: Annotated[str, Limit(max_length=MAX_ID_CHARACTERS)] | None = (
        attrs.field(default=None, metadata=FOR_BUILT_IN, repr=False)
    )
    conversation_runtime: Literal["local"] | None = said(
        None, "Where the conversation runs; there is nothing but this machine"
    )
    container: Any = attrs.field(default=None, metadata=UNUSED, repr=False)
    worktree: Any = attrs.field(default=None, metadata=UNUSED, repr=False)
    worktree_options: Any = attrs.field(default=None, metadata=UNUSED, repr=False)

    def judge(self) -> Iterable[Flaw]:
        """Another model only for a profile, which names one."""
        added = self.agent_launch_additions
        if added is not None and added.llm_profile_ref is not None and self.agent_profile_id is None:
            msg = "llm_profile_ref requires agent_profile_id"
            yield (ADDITIONS, "llm_profile_ref"), "value_error", msg


async def read_start_request(body: Any, services: Services, own_origins: Collection[str]) -> StartRequest:
    """The request, with the agent that it names, or none when it leaves the choice to the settings.

    `own_origins` are the addresses under which the client knows this server: secrets looked up there come
    from our own store. Raises InvalidRequest, and UnknownProfile for an unknown `agent_profile_id`.
    """
    if isinstance(body, dict) and body.get("secrets_encrypted") is True:
        body = {key: await _in_the_clear(services, key, value) for key, value in body.items()}
    errors = Errors({HOOK_CONFIG: check_hook_config})
    found: StartConversationRequest | None = attempt_body(StartConversationRequest, body, errors)
    obj = body if isinstance(body, Mapping) else {}
    named = [key for key in NAMING if obj.get(key) is not None]
    if "agent_profile_id" in named and len(named) > 1:
        msg = "Value error, agent_profile_id and another agent cannot both be given"
        errors.add(("body", "agent_profile_id"), "value_error", msg)
    agent = _spelled_out(obj, services, errors)
    # Check the secrets even if other parts are wrong, so that the client sees all errors at once.
    given = obj.get("secrets")
    secrets: dict[str, str | LookupSecret] = {}
    if isinstance(given, Mapping):
        secrets = await resolve_secrets(
            given, services.secrets, own_origins, errors, services.launcher.lookups
        )
    refuse(errors)
    assert found is not None
    settings = await services.settings.get()
    if agent is not None:
        agent = await services.settings.linked_agent(agent)
        # By name, the request's MCP servers go before those of the settings.
        servers = settings.agent_settings.get("mcp_config") or {}
        agent = attrs.evolve(agent, mcp_config={**servers, **agent.mcp_config})
        spelled = obj[AGENT] if obj.get(AGENT) is not None else obj[AGENT_SETTINGS]
        agent = with_own_fields(agent, spelled, _agent_of(settings, services))
    fields = _fields(found, settings, named)
    if (usage_id := _usage_id(obj)) is not None:
        fields["extra"]["usage_id"] = usage_id
    profile_id = found.agent_profile_id
    if profile_id is not None:
        profile = await services.profiles.by_id(profile_id)
        added = found.agent_launch_additions
        llm_profile = None if added is None else added.llm_profile_ref
        agent = await services.profiles.launch_settings(profile_id, llm_profile)
        if profile.mcp_server_refs is not None:
            fields["mcp_only"] = profile.mcp_server_refs
        fields["launched_agent_profile"] = {
            "agent_profile_id": profile.id,
            "revision": profile.revision,
            "secret_refs": None if profile.secret_refs is None else list(profile.secret_refs),
            "llm_profile_ref": llm_profile or getattr(profile, "llm_profile_ref", None),
        }
    return StartRequest(agent=agent, spelled_out=bool(named), secrets=secrets, **fields)


async def _in_the_clear(services: Services, key: str, value: Any) -> Any:
    if key not in SEALED:
        return value
    if SEALED[key]:
        return await opened(services, value, SEALED[key], ("body", key))
    return await opened_agent(services, value, ("body", key))


def _fields(
    found: StartConversationRequest, settings: SettingsDocument, named: Collection[str]
) -> dict[str, Any]:
    """The fields that need no look-up. The conversation settings are defaults only if no agent is named:
    clients that name one have read these settings, and send the values that they want."""
    defaults: Mapping[str, Any] = {} if named else settings.conversation_settings
    message, vocabulary = found.initial_message, found.event_vocabulary
    fields: dict[str, Any] = {
        "conversation_id": found.conversation_id,
        "working_dir": found.workspace.working_dir,
        "event_vocabulary": None if vocabulary is None else Vocabulary(vocabulary),
        "initial_message": None if message is None else message.message,
        "security_analyzer": found.security_analyzer,
        "max_iterations": found.max_iterations or defaults.get("max_iterations", MAX_ITERATIONS_DEFAULT),
        "stuck_detection": found.stuck_detection,
        "tags": dict(found.tags),
        "title": found.title,
        "autotitle": found.autotitle,
        "parent_conversation_id": found.parent_conversation_id,
        "extra": _extra(found, settings),
    }
    if found.confirmation_policy is not None:
        fields["confirmation_policy"] = as_json(found.confirmation_policy)
    elif defaults:
        fields["confirmation_policy"] = confirmation_policy(defaults)
        if found.security_analyzer is None:
            fields["security_analyzer"] = security_analyzer(defaults)
    return fields


def _extra(found: StartConversationRequest, settings: SettingsDocument) -> dict[str, Any]:
    """The properties that the conversation stores unchanged. `load_memory` of the settings' agent applies to
    any agent, as in the wire's own server."""
    extra = {key: _plain(value) for key in ECHOED if (value := getattr(found, key)) is not None}
    if found.agent_launch_additions is not None:
        extra[ADDITIONS] = {**as_json(found.agent_launch_additions), "llm_profile_ref": None}
    if (settings.agent_settings.get("agent_context") or {}).get("load_memory"):
        extra["load_memory"] = True
    return extra


def _plain(value: Any) -> Any:
    if isinstance(value, Model):
        return as_json(value)
    return list(value) if isinstance(value, tuple) else value


def _usage_id(obj: Mapping[str, Any]) -> str | None:
    """The client's `usage_id` for an external agent; the rest of its `llm` is ignored."""
    agent = obj.get(AGENT)
    if not isinstance(agent, Mapping) or agent.get("kind") != ACPAgent.kind:
        return None
    llm = agent.get("llm")
    found = llm.get("usage_id") if isinstance(llm, Mapping) else None
    return found if isinstance(found, str) and 0 < len(found) <= MAX_ID_CHARACTERS else None


def _agent_of(settings: SettingsDocument, services: Services) -> AgentSettings | None:
    """The ACP agent of the settings, if they have one that can be run."""
    try:
        return settings.agent(services.settings.rules.presets)
    except SettingsError:
        return None


def _spelled_out(obj: Mapping[str, Any], services: Services, errors: Errors) -> AgentSettings | None:
    """The agent that the request itself describes; `agent` precedes `agent_settings`."""
    rules = services.settings.rules
    try:
        if obj.get(AGENT) is not None:
            if isinstance(obj[AGENT], Mapping) and obj[AGENT].get("kind") == KIND:
                return decode_agent(obj[AGENT], ("body", AGENT), rules.check_server)
            return decode_acp_agent(
                obj[AGENT], rules.presets, check_server=rules.check_server, bounds=rules.bounds
            )
        if obj.get(AGENT_SETTINGS) is not None:
            settings = obj[AGENT_SETTINGS]
            if isinstance(settings, Mapping) and read_kind(settings, ("body", AGENT_SETTINGS)) == OPENHANDS:
                return decode_built_in(settings, ("body", AGENT_SETTINGS), rules.check_server)
            return decode_agent_settings(
                settings, rules.presets, check_server=rules.check_server, bounds=rules.bounds
            )
    except SettingsError as error:
        errors.note(error.errors)
    return None
