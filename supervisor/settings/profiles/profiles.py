"""The agent profiles of a server, kept in one document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import attrs
import trio

from supervisor.reading.model import Location
from supervisor.settings.agent import ACP, AgentSettings, BuiltInSettings
from supervisor.settings.built_in import decode_built_in
from supervisor.settings.document import SettingsDocument
from supervisor.settings.errors import (
    ProfileExists,
    SettingsError,
    TooManyProfiles,
    UnknownProfile,
    problem,
)
from supervisor.settings.llm import connection_of, has_key
from supervisor.settings.profiles.meta_profile import models_named
from supervisor.settings.profiles.profile import (
    AnyProfile,
    OpenHandsAgentProfile,
    check_profile_name,
    decode_profile,
    profile_of_settings,
    profile_on_wire,
    profile_to_settings,
    profiles_to_stored,
    settings_of_profile,
    settings_to_profile,
)
from supervisor.settings.storage.store import MAX_LLM_PROFILES, SettingsStore

DEFAULT_PROFILE: Final = "default"
"""What the first listing makes of the settings, so that clients have something to start with."""

MAX_PROFILES: Final = 200
"""Profiles of a server. They are made by hand; each is read with every listing."""

AgentProfiles = list[AnyProfile]
"""Named here, since the store's own `list` hides the type inside the class."""


