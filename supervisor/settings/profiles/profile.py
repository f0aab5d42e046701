"""Agent profiles: named choices of agent that conversations can be started with. They hold no secrets."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, TypeVar

import attrs

from supervisor.reading.decode import among
from supervisor.reading.model import Location, Named, said
from supervisor.reading.rules import ABOVE_ZERO, FILLED, Form, Limit
from supervisor.reading.shapes import as_json
from supervisor.settings.agent import (
    ACP,
    CUSTOM,
    DEFAULT_PROMPT_TIMEOUT,
    DEFAULT_SERVER,
    DEFAULT_STARTUP_TIMEOUT,
    OPENHANDS,
    PROVIDER,
    SCHEMA_VERSION,
    AgentSettings,
    Presets,
    decode_agent_settings,
)
from supervisor.settings.errors import read
from supervisor.settings.llm import FROM_ONE
from supervisor.settings.names import ProfileId, ProfileName, Setting, Text
from supervisor.settings.openhands import (
    MAX_PERSONA,
    RETIRED,
    Condenser,
    ProfileVerification,
    SummarizingCondenser,
    Tool,
)
from supervisor.settings.remote import RELAY_COMMAND
from supervisor.settings.wire_aliases import WIRE_ALIASES, server_on_wire
from supervisor.stored import check_version

P = TypeVar("P", bound="CommonProfile")

PROFILE_SCHEMA_VERSION: Final = 4

COMMAND_CHARACTERS: Final = 16 * 1024
"""Longest command. Splitting it takes 3 ms then, and four times as long where it is twice as long."""

BY_THE_SERVER: Final = "id and revision are the server's; the name is that of the path"


def _shell_words(text: str) -> str:
    shlex.split(text)
    return text


COMMAND_LINE: Final = Limit(max_length=COMMAND_CHARACTERS, nul=False)
SHELL_WORDS: Final = Form(_shell_words)


@attrs.frozen(kw_only=True)
class CommonProfile(Setting):
    """What profiles of both kinds of agent have.

    `mcp_server_refs` and `secret_refs` name what of the settings' servers and of the stored secrets the agent
    may use; None is all of them. `id` and `revision` are the server's.
    """

    FORBID: ClassVar[bool] = True
    agent_kind: ClassVar[str]

    name: ProfileName
    id: ProfileId = attrs.field(factory=lambda: str(uuid.uuid4()))
    revision: Annotated[int, Limit(ge=0)] = 0
    mcp_server_refs: tuple[Text, ...] | None = None
    secret_refs: tuple[Text, ...] | None = None
    schema_version: Annotated[int, Limit(ge=1)] = PROFILE_SCHEMA_VERSION

    def summary(self) -> dict[str, Any]:
        """Its entry in a list of profiles."""
        return {
            "id": self.id,
            "name": self.name,
            "agent_kind": self.agent_kind,
            "revision": self.revision,
            "llm_profile_ref": getattr(self, "llm_profile_ref", None),
            "mcp_server_refs": None if self.mcp_server_refs is None else list(self.mcp_server_refs),
        }

    def servers(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The MCP servers that the agent has of those of the settings. A reference to one that they do not
        have counts for nothing."""
        servers = settings.get("mcp_config") or {}
        names = servers if self.mcp_server_refs is None else self.mcp_server_refs
        return {name: servers[name] for name in names if name in servers}


@attrs.frozen(kw_only=True)
class AgentProfile(CommonProfile):
    """A profile of an ACP agent. Its command is one string, split as a shell would; None is the provider's.

    Timeouts are in seconds.
    """

    TAG: ClassVar[str | None] = "agent_kind"
    agent_kind: ClassVar[str] = ACP
    # What the server gives itself need not be given.
    SCHEMA: ClassVar[Mapping[str, Any]] = {"required": [], "description": BY_THE_SERVER}

    acp_server: Annotated[Text, Named(PROVIDER)] = DEFAULT_SERVER
    acp_model: Text | None = None
    acp_session_mode: Text | None = None
    acp_prompt_timeout: Annotated[float, ABOVE_ZERO] = attrs.field(
        default=DEFAULT_PROMPT_TIMEOUT, converter=float
    )
    acp_startup_timeout: Annotated[float, ABOVE_ZERO] = attrs.field(
        default=DEFAULT_STARTUP_TIMEOUT, converter=float
    )
    acp_command: Annotated[str, COMMAND_LINE, SHELL_WORDS] | None = said(None, "Split as a shell would")
    acp_args: tuple[Text, ...] | None = None


