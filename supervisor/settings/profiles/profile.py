"""An agent profile: a named choice of agent that conversations can be started with."""

from __future__ import annotations

import shlex
import uuid
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

import attrs

from supervisor.reading import (
    ABOVE_ZERO,
    Form,
    Limit,
    Location,
    Named,
    among,
    described,
)
from supervisor.settings.agent import (
    ACP,
    CUSTOM,
    DEFAULT_PROMPT_TIMEOUT,
    DEFAULT_SERVER,
    DEFAULT_STARTUP_TIMEOUT,
    OPENHANDS,
    PROVIDER,
    AgentSettings,
    Presets,
    decode_agent_settings,
)
from supervisor.settings.errors import read
from supervisor.settings.names import ProfileName, Text
from supervisor.settings.profiles.common_profile import CommonProfile
from supervisor.settings.profiles.openhands_profile import OpenHandsAgentProfile, decode_openhands_profile
from supervisor.settings.wire_aliases import SPOKEN, spoken_server

COMMAND_CHARACTERS: Final = 16 * 1024
"""Longest command. Splitting it takes 3 ms then, and four times as long where it is twice as long."""


def _shell_words(text: str) -> str:
    shlex.split(text)
    return text


COMMAND_LINE: Final = Limit(max_length=COMMAND_CHARACTERS, nul=False)
SHELL_WORDS: Final = Form(_shell_words)


@attrs.frozen(kw_only=True)
class AgentProfile(CommonProfile):
    """A profile of an ACP agent. Its command is one string, split as a shell would; None is the provider's.

    Timeouts are in seconds.
    """

    TAG: ClassVar[str | None] = "agent_kind"
    agent_kind: ClassVar[str] = ACP
    SCHEMA: ClassVar[Mapping[str, Any]] = {
        # What the server gives itself need not be given.
        "required": [],
        "description": "id and revision are the server's; the name is that of the path",
    }

    acp_server: Annotated[Text, Named(PROVIDER)] = DEFAULT_SERVER
    acp_model: Text | None = None
    acp_session_mode: Text | None = None
    acp_prompt_timeout: Annotated[float, ABOVE_ZERO] = attrs.field(
        default=DEFAULT_PROMPT_TIMEOUT, converter=float
    )
    acp_startup_timeout: Annotated[float, ABOVE_ZERO] = attrs.field(
        default=DEFAULT_STARTUP_TIMEOUT, converter=float
    )
    acp_command: Annotated[str, COMMAND_LINE, SHELL_WORDS] | None = attrs.field(
        default=None, metadata=described("Split as a shell would")
    )
    acp_args: tuple[Text, ...] | None = None


AnyProfile = AgentProfile | OpenHandsAgentProfile


def decode_profile(obj: object, name: str, presets: Presets, *, loc: Location = ("body",)) -> AnyProfile:
    """A new profile from its JSON, with a new id and revision 0; `name` overrides the name in it.

    Unknown keys are refused. Raises SettingsError.
    """
    check_profile_name(name, (*loc, "name"))
    if isinstance(obj, Mapping):
        if obj.get("agent_kind", OPENHANDS if "llm_profile_ref" in obj else ACP) == OPENHANDS:
            return decode_openhands_profile(obj, name, loc)
        obj = {"name": name, **obj}
    checks = {PROVIDER: among((*presets, CUSTOM))}
    profile = attrs.evolve(read(AgentProfile, obj, loc, checks), name=name, id=str(uuid.uuid4()), revision=0)
    # Refuse a profile that could not be launched now, while the error's location is known.
    server = profile_to_settings(profile, presets, loc=loc).acp_server
    if server != profile.acp_server and server not in SPOKEN:
        # It comes back from a client: the choice was the agent, not this release's command for it.
        return attrs.evolve(profile, acp_server=server, acp_command=None)
    return profile