class AgentProfileStore:
    """Agent profiles in the document `agent-profiles.json`.

    Which one is active is a field of the settings. Changes are durable on return and happen one
    after the other. Every method may raise SettingsCorrupt; such a file is left alone.
    """

    def __init__(self, settings: SettingsStore) -> None:
        self.settings = settings
        self._file = settings.profiles_file
        # Taken before all locks of the settings, never after one.
        self.lock = self._file.lock

    async def list(self) -> AgentProfiles:
        """All profiles by name.

        One is always active: where none is, the one called `default` becomes it, and is made of the settings
        where there is none, unless those name an agent that cannot be run.
        """
        async with self.lock.here:
            profiles = await self._load()
            settled = await self._has_active(profiles)
        if not settled:
            async with self.lock:
                profiles = await self._load()
                if not await self._has_active(profiles):  # another request may have chosen one meanwhile
                    profiles = await self._activate_default(profiles)
        return [profiles[name] for name in sorted(profiles)]

    async def _has_active(self, profiles: Mapping[str, AnyProfile]) -> bool:
        active = (await self.settings.get()).active_agent_profile_id
        return any(profile.id == active for profile in profiles.values())

    async def get(self, name: str) -> AnyProfile:
        """The profile of this name. Raises UnknownProfile."""
        async with self.lock.here:
            return _named(await self._load(), name)

    async def by_id(self, profile_id: str) -> AnyProfile:
        """The profile of this id, dashed or not. Raises UnknownProfile."""
        async with self.lock.here:
            return _with_id(await self._load(), profile_id)

    async def launch_settings(self, profile_id: str, llm_profile: str | None = None) -> AgentSettings:
        """The settings that a conversation with this profile gets; `llm_profile` goes before the one that it
        names. Raises UnknownProfile, SettingsError."""
        profile = await self.by_id(profile_id)
        document = await self.settings.get()
        if isinstance(profile, OpenHandsAgentProfile):
            if llm_profile is not None:
                profile = attrs.evolve(profile, llm_profile_ref=llm_profile)
            return await self._built_in(profile, document)
        if llm_profile is not None:
            loc = ("body", "agent_launch_additions", "llm_profile_ref")
            msg = "Value error, it applies only to a profile of the built-in agent"
            raise problem(loc, msg, "value_error")
        return profile_to_settings(profile, self.settings.rules.presets, document.agent_settings)

    async def _built_in(self, profile: OpenHandsAgentProfile, document: SettingsDocument) -> BuiltInSettings:
        """The built-in agent with what the profile names. Raises SettingsError for what is not there."""
        loc: Location = ("body", "agent_profile_id")
        settings, meta_profile, llms = self.settings, None, {}
        try:
            llm = await settings.usable_llm(profile.llm_profile_ref)
            if profile.meta_profile_ref is not None:
                meta_profile = await settings.meta_profiles.get(profile.meta_profile_ref)
                llms = {name: await settings.usable_llm(name) for name in models_named(meta_profile)}
        except UnknownProfile as error:
            raise problem(loc, f"Value error, {error}", "value_error") from error
        servers = profile.servers(document.agent_settings)
        found = settings_of_profile(profile, llm, servers, meta_profile, llms)
        # A profile has no keys: that of the critic is the settings'.
        key = (document.agent_settings.get("verification") or {}).get("critic_api_key")
        found["verification"] = {**found["verification"], "critic_api_key": key}
        return decode_built_in(found, loc, settings.rules.check_server)

    def on_wire(self, profile: AnyProfile) -> dict[str, Any]:
        """The profile's JSON as clients know it."""
        return profile_on_wire(profile, self.settings.rules.presets)

    async def save(self, name: str, body: Any) -> AnyProfile:
        """Create or replace the profile of this name from its JSON.

        A new profile gets a new id and revision 0; an existing one keeps its id, and its revision is
        incremented. Those in `body` are ignored. Raises SettingsError and TooManyProfiles.
        """
        async with self.lock:
            profiles = await self._load()
            profile = decode_profile(body, name, self.settings.rules.presets)
            old = profiles.get(name)
            if old is not None:
                profile = attrs.evolve(profile, id=old.id, revision=old.revision + 1)
            elif len(profiles) >= MAX_PROFILES:
                raise TooManyProfiles(
                    f"There are {MAX_PROFILES} agent profiles already. Delete one before you save another."
                )
            await self._store({**profiles, name: profile})
            return profile

    async def delete(self, name: str) -> bool:
        """Delete the profile of this name; whether there was one. If it was active, none is then."""
        async with self.lock:
            profiles = dict(await self._load())
            profile = profiles.pop(name, None)
            if profile is None:
                return False
            await self._store(profiles)
            with trio.CancelScope(shield=True):
                # Half a deletion would leave a dangling reference; this is one small write.
                await self.settings.update(partial(_without_profile, profile_id=profile.id))
            return True

    async def referrers(self, llm_profile: str) -> Sequence[str]:
        """The names of the profiles that name this LLM profile."""
        return [
            name for name, profile in sorted((await self._load()).items()) if _names(profile, llm_profile)
        ]

    async def repoint(self, llm_profile: str, new_name: str) -> None:
        """Let the profiles that name an LLM profile name it by its new name. The caller holds `lock`."""
        profiles = await self._load()
        changed = {
            name: attrs.evolve(profile, llm_profile_ref=new_name)
            for name, profile in profiles.items()
            if isinstance(profile, OpenHandsAgentProfile) and _names(profile, llm_profile)
        }
        if changed:
            await self._store({**profiles, **changed})

    async def rename(self, name: str, new_name: str) -> AnyProfile:
        """Give a profile another name; id and revision stay.

        Raises UnknownProfile, ProfileExists and SettingsError.
        """
        check_profile_name(new_name, ("body", "new_name"))
        async with self.lock:
            profiles = dict(await self._load())
            profile = attrs.evolve(_named(profiles, name), name=new_name)
            if new_name != name:
                if new_name in profiles:
                    raise ProfileExists(f"There is an agent profile {new_name} already.")
                del profiles[name]
                await self._store({**profiles, new_name: profile})
            return profile

    async def activate(self, profile_id: str) -> AnyProfile:
        """Make the profile of this id the active one. Raises UnknownProfile."""
        async with self.lock:
            profile = _with_id(await self._load(), profile_id)
            await self.settings.patch({"active_agent_profile_id": profile.id})
            return profile

    async def _activate_default(self, profiles: Mapping[str, AnyProfile]) -> dict[str, AnyProfile]:
        found = dict(profiles)
        if DEFAULT_PROFILE not in found and len(found) < MAX_PROFILES:
            try:
                profile = await self._from_settings()
            except SettingsError:
                pass
            else:
                found = await self._store({**found, DEFAULT_PROFILE: profile})
        if found:
            active = found.get(DEFAULT_PROFILE) or found[min(found)]
            await self.settings.patch({"active_agent_profile_id": active.id})
        return found

    async def _from_settings(self) -> AnyProfile:
        """A profile that launches what the settings do. Raises SettingsError."""
        document = await self.settings.get()
        if document.agent_settings.get("agent_kind") == ACP:
            presets = self.settings.rules.presets
            return settings_to_profile(document.agent(presets), DEFAULT_PROFILE, presets)
        llm_profile = document.active_profile
        if llm_profile is None:
            llm_profile = DEFAULT_PROFILE
            await self._keep_llm(document.agent_settings["llm"])
        return profile_of_settings(document.agent_settings, llm_profile, DEFAULT_PROFILE)

    async def _keep_llm(self, llm: Mapping[str, Any]) -> None:
        """Store the settings' model, if it has been set up, as the LLM profile that a new profile names."""
        if not (has_key(llm) or connection_of(llm) or llm["auth_type"] == "subscription" or llm["base_url"]):
            return
        stored = self.settings.llm_profiles
        async with stored.lock:
            profiles = await stored.all()
            if DEFAULT_PROFILE not in profiles and len(profiles) < MAX_LLM_PROFILES:
                await stored.replace({**profiles, DEFAULT_PROFILE: llm})

    async def _load(self) -> dict[str, AnyProfile]:
        return await self._file.kept() or {}

    async def _store(self, profiles: dict[str, AnyProfile]) -> dict[str, AnyProfile]:
        await self._file.replace(profiles_to_stored(profiles), profiles)
        return profiles


def _without_profile(document: SettingsDocument, profile_id: str) -> SettingsDocument:
    active = document.active_agent_profile_id
    return document if active != profile_id else attrs.evolve(document, active_agent_profile_id=None)


def _names(profile: AnyProfile, llm_profile: str) -> bool:
    return isinstance(profile, OpenHandsAgentProfile) and profile.llm_profile_ref == llm_profile


def _named(profiles: dict[str, AnyProfile], name: str) -> AnyProfile:
    if name not in profiles:
        raise UnknownProfile(f"There is no agent profile {name!r}.")
    return profiles[name]


def _with_id(profiles: dict[str, AnyProfile], profile_id: str) -> AnyProfile:
    wanted = profile_id.replace("-", "").lower()
    for profile in profiles.values():
        if profile.id.replace("-", "") == wanted:
            return profile
    raise UnknownProfile("There is no agent profile with this id.")
