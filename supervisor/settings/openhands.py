"""The settings of the built-in agent, as clients of the wire write and read them.

They are kept whole, so that clients find what they stored. A start with them becomes the agent's document
(`settings/built_in.py`); the process that gets it is `supervisor/agents/builtin`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

import attrs
import structlog

from supervisor.reading.model import Location, described, said
from supervisor.reading.rules import FILLED, Limit
from supervisor.reading.shapes import as_json
from supervisor.settings.agent import (
    MCP_SERVER,
    OPENHANDS,
    SCHEMA_VERSION,
    Server,
    ServerCheck,
    server_check,
)
from supervisor.settings.errors import SettingsError, read
from supervisor.settings.llm import FROM_ONE, FROM_ZERO, LLM, completed_llm
from supervisor.settings.names import Setting
from supervisor.settings.profiles.meta_profile import MetaProfile

log = structlog.get_logger(__name__)

RETIRED: Final = ("enable_sub_agents", "enable_switch_llm_tool")
"""Switches that became tools; the wire refuses them."""

MAX_PERSONA: Final = 65536
"""Characters; the wire's."""

MARKETPLACE: Final = "marketplaces/default.json"


@attrs.frozen(kw_only=True)
class Tool(Setting):
    """A tool by name, with its parameters."""

    NULL_IS_ABSENT: ClassVar[bool] = True

    name: Annotated[str, FILLED]
    params: Mapping[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class AgentContext(Setting):
    """What is added to prompts. Skills and secrets are kept as they came."""

    skills: tuple[Mapping[str, Any], ...] = ()
    system_message_suffix: str | None = None
    user_message_suffix: str | None = None
    load_user_skills: bool = False
    load_public_skills: bool = False
    marketplace_path: str | None = MARKETPLACE
    registered_marketplaces: tuple[Mapping[str, Any], ...] = ()
    load_project_skills: bool = False
    load_memory: bool = said(False, "Whether the agent's lasting memory is a part of the prompt.")
    disabled_skills: tuple[str, ...] = ()
    secrets: Mapping[str, Any] | None = attrs.field(default=None, repr=False)
    current_datetime: str | None = None


@attrs.frozen(kw_only=True)
class SummarizingCondenser(Setting):
    """Older events are replaced by a summary."""

    NAME: ClassVar[str] = "LLMSummarizingCondenserSettings"
    TAG: ClassVar[str | None] = "condenser_kind"
    condenser_kind: ClassVar[str] = "llm_summarizing"

    enabled: bool = said(True, "Whether the memory of a conversation is condensed.")
    max_size: Annotated[int, Limit(ge=20)] = said(240, "Events that are kept before it is condensed.")
    max_tokens: Annotated[int, Limit(gt=0)] | None = said(None, "Tokens that are kept before that.")
    keep_first: Annotated[int, FROM_ZERO] = said(2, "First events that are never condensed.")
    minimum_progress: Annotated[float, Limit(gt=0, lt=1)] = said(
        0.1, "Fraction of the events that has to be condensed."
    )
    hard_context_reset_max_retries: Annotated[int, Limit(gt=0)] = said(
        5, "Attempts to begin with an empty context."
    )
    hard_context_reset_context_scaling: Annotated[float, Limit(gt=0, lt=1)] = said(
        0.8, "By how much each attempt shortens events."
    )


@attrs.frozen(kw_only=True)
class NoCondenser(Setting):
    """Nothing is condensed."""

    NAME: ClassVar[str] = "NoOpCondenserSettings"
    TAG: ClassVar[str | None] = "condenser_kind"
    TAG_REQUIRED: ClassVar[bool] = True
    condenser_kind: ClassVar[str] = "no_op"

    enabled: bool = True


Condenser = SummarizingCondenser | NoCondenser


@attrs.frozen(kw_only=True)
class ProfileVerification(Setting):
    """Whether a critic judges the agent's work. Nothing in it is secret."""

    NAME: ClassVar[str] = "ProfileVerificationSettings"

    critic_enabled: bool = said(False, "Whether a critic judges the agent's work.")
    critic_mode: Literal["finish_and_message", "all_actions"] = said(
        "finish_and_message", "When the critic is asked."
    )
    enable_iterative_refinement: bool = said(False, "Whether work below the threshold is tried again.")
    critic_threshold: Annotated[float, Limit(ge=0, le=1)] = said(0.6, "The threshold, from 0 to 1.")
    max_refinement_iterations: Annotated[int, FROM_ONE] = said(3, "Most attempts after the critic's word.")
    critic_server_url: str | None = said(None, "URL of the critic's service.")
    critic_model_name: str | None = said(None, "Model of the critic.")


@attrs.frozen(kw_only=True)
class Verification(ProfileVerification):
    """The same with the key of the critic's service."""

    NAME: ClassVar[str] = "VerificationSettings"

    critic_api_key: str | None = attrs.field(
        default=None, repr=False, metadata=described("API key of the critic's service.")
    )


@attrs.frozen(kw_only=True)
class OpenHandsAgentSettings(Setting):
    """Settings of the kind `openhands`."""

    TAG: ClassVar[str | None] = "agent_kind"
    agent_kind: ClassVar[str] = OPENHANDS
    REFUSED: ClassVar[tuple[str, ...]] = RETIRED

    schema_version: Annotated[int, FROM_ONE] = SCHEMA_VERSION
    agent: str = said("CodeActAgent", "Class of the agent.")
    llm: LLM = attrs.field(factory=LLM)
    tools: tuple[Tool, ...] | None = said(None, "Tools of the agent; null for the usual ones.")
    enable_classify_and_switch_llm_tool: bool = said(False, "Whether tasks are routed to models.")
    active_meta_profile: str | None = said(None, "Meta-profile that routes them.")
    meta_profile: MetaProfile | None = None
    meta_profile_llms: Mapping[str, LLM] = attrs.field(factory=dict)
    tool_concurrency_limit: Annotated[int, FROM_ONE] = said(1, "Most tool calls at the same time.")
    mcp_config: Mapping[str, Server] = attrs.field(
        factory=dict, repr=False, metadata=described("MCP servers by name.")
    )
    persona: Annotated[str, Limit(min_length=1, max_length=MAX_PERSONA)] | None = None
    agent_context: AgentContext = attrs.field(factory=AgentContext)
    condenser: Condenser = attrs.field(factory=SummarizingCondenser)
    verification: Verification = attrs.field(factory=Verification)


def decode_openhands_settings(obj: object, loc: Location, check_server: ServerCheck) -> dict[str, Any]:
    """Their JSON with every property present. Unknown properties are dropped. Raises SettingsError."""
    checks = {MCP_SERVER: server_check(check_server)}
    return openhands_to_dict(read(OpenHandsAgentSettings, obj, loc, checks))


def openhands_to_dict(settings: OpenHandsAgentSettings) -> dict[str, Any]:
    """Settings as JSON, every property present."""
    found = as_json(settings)
    found["llm"] = completed_llm(settings.llm)
    found["meta_profile_llms"] = {
        name: completed_llm(llm) for name, llm in settings.meta_profile_llms.items()
    }
    return found


def openhands_from_stored(obj: Mapping[str, Any]) -> dict[str, Any]:
    """As `decode_openhands_settings`, for a stored document, perhaps of a less strict earlier release:
    invalid properties get their defaults, and are logged. The others stay."""
    kept: Any = obj
    while True:
        try:
            return decode_openhands_settings(kept, (), lambda server, loc: [])
        except SettingsError as error:
            log.warning("stored settings are not used", reason=str(error))
            # Backwards, since removing an item of a list shifts those after it.
            wrong = {place for each in error.errors if (place := _existing(kept, each.loc))}
            if not wrong:
                raise
            for place in sorted(wrong, key=lambda loc: [(isinstance(k, str), k) for k in loc], reverse=True):
                kept = _without(kept, place)


def _existing(obj: Any, loc: Location) -> Location:
    """The longest beginning of `loc` that exists in `obj`."""
    for length, key in enumerate(loc):
        in_list = isinstance(obj, list) and isinstance(key, int) and key < len(obj)
        if in_list or (isinstance(obj, Mapping) and key in obj):
            obj = obj[key]
        else:
            return loc[:length]
    return loc


def _without(obj: Any, loc: Location) -> Any:
    """A copy without the value at `loc`, if it exists. A list that becomes empty is removed, too, since an
    empty list would be a choice."""
    key, below = loc[0], loc[1:]
    if isinstance(obj, Mapping) and key in obj:
        left = _without(obj[key], below) if below else None
        rest = {name: value for name, value in obj.items() if name != key}
        return {**obj, key: left} if below and left != [] else rest
    if isinstance(obj, list) and isinstance(key, int) and key < len(obj):
        return [*obj[:key], *([_without(obj[key], below)] if below else ()), *obj[key + 1 :]]
    return obj


def defaults() -> dict[str, Any]:
    """The built-in agent's settings where nothing is chosen."""
    return openhands_to_dict(OpenHandsAgentSettings())
