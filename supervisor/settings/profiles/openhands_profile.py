"""An agent profile of the built-in agent. It names an LLM profile and holds nothing secret."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

import attrs

from supervisor.reading import FILLED, Limit, Location
from supervisor.settings.agent import OPENHANDS, SCHEMA_VERSION
from supervisor.settings.errors import read
from supervisor.settings.llm import FROM_ONE
from supervisor.settings.openhands import (
    MAX_PERSONA,
    RETIRED,
    Condenser,
    ProfileVerification,
    SummarizingCondenser,
    Tool,
)
from supervisor.settings.profiles.common_profile import CommonProfile

SAME: Final = (
    "agent",
    "tools",
    "persona",
    "condenser",
    "enable_classify_and_switch_llm_tool",
    "tool_concurrency_limit",
)
"""What profile and settings call the same."""


@attrs.frozen(kw_only=True)
class OpenHandsAgentProfile(CommonProfile):
    """A profile of the built-in agent.

    `tools`: None is the usual ones, () is none. `public_skills`: None is all of the catalogue.
    """

    REFUSED: ClassVar[tuple[str, ...]] = RETIRED
    TAG: ClassVar[str | None] = "agent_kind"
    TAG_REQUIRED: ClassVar[bool] = True
    agent_kind: ClassVar[str] = OPENHANDS
    SCHEMA: ClassVar[Mapping[str, Any]] = {
        "required": ["agent_kind", "llm_profile_ref"],
        "description": "id and revision are the server's; the name is that of the path",
    }

    llm_profile_ref: Annotated[str, FILLED]
    agent: str = "CodeActAgent"
    tools: tuple[Tool, ...] | None = None
    persona: Annotated[str, Limit(min_length=1, max_length=MAX_PERSONA)] | None = None
    system_message_suffix: str | None = None
    disabled_skills: tuple[str, ...] = ()
    public_skills: tuple[str, ...] | None = None
    condenser: Condenser = attrs.field(factory=SummarizingCondenser)
    verification: ProfileVerification = attrs.field(factory=ProfileVerification)
    enable_classify_and_switch_llm_tool: bool = False
    meta_profile_ref: Annotated[str, FILLED] | None = None
    tool_concurrency_limit: Annotated[int, FROM_ONE] = 1


def decode_openhands_profile(obj: Mapping[str, Any], name: str, loc: Location) -> OpenHandsAgentProfile:
    """A new profile from its JSON; `name` overrides the name in it, and id and revision are new.

    Unknown properties are refused. Raises SettingsError.
    """
    found = read(OpenHandsAgentProfile, {**obj, "name": name, "agent_kind": OPENHANDS}, loc)
    return attrs.evolve(found, id=str(uuid.uuid4()), revision=0)


def settings_of_profile(
    profile: OpenHandsAgentProfile,
    llm: Mapping[str, Any],
    servers: Mapping[str, Any],
    meta_profile: Mapping[str, Any] | None,
    meta_profile_llms: Mapping[str, Any],
) -> dict[str, Any]:
    """The JSON of the agent settings that the profile stands for: with what it names."""
    given = profile.dump()
    return {
        "schema_version": SCHEMA_VERSION,
        "agent_kind": OPENHANDS,
        **{name: given[name] for name in SAME},
        "llm": {**llm, "stream": True},  # a profile cannot say it; the wire's
        "mcp_config": servers,
        "agent_context": {
            "system_message_suffix": profile.system_message_suffix,
            "load_project_skills": True,
            "load_user_skills": True,
            "disabled_skills": list(profile.disabled_skills),
        },
        "verification": given["verification"],
        "active_meta_profile": profile.meta_profile_ref,
        "meta_profile": meta_profile,
        "meta_profile_llms": meta_profile_llms,
    }


def profile_of_settings(settings: Mapping[str, Any], llm_profile: str, name: str) -> OpenHandsAgentProfile:
    """A profile that stands for the built-in agent's settings. Raises SettingsError."""
    context = settings["agent_context"]
    verification = {key: value for key, value in settings["verification"].items() if key != "critic_api_key"}
    return decode_openhands_profile(
        {
            **{key: settings[key] for key in SAME},
            "llm_profile_ref": llm_profile,
            "disabled_skills": context["disabled_skills"],
            "system_message_suffix": context["system_message_suffix"],
            "verification": verification,
            "meta_profile_ref": settings["active_meta_profile"],
        },
        name,
        ("agent_profile",),
    )