def spoken_profile(profile: AnyProfile, presets: Presets) -> dict[str, Any]:
    """A profile's JSON as clients know it."""
    told = profile.dump()
    if not isinstance(profile, AgentProfile):
        return told
    told["acp_server"] = spoken_server(profile.acp_server)
    if told["acp_server"] != profile.acp_server and not profile.acp_command:
        told["acp_command"] = shlex.join(presets.get(profile.acp_server, ()))
    return told


def check_profile_name(name: str, loc: Location) -> None:
    """Raises SettingsError for what cannot be the name of a profile."""
    read(ProfileName, name, loc)


#: Fields of the server's agent settings that also apply to profiles, which have no such fields.
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
    "acp_file_secrets",
    "agent_context",
)


def profile_to_settings(
    profile: AgentProfile,
    presets: Presets,
    server: Mapping[str, Any] | None = None,
    *,
    loc: Location = ("agent_profile",),
) -> AgentSettings:
    """The settings that a conversation with this profile gets.

    `server` is the JSON of the server's agent settings, which say what is `SHARED`; a profile's
    reference to an MCP server that they do not have counts for nothing. Raises SettingsError where the
    presets have changed so that there is nothing to run.
    """
    names = SHARED if server and server.get("agent_kind") == ACP else ("mcp_config",)
    shared = {name: server[name] for name in names if name in server} if server else {}
    if profile.mcp_server_refs is not None:
        servers = shared.get("mcp_config", {})
        shared["mcp_config"] = {name: servers[name] for name in profile.mcp_server_refs if name in servers}
    return decode_agent_settings(
        {
            "agent_kind": ACP,
            "acp_server": profile.acp_server,
            "acp_command": shlex.split(profile.acp_command or ""),
            "acp_args": profile.acp_args or (),
            "acp_model": profile.acp_model,
            "acp_session_mode": profile.acp_session_mode,
            "acp_prompt_timeout": profile.acp_prompt_timeout,
            "acp_startup_timeout": profile.acp_startup_timeout,
            **shared,
        },
        presets,
        loc=loc,
    )


def settings_to_profile(settings: AgentSettings, name: str, presets: Presets) -> AgentProfile:
    """A profile that launches what the settings launch, together with what is `SHARED`."""
    is_preset = presets.get(settings.acp_server) == settings.acp_command
    return AgentProfile(
        name=name,
        acp_server=settings.acp_server,
        acp_model=settings.acp_model,
        acp_session_mode=settings.acp_session_mode,
        acp_prompt_timeout=settings.acp_prompt_timeout,
        acp_startup_timeout=settings.acp_startup_timeout,
        acp_command=None if is_preset else shlex.join(settings.acp_command),
        acp_args=settings.acp_args or None,
    )


#: Schema version of the profile file.
FORMAT_VERSION: Final = 1


def profiles_to_stored(profiles: Mapping[str, AnyProfile]) -> dict[str, Any]:
    """All profiles for the disk."""
    return {"version": FORMAT_VERSION, "profiles": [profiles[name].dump() for name in sorted(profiles)]}


def profiles_from_stored(obj: Any) -> dict[str, AnyProfile]:
    """All profiles from the disk, by name. Raises ValueError, TypeError or LookupError.

    Presets are not consulted: a profile of a removed provider stays, and fails when it is used.
    """
    if obj["version"] != FORMAT_VERSION:
        raise ValueError("it was written by another version of Ostler")
    profiles = [_from_stored(item, ("profiles", index)) for index, item in enumerate(obj["profiles"])]
    return {profile.name: profile for profile in profiles}


def _from_stored(item: Any, loc: Location) -> AnyProfile:
    if item["agent_kind"] == OPENHANDS:
        return read(OpenHandsAgentProfile, item, loc)
    return read(AgentProfile, item, loc)


def profile_ids(obj: Any) -> frozenset[str]:
    """The ids of the stored profiles."""
    return frozenset(profile.id for profile in profiles_from_stored(obj).values())
