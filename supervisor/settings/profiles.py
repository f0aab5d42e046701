"""The agent profiles of a server, kept in one file."""

from __future__ import annotations

from typing import Any, Final

import attrs
import trio

from supervisor.settings.agent import AgentSettings
from supervisor.settings.errors import ProfileExists, SettingsError, TooManyProfiles, UnknownProfile
from supervisor.settings.profile import (
    AgentProfile,
    check_profile_name,
    decode_profile,
    profile_to_settings,
    profiles_from_stored,
    profiles_to_stored,
    settings_to_profile,
    spoken_profile,
)
from supervisor.settings.store import SettingsStore

#: What the first listing makes of the settings, so that clients have something to start with.
DEFAULT_PROFILE: Final = "default"

#: Profiles of a server. They are made by hand; each is read with every listing.
MAX_PROFILES: Final = 200

#: Named here, since the store's own `list` hides the type inside the class.
AgentProfiles = list[AgentProfile]


class AgentProfileStore:
    """Agent profiles in `<state>/agent-profiles.json`, read once and then kept in memory.

    Which one is active is a field of the settings. Changes are durable on return and happen one
    after the other. Every method may raise SettingsCorrupt; such a file is left alone.
    """

    def __init__(self, settings: SettingsStore) -> None:
        self._settings = settings
        self._file = settings.profiles_file
        self._profiles: dict[str, AgentProfile] | None = None
        # Taken before the settings' own lock, never after it.
        self._lock = trio.Lock()

    async def list(self) -> AgentProfiles:
        """All profiles by name.

        While there is none, one called `default` is made of the settings and becomes active, unless
        those name an agent that cannot be run.
        """
        async with self._lock:
            profiles = await self._load()
            if not profiles:
                profiles = await self._seed()
            return [profiles[name] for name in sorted(profiles)]

    async def get(self, name: str) -> AgentProfile:
        """The profile of this name. Raises UnknownProfile."""
        async with self._lock:
            return _named(await self._load(), name)

    async def by_id(self, profile_id: str) -> AgentProfile:
        """The profile of this id, dashed or not. Raises UnknownProfile."""
        async with self._lock:
            return _with_id(await self._load(), profile_id)

    async def launch_settings(self, profile_id: str) -> AgentSettings:
        """The settings that a conversation with this profile gets. Raises UnknownProfile, SettingsError."""
        profile = await self.by_id(profile_id)
        document = await self._settings.get()
        return profile_to_settings(profile, self._settings.rules.presets, document.agent_settings)

    def spoken(self, profile: AgentProfile) -> dict[str, Any]:
        """The profile's JSON as clients know it."""
        return spoken_profile(profile, self._settings.rules.presets)

    async def save(self, name: str, body: Any) -> AgentProfile:
        """Create or replace the profile of this name from its JSON.

        Its id is new or stays, its revision is 0 or one more, whatever `body` says. Raises
        SettingsError and TooManyProfiles.
        """
        async with self._lock:
            profiles = await self._load()
            profile = decode_profile(body, name, self._settings.rules.presets)
            old = profiles.get(name)
            if old is not None:
                profile = attrs.evolve(profile, id=old.id, revision=old.revision + 1)
            elif len(profiles) >= MAX_PROFILES:
                raise TooManyProfiles(f"there are {MAX_PROFILES} agent profiles already; delete one first")
            await self._store({**profiles, name: profile})
            return profile

    async def delete(self, name: str) -> bool:
        """Delete the profile of this name; whether there was one. If it was active, none is then."""
        async with self._lock:
            profiles = dict(await self._load())
            profile = profiles.pop(name, None)
            if profile is None:
                return False
            await self._store(profiles)
            with trio.CancelScope(shield=True):
                # Half a deletion would leave a pointer to nothing; this is one small write.
                await self._settings.forget_profile(profile.id)
            return True

    async def rename(self, name: str, new_name: str) -> AgentProfile:
        """Give a profile another name; id and revision stay.

        Raises UnknownProfile, ProfileExists and SettingsError.
        """
        check_profile_name(new_name, ("body", "new_name"))
        async with self._lock:
            profiles = dict(await self._load())
            profile = attrs.evolve(_named(profiles, name), name=new_name)
            if new_name != name:
                if new_name in profiles:
                    raise ProfileExists(f"there is an agent profile {new_name} already")
                del profiles[name]
                await self._store({**profiles, new_name: profile})
            return profile

    async def activate(self, profile_id: str) -> AgentProfile:
        """Make the profile of this id the active one. Raises UnknownProfile."""
        async with self._lock:
            profile = _with_id(await self._load(), profile_id)
            await self._settings.patch({"active_agent_profile_id": profile.id})
            return profile

    async def _seed(self) -> dict[str, AgentProfile]:
        document = await self._settings.get()
        presets = self._settings.rules.presets
        try:
            settings = document.agent(presets)
        except SettingsError:
            return {}
        profile = settings_to_profile(settings, DEFAULT_PROFILE, presets)
        profiles = await self._store({DEFAULT_PROFILE: profile})
        await self._settings.patch({"active_agent_profile_id": profile.id})
        return profiles

    async def _load(self) -> dict[str, AgentProfile]:
        if self._profiles is None:
            self._profiles = await self._file.load(profiles_from_stored) or {}
        return self._profiles

    async def _store(self, profiles: dict[str, AgentProfile]) -> dict[str, AgentProfile]:
        await self._file.replace(profiles_to_stored(profiles))
        self._profiles = profiles
        return profiles


def _named(profiles: dict[str, AgentProfile], name: str) -> AgentProfile:
    if name not in profiles:
        raise UnknownProfile(f"there is no agent profile {name!r}")
    return profiles[name]


def _with_id(profiles: dict[str, AgentProfile], profile_id: str) -> AgentProfile:
    wanted = profile_id.replace("-", "").lower()
    for profile in profiles.values():
        if profile.id.replace("-", "") == wanted:
            return profile
    raise UnknownProfile("no agent profile has this id")