@attrs.frozen(kw_only=True)
class OpenHandsAgentProfile(CommonProfile):
    """A profile of the built-in agent. It names an LLM profile.

    `tools`: None is the usual ones, () is none. `public_skills`: None is all of the catalogue.
    """

    REFUSED: ClassVar[tuple[str, ...]] = RETIRED
    TAG: ClassVar[str | None] = "agent_kind"
    TAG_REQUIRED: ClassVar[bool] = True
    agent_kind: ClassVar[str] = OPENHANDS
    SCHEMA: ClassVar[Mapping[str, Any]] = {
        "required": ["agent_kind", "llm_profile_ref"],
        "description": BY_THE_SERVER,
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


AnyProfile = AgentProfile | OpenHandsAgentProfile

SHARED: Final = (
    "mcp_config",
    "acp_isolate_data_dir",
    "acp_home",
    "acp_home_links",
    "acp_home_copies",
    "acp_env",
    "acp_env_plain",
    "acp_client_methods",
    "acp_after_cut_off",
    "acp_limits",
    "acp_walls",
    "acp_walls_read",
    "acp_walls_write",
    "acp_file_secrets",
    "agent_context",
)
"""Fields of the server's agent settings that also apply to profiles, which have no such fields."""

REMOTE: Final = ("acp_url", "acp_headers")
"""The same, for a profile with the remote agent of the settings."""

OF_ACP: Final = (
    "acp_server",
    "acp_model",
    "acp_session_mode",
    "acp_prompt_timeout",
    "acp_startup_timeout",
)
"""What settings of an ACP agent and its profile both have, and have alike."""

OF_OPENHANDS: Final = (
    "agent",
    "tools",
    "persona",
    "condenser",
    "enable_classify_and_switch_llm_tool",
    "tool_concurrency_limit",
)
"""The same of the built-in agent."""


def check_profile_name(name: str, loc: Location) -> None:
    """Raises SettingsError for what cannot be the name of a profile."""
    read(ProfileName, name, loc)


def decode_profile(obj: object, name: str, presets: Presets, *, loc: Location = ("body",)) -> AnyProfile:
    """A new profile from its JSON, with a new id and revision 0; `name` overrides the name in it.

    Unknown keys are refused. Raises SettingsError.
    """
    check_profile_name(name, (*loc, "name"))
    if isinstance(obj, Mapping):
        if obj.get("agent_kind", OPENHANDS if "llm_profile_ref" in obj else ACP) == OPENHANDS:
            found = read(OpenHandsAgentProfile, {**obj, "name": name, "agent_kind": OPENHANDS}, loc)
            return _new(found, name)
        obj = {"name": name, **obj}
    profile = _new(read(AgentProfile, obj, loc, {PROVIDER: among((*presets, CUSTOM))}), name)
    # Refuse a profile that could not be launched now, while the error's location is known.
    server = profile_to_settings(profile, presets, loc=loc).acp_server
    if server != profile.acp_server and server not in WIRE_ALIASES:
        # It comes back from a client: the choice was the agent, not this release's command for it.
        return attrs.evolve(profile, acp_server=server, acp_command=None)
    return profile


def _new(profile: P, name: str) -> P:
    return attrs.evolve(profile, name=name, id=str(uuid.uuid4()), revision=0)


def profile_on_wire(profile: AnyProfile, presets: Presets) -> dict[str, Any]:
    """A profile's JSON as clients know it."""
    shown = as_json(profile)
    if isinstance(profile, AgentProfile):
        shown["acp_server"] = server_on_wire(profile.acp_server)
        if shown["acp_server"] != profile.acp_server and not profile.acp_command:
            shown["acp_command"] = shlex.join(presets.get(profile.acp_server, ()))
    return shown


def profile_to_settings(
    profile: AgentProfile,
    presets: Presets,
    server: Mapping[str, Any] | None = None,
    *,
    loc: Location = ("agent_profile",),
) -> AgentSettings:
    """The settings that a conversation with this profile gets.

    `server` is the JSON of the server's agent settings, which say what is `SHARED`. Raises SettingsError
    where the presets have changed so that there is nothing to run.
    """
    server = server or {}
    command = shlex.split(profile.acp_command or "")
    shared = (*SHARED, *REMOTE) if tuple(command) == RELAY_COMMAND else SHARED
    names = shared if server.get("agent_kind") == ACP else ()
    return decode_agent_settings(
        {
            **{name: getattr(profile, name) for name in OF_ACP},
            **{name: server[name] for name in names if name in server},
            "agent_kind": ACP,
            "acp_command": command,
            "acp_args": profile.acp_args or (),
            "mcp_config": profile.servers(server),
        },
        presets,
        loc=loc,
    )


def settings_to_profile(settings: AgentSettings, name: str, presets: Presets) -> AgentProfile:
    """A profile that launches what the settings launch, together with what is `SHARED`."""
    is_preset = presets.get(settings.acp_server) == settings.acp_command
    return AgentProfile(
        **{field: getattr(settings, field) for field in OF_ACP},
        name=name,
        acp_command=None if is_preset else shlex.join(settings.acp_command),
        acp_args=settings.acp_args or None,
    )


def settings_of_profile(
    profile: OpenHandsAgentProfile,
    llm: Mapping[str, Any],
    servers: Mapping[str, Any],
    meta_profile: Mapping[str, Any] | None,
    meta_profile_llms: Mapping[str, Any],
) -> dict[str, Any]:
    """The JSON of the built-in agent's settings that the profile stands for: with what it names."""
    given = as_json(profile)
    return {
        "schema_version": SCHEMA_VERSION,
        "agent_kind": OPENHANDS,
        **{name: given[name] for name in OF_OPENHANDS},
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


def profile_of_settings(settings: Mapping[str, Any], llm_profile: str, name: str) -> AnyProfile:
    """A profile that stands for the built-in agent's settings. Raises SettingsError."""
    context = settings["agent_context"]
    return decode_profile(
        {
            **{key: settings[key] for key in OF_OPENHANDS},
            "llm_profile_ref": llm_profile,
            "disabled_skills": context["disabled_skills"],
            "system_message_suffix": context["system_message_suffix"],
            "verification": {
                key: value for key, value in settings["verification"].items() if key != "critic_api_key"
            },
            "meta_profile_ref": settings["active_meta_profile"],
        },
        name,
        {},
        loc=("agent_profile",),
    )


FORMAT_VERSION: Final = 1
"""Schema version of the profile file."""


def profiles_to_stored(profiles: Mapping[str, AnyProfile]) -> dict[str, Any]:
    """All profiles for the disk."""
    return {"version": FORMAT_VERSION, "profiles": [as_json(profiles[name]) for name in sorted(profiles)]}


def profiles_from_stored(obj: Any) -> dict[str, AnyProfile]:
    """All profiles from the disk, by name. Raises ValueError, TypeError or LookupError.

    Presets are not consulted: a profile of a removed provider stays, and fails when it is used.
    """
    check_version(obj, FORMAT_VERSION)
    found: dict[str, AnyProfile] = {}
    for index, item in enumerate(obj["profiles"]):
        built_in = item["agent_kind"] == OPENHANDS
        kind: type[AnyProfile] = OpenHandsAgentProfile if built_in else AgentProfile
        profile = read(kind, item, ("profiles", index))
        found[profile.name] = profile
    return found
