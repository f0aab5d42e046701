"""A dry run of an agent profile's launch: resolves its references."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from supervisor.reading.shapes import as_json
from supervisor.settings.agent import agent_settings_to_dict
from supervisor.settings.document import Rules, SettingsDocument, shown
from supervisor.settings.errors import SettingsError, SettingsFailure
from supervisor.settings.exposure import Expose
from supervisor.settings.llm import has_key, linked_settings
from supervisor.settings.openhands import AgentContext, decode_openhands_settings
from supervisor.settings.profiles.meta_profile import models_named
from supervisor.settings.profiles.profile import (
    AgentProfile,
    AnyProfile,
    OpenHandsAgentProfile,
    profile_to_settings,
    settings_of_profile,
)
from supervisor.settings.profiles.profiles import AgentProfileStore


@attrs.frozen(kw_only=True)
class Channels:
    """The names of the secrets by which a provider gets its credentials; each of them may suffice."""

    api_key: str | None = None
    base_url: str | None = None
    files: tuple[str, ...] = ()


@attrs.define(kw_only=True)
class Diagnostics:
    """The wire's AgentProfileDiagnostics. What does not concern the kind of agent keeps its default."""

    agent_kind: str
    valid: bool = False
    errors: list[str] = attrs.field(factory=list)
    unusable_tools: list[str] = attrs.field(factory=list)
    llm_profile_ref: str | None = None
    llm_profile_resolved: bool = False
    llm_api_key_set: bool = False
    mcp_server_refs: list[str] | None = None
    resolved_mcp_config_keys: list[str] = attrs.field(factory=list)
    dangling_mcp_server_refs: list[str] = attrs.field(factory=list)
    disabled_skills: list[str] = attrs.field(factory=list)
    public_skills: list[str] | None = None
    resolved_skills: list[str] = attrs.field(factory=list)
    secret_refs: list[str] | None = None
    acp_api_key_secret_name: str | None = None
    acp_base_url_secret_name: str | None = None
    acp_file_secret_names: list[str] = attrs.field(factory=list)
    meta_profile_ref: str | None = None
    dangling_meta_profile_ref: str | None = None
    dangling_meta_profile_llm_refs: list[str] = attrs.field(factory=list)
    resolved_settings: dict[str, Any] | None = None


async def materialize(
    profiles: AgentProfileStore, profile: AnyProfile, channels: Mapping[str, Channels]
) -> dict[str, Any]:
    """The diagnostics of a profile, secrets in them redacted. `channels` are by provider.

    What is wrong with the profile is said in them and not raised. Raises SettingsCorrupt, and what the
    cipher raises.
    """
    settings = profiles.settings
    document = await settings.get()
    found = Diagnostics(
        agent_kind=profile.agent_kind,
        mcp_server_refs=_listed(profile.mcp_server_refs),
        secret_refs=_listed(profile.secret_refs),
    )
    servers = _servers(profile, document, found)
    if isinstance(profile, OpenHandsAgentProfile):
        await _built_in(profiles, profile, servers, found)
    else:
        _external(profile, document, settings.rules, channels, found)
    found.valid = not found.errors
    return attrs.asdict(found)


def _listed(refs: Iterable[str] | None) -> list[str] | None:
    return None if refs is None else list(refs)


def _servers(profile: AnyProfile, document: SettingsDocument, found: Diagnostics) -> dict[str, Any]:
    """The MCP servers that the profile has of those of the settings."""
    servers = document.agent_settings.get("mcp_config") or {}
    refs = list(servers) if profile.mcp_server_refs is None else list(dict.fromkeys(profile.mcp_server_refs))
    found.resolved_mcp_config_keys = [name for name in refs if name in servers]
    found.dangling_mcp_server_refs = [name for name in refs if name not in servers]
    if found.dangling_mcp_server_refs:
        found.errors.append(f"MCP server(s) not configured: {', '.join(found.dangling_mcp_server_refs)}")
    return {name: servers[name] for name in found.resolved_mcp_config_keys}


def _external(
    profile: AgentProfile,
    document: SettingsDocument,
    rules: Rules,
    channels: Mapping[str, Channels],
    found: Diagnostics,
) -> None:
    channel = channels.get(profile.acp_server, Channels())
    found.acp_api_key_secret_name = channel.api_key
    found.acp_base_url_secret_name = channel.base_url
    found.acp_file_secret_names = list(channel.files)
    try:
        settings = agent_settings_to_dict(
            profile_to_settings(profile, rules.presets, document.agent_settings)
        )
    except SettingsError as error:
        found.errors += [each.msg for each in error.errors]
        return
    if not found.errors:
        # Clients read the whole of it, also where nothing is set.
        settings["agent_context"] = {**as_json(AgentContext()), **(settings["agent_context"] or {})}
        found.resolved_settings = shown(settings, Expose.REDACTED, None, rules.presets)


async def _built_in(
    profiles: AgentProfileStore,
    profile: OpenHandsAgentProfile,
    servers: Mapping[str, Any],
    found: Diagnostics,
) -> None:
    settings = profiles.settings
    found.disabled_skills = list(profile.disabled_skills)
    found.public_skills = _listed(profile.public_skills)
    found.llm_profile_ref = profile.llm_profile_ref
    llm: Mapping[str, Any] | None = None
    if profile.llm_profile_ref not in await settings.llm_profiles.all():
        found.errors.append(f"LLM profile {profile.llm_profile_ref!r} not found")
    else:
        try:
            llm = await settings.usable_llm(profile.llm_profile_ref)
        except SettingsFailure as error:
            found.errors.append(f"Could not load LLM profile {profile.llm_profile_ref!r}: {error}")
        else:
            found.llm_profile_resolved = True
            found.llm_api_key_set = has_key(llm)
    meta_profile, llms = await _routing(profiles, profile, found)
    if llm is not None and not found.errors:
        resolved = settings_of_profile(profile, llm, servers, meta_profile, llms)
        try:
            checked = decode_openhands_settings(resolved, (), settings.rules.check_server)
        except SettingsError as error:
            found.errors.append(f"Failed to build agent settings: {error}")
        else:
            checked = linked_settings(checked, await settings.connections.all())
            found.resolved_settings = shown(checked, Expose.REDACTED, None, settings.rules.presets)


async def _routing(
    profiles: AgentProfileStore, profile: OpenHandsAgentProfile, found: Diagnostics
) -> tuple[Mapping[str, Any] | None, dict[str, Any]]:
    """The meta-profile, and the models that it routes to."""
    settings = profiles.settings
    found.meta_profile_ref = profile.meta_profile_ref
    if profile.meta_profile_ref is None:
        return None, {}
    meta_profile = (await settings.meta_profiles.all()).get(profile.meta_profile_ref)
    if meta_profile is None:
        found.dangling_meta_profile_ref = profile.meta_profile_ref
        found.errors.append(f"Meta-profile {profile.meta_profile_ref!r} not found")
        return None, {}
    llms: dict[str, Any] = {}
    for name in models_named(meta_profile):
        try:
            llms[name] = await settings.usable_llm(name)
        except SettingsFailure:
            found.dangling_meta_profile_llm_refs.append(name)
    if found.dangling_meta_profile_llm_refs:
        missing = ", ".join(found.dangling_meta_profile_llm_refs)
        found.errors.append(f"LLM profile(s) of the meta-profile not found: {missing}")
    return meta_profile, llms
