"""What a settings page shows: sections and fields, with labels and defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import attrs

from supervisor.reading.shapes import (
    Choice,
    Elsewhere,
    ListOf,
    MapOf,
    Narrowed,
    Property,
    Record,
    Scalar,
    Shape,
    as_json,
    properties_of,
)
from supervisor.settings.agent import ACP, CUSTOM, DEFAULT_SERVER, OPENHANDS, AgentSettings, Presets
from supervisor.settings.conversation import DEFAULTS, ConversationSettings
from supervisor.settings.exposure import CREDENTIALS
from supervisor.settings.llm import LLM
from supervisor.settings.names import Setting
from supervisor.settings.openhands import (
    AgentContext,
    OpenHandsAgentSettings,
    SummarizingCondenser,
    Verification,
    defaults,
)
from supervisor.settings.wire_aliases import WIRE_ALIASES

CRITICAL, MAJOR, MINOR = "critical", "major", "minor"

SECRETS: Final = frozenset({*CREDENTIALS, "critic_api_key"})
"""Fields whose values a page hides."""


@attrs.frozen
class Field:
    """A field of a page; all else is in the description of the settings. `depends_on` names fields of its
    section that have to be on, or to have a value (`name=value`)."""

    name: str
    label: str
    prominence: str = MINOR
    depends_on: tuple[str, ...] = ()


@attrs.frozen
class Section:
    """A section of a page. `variant` is the kind of agent that it is for; None: every one. The keys of the
    fields of a `nested` section begin with its own."""

    key: str
    label: str
    variant: str | None
    model: type[Setting]
    fields: tuple[Field, ...]
    nested: bool = False


_ACP_SECTION: Final = Section(
    ACP,
    "ACP (Agent Client Protocol)",
    ACP,
    AgentSettings,
    (
        Field("acp_server", "ACP server", CRITICAL),
        Field("acp_command", "ACP command (custom override)"),
        Field("acp_args", "ACP extra args"),
        Field("acp_model", "ACP model", CRITICAL),
        Field("acp_session_mode", "ACP session mode"),
        Field("acp_prompt_timeout", "ACP prompt inactivity timeout (seconds)"),
        Field("acp_startup_timeout", "ACP startup timeout (seconds)"),
    ),
)

#: Defaults of an ACP agent, with the provider that a new server starts with.
_ACP_DEFAULTS: Final[Mapping[str, Any]] = {**as_json(AgentSettings()), "acp_server": DEFAULT_SERVER}

_GENERAL: Final = Section(
    "general",
    "General",
    None,
    OpenHandsAgentSettings,
    (
        Field("agent", "Agent", MAJOR),
        Field("tools", "Tools", MAJOR),
        Field("enable_classify_and_switch_llm_tool", "Enable intelligent model routing tool"),
        Field("active_meta_profile", "Active meta-profile"),
        Field("tool_concurrency_limit", "Parallel tool calls", MAJOR),
        Field("mcp_config", "MCP servers"),
    ),
)

_LLM_SAID: Final[Mapping[str, Field]] = {
    each.name: each
    for each in (
        Field("model", "Model", CRITICAL),
        Field("api_key", "API Key", CRITICAL),
        Field("provider_connection_id", "Provider Connection ID", MAJOR),
        Field("auth_type", "Authentication", CRITICAL),
        Field("subscription_vendor", "Subscription provider", CRITICAL, ("auth_type",)),
        Field("base_url", "Base URL", MAJOR),
    )
}
"""Fields of a model that are more than minor; the others are called by their names."""

_ABBREVIATIONS: Final = frozenset({"api", "aws", "id", "llm", "url"})

_NOT_SHOWN: Final = frozenset({"is_subscription"})


def _label(name: str) -> str:
    return " ".join(word.upper() if word in _ABBREVIATIONS else word.capitalize() for word in name.split("_"))


_LLM_SECTION: Final = Section(
    "llm",
    "LLM",
    OPENHANDS,
    LLM,
    tuple(
        _LLM_SAID.get(each.name) or Field(each.name, _label(each.name))
        for each in properties_of(LLM)
        if each.name not in _NOT_SHOWN
    ),
    nested=True,
)

_OPENHANDS_SECTIONS: Final = (
    _GENERAL,
    _LLM_SECTION,
    Section(
        "agent_context",
        "Memory",
        OPENHANDS,
        AgentContext,
        (Field("load_memory", "Persistent memory", MAJOR),),
        nested=True,
    ),
    Section(
        "condenser",
        "Condenser",
        OPENHANDS,
        SummarizingCondenser,
        (
            Field("condenser_kind", "Condenser Kind"),
            Field("enabled", "Enable memory condensation", CRITICAL),
            Field("max_size", "Max size", MINOR, ("enabled",)),
            Field("max_tokens", "Max tokens", MINOR, ("enabled",)),
            Field("keep_first", "Keep first", MINOR, ("enabled",)),
            Field("minimum_progress", "Minimum progress", MINOR, ("enabled",)),
            Field("hard_context_reset_max_retries", "Hard reset retries", MINOR, ("enabled",)),
            Field("hard_context_reset_context_scaling", "Hard reset scaling", MINOR, ("enabled",)),
        ),
        nested=True,
    ),
    Section(
        "verification",
        "Verification",
        OPENHANDS,
        Verification,
        (
            Field("critic_enabled", "Enable critic", CRITICAL),
            Field("critic_mode", "Critic mode", MINOR, ("critic_enabled",)),
            Field(
                "enable_iterative_refinement", "Enable iterative refinement", CRITICAL, ("critic_enabled",)
            ),
            Field(
                "critic_threshold",
                "Critic threshold",
                MINOR,
                ("critic_enabled", "enable_iterative_refinement"),
            ),
            Field(
                "max_refinement_iterations",
                "Max refinement iterations",
                MINOR,
                ("critic_enabled", "enable_iterative_refinement"),
            ),
            Field("critic_server_url", "Critic server URL", MINOR, ("critic_enabled",)),
            Field("critic_model_name", "Critic model name", MINOR, ("critic_enabled",)),
            Field("critic_api_key", "Critic API Key", CRITICAL, ("critic_enabled",)),
        ),
        nested=True,
    ),
)

_WORKTREE: Final = "default_runtime=worktree"
_DOCKER: Final = "default_runtime=docker"

_CONVERSATION_SECTIONS: Final = (
    Section(
        "general", "General", None, ConversationSettings, (Field("max_iterations", "Max iterations", MAJOR),)
    ),
    Section(
        "verification",
        "Verification",
        None,
        ConversationSettings,
        (
            Field("confirmation_mode", "Confirmation mode", CRITICAL),
            Field("security_analyzer", "Security analyzer", MAJOR, ("confirmation_mode",)),
        ),
    ),
    Section(
        "runtime",
        "Runtime",
        None,
        ConversationSettings,
        (
            Field("default_runtime", "Default runtime", MAJOR),
            Field("worktree_base", "Create worktrees from", MAJOR, (_WORKTREE,)),
            Field("worktree_base_ref", "Ref", MAJOR, (_WORKTREE, "worktree_base=ref")),
            Field("worktree_branch_prefix", "Branch name prefix", MAJOR, (_WORKTREE,)),
            Field("container_memory", "Container memory limit", MAJOR, (_DOCKER,)),
            Field("container_cpus", "Container CPU limit", MAJOR, (_DOCKER,)),
            Field("container_browser", "Browser in containers", MAJOR, (_DOCKER,)),
        ),
    ),
)

_VALUE_TYPES: Final[Mapping[type, str]] = {str: "string", int: "integer", float: "number", bool: "boolean"}

_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "condenser_kind": ("llm_summarizing", "no_op"),
}
"""Choices of fields for which the description of the settings lists none."""


def agent_schema(presets: Presets) -> dict[str, Any]:
    """The settings of an agent of either kind."""
    known = [(key, key) for key in presets if key in WIRE_ALIASES and key != CUSTOM]
    choices = {"acp_server": [*known, (CUSTOM, "Custom")]}
    own = defaults()
    return {
        "model_name": "AgentSettings",
        "sections": [
            *(_section(each, own[each.key] if each.nested else own, {}) for each in _OPENHANDS_SECTIONS),
            _section(_ACP_SECTION, _ACP_DEFAULTS, choices),
        ],
    }


def conversation_schema() -> dict[str, Any]:
    """The settings of new conversations."""
    return {
        "model_name": "ConversationSettings",
        "sections": [_section(each, DEFAULTS, {}) for each in _CONVERSATION_SECTIONS],
    }


def _section(
    section: Section, values: Mapping[str, Any], choices: Mapping[str, Sequence[tuple[str, str]]]
) -> dict[str, Any]:
    described = {each.name: each for each in properties_of(section.model)}
    prefix = f"{section.key}." if section.nested else ""
    # In the section of every kind, each field is of the one kind that has it.
    variant = section.variant or (OPENHANDS if section.model is OpenHandsAgentSettings else None)
    return {
        "key": section.key,
        "label": section.label,
        "variant": section.variant,
        "fields": [
            {
                "key": f"{prefix}{field.name}",
                "label": field.label,
                "description": _description(described.get(field.name)),
                "section": section.key,
                "section_label": section.label,
                "value_type": _value_type(field.name, described.get(field.name)),
                "default": None if field.name in SECRETS else values[field.name],
                "prominence": field.prominence,
                "depends_on": [f"{prefix}{name}" for name in field.depends_on],
                "secret": field.name in SECRETS,
                "choices": [
                    {"value": value, "label": text}
                    for value, text in choices.get(field.name)
                    or _words(field.name, described.get(field.name))
                ],
                "variant": variant,
            }
            for field in section.fields
        ],
    }


def _description(found: Property | None) -> str | None:
    return None if found is None else found.metadata.get("schema", {}).get("description")


def _bare(shape: Shape) -> Shape:
    """The shape without its rules."""
    while isinstance(shape, Narrowed | Elsewhere):
        shape = shape.shape
    return shape


def _value_type(name: str, found: Property | None) -> str:
    match _bare(found.shape) if found else None:
        case Scalar((only,)):
            return _VALUE_TYPES[only]
        case ListOf():
            return "array"
        case MapOf() | Record():
            return "object"
    return "string"


def _words(name: str, found: Property | None) -> Sequence[tuple[str, str]]:
    shape = _bare(found.shape) if found else None
    values = shape.values if isinstance(shape, Choice) else _CHOICES.get(name, ())
    return [(value, value) for value in values]
