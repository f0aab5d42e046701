"""The LLM profiles of a server, and the meta-profiles that name them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import trio

from supervisor.settings.document import SettingsDocument, with_meta_profile, with_renamed_llm_profile
from supervisor.settings.errors import ProfileExists, ProfileReferenced
from supervisor.settings.exposure import Cipher, Expose, expose_secrets
from supervisor.settings.llm import decode_llm, has_key, linked, without_credentials
from supervisor.settings.profiles.meta_profile import decode_meta_profile, with_renamed_model
from supervisor.settings.profiles.profile import check_profile_name
from supervisor.settings.profiles.profiles import AgentProfileStore
from supervisor.settings.storage.store import SettingsStore

Profile = Mapping[str, Any]


class LlmProfileStore:
    """LLM profiles in `<state>/llm-profiles.json`.

    Which one is active is a field of the settings. Changes are durable on return and happen one after the
    other. Every method may raise SettingsCorrupt, and what the cipher raises.
    """

    def __init__(self, agents: AgentProfileStore) -> None:
        self._agents = agents
        self._settings = agents.settings
        self._stored = agents.settings.llm_profiles
        self._connections = agents.settings.connections

    async def list(self) -> list[dict[str, Any]]:
        """A summary of each profile, by name."""
        connections = await self._connections.all()
        return [
            _summary(name, found, connections) for name, found in sorted((await self._stored.all()).items())
        ]

    async def get(self, name: str) -> Profile:
        """The profile as it is stored. Raises UnknownProfile."""
        return await self._stored.get(_checked(name))

    async def key_is_set(self, profile: Profile) -> bool:
        """Whether it has a key: its own, or that of its provider connection."""
        return bool(_summary("", profile, await self._connections.all())["api_key_set"])

    async def usable(self, name: str) -> Profile:
        """The profile with the credentials of its connection. Raises UnknownProfile, SettingsError."""
        return await self._settings.usable_llm(_checked(name))

    async def save(self, name: str, llm: Any, *, include_secrets: bool = True) -> None:
        """Create or replace the profile of this name. Raises SettingsError and TooManyProfiles."""
        _checked(name)
        found = decode_llm(llm, ("body", "llm"))
        if not include_secrets:
            found = without_credentials(found)
        await self._stored.put(name, found)

    async def delete(self, name: str) -> bool:
        """Delete the profile of this name; whether there was one. If it was active, none is then.

        Raises ProfileReferenced while an agent profile names it.
        """
        _checked(name)
        async with self._agents.lock:
            if referrers := await self._agents.referrers(name):
                raise ProfileReferenced(
                    f"LLM profile {name} is used by the agent profiles {', '.join(referrers)}. "
                    "Choose another one there first."
                )
            async with self._stored.lock:
                profiles = dict(await self._stored.all())
                if profiles.pop(name, None) is None:
                    return False
                with trio.CancelScope(shield=True):  # half of it would leave references to nothing
                    await self._stored.replace(profiles)
                    await self._settings.update(partial(with_renamed_llm_profile, name=name, new_name=None))
            return True

    async def rename(self, name: str, new_name: str) -> None:
        """Give a profile another name, also in the agent profiles, meta-profiles and settings that name it.

        Raises UnknownProfile, ProfileExists and SettingsError.
        """
        check_profile_name(new_name, ("body", "new_name"))
        meta = self._settings.meta_profiles
        async with self._agents.lock, self._stored.lock, meta.lock:
            profiles = dict(await self._stored.all())
            found = await self._stored.get(name)
            routing = await meta.all()
            if new_name == name:
                return
            if new_name in profiles:
                raise ProfileExists(f"There is an LLM profile {new_name} already.")
            del profiles[name]
            with trio.CancelScope(shield=True):  # half of it would leave references to nothing
                await self._stored.replace({**profiles, new_name: found})
                await self._agents.repoint(name, new_name)
                followed = {key: with_renamed_model(each, name, new_name) for key, each in routing.items()}
                if followed != routing:
                    await meta.replace(followed)
                await self._settings.update(partial(with_renamed_llm_profile, name=name, new_name=new_name))

    async def activate(self, name: str) -> bool:
        """Make the profile the active one; whether its model is now that of the agent settings: an ACP agent
        has none there. Raises UnknownProfile, SettingsError."""
        document = await self._settings.patch({"active_profile": _checked(name)})
        return "llm" in document.agent_settings


class MetaProfileStore:
    """Meta-profiles in `<state>/meta-profiles.json`. Which one is active is a field of the settings.

    Every method may raise SettingsCorrupt.
    """

    def __init__(self, settings: SettingsStore) -> None:
        self._settings = settings
        self._stored = settings.meta_profiles

    async def list(self) -> list[dict[str, Any]]:
        """A summary of each, by name."""
        return [
            {
                "name": name,
                "classifier_model": found["classifier_model"],
                "num_classes": len(found["classes"]),
            }
            for name, found in sorted((await self._stored.all()).items())
        ]

    async def get(self, name: str) -> dict[str, Any]:
        """The meta-profile of this name. Raises UnknownProfile."""
        return dict(await self._stored.get(name))

    async def save(self, name: str, body: Any) -> None:
        """Create or replace the one of this name. Raises SettingsError and TooManyProfiles."""
        await self._stored.put(_checked(name), decode_meta_profile(body, ("body",)))

    async def delete(self, name: str) -> bool:
        """Delete the one of this name; whether there was one. If it was active, none is then."""

        def forget(document: SettingsDocument) -> SettingsDocument:
            return (
                document if document.active_meta_profile != name else with_meta_profile(document, None, None)
            )

        _checked(name)
        async with self._stored.lock:
            profiles = dict(await self._stored.all())
            if profiles.pop(name, None) is None:
                return False
            with trio.CancelScope(shield=True):  # half of it would leave the settings with a name of nothing
                await self._stored.replace(profiles)
                await self._settings.update(forget)
        return True

    async def activate(self, name: str) -> bool:
        """Make it the active one; whether it is: an ACP agent routes nothing. Raises UnknownProfile."""
        document = await self._settings.patch({"active_meta_profile": _checked(name)})
        return document.active_meta_profile == name


def exposed(profile: Profile, expose: Expose, cipher: Cipher | None) -> dict[str, Any]:
    """A profile's JSON as a client may see it. Raises EncryptionUnavailable."""
    shown: dict[str, Any] = expose_secrets({"llm": profile}, expose, cipher)["llm"]
    if expose is Expose.REDACTED:
        # As the wire has it: another property says whether there is one.
        shown["api_key"] = None
    return shown


def _checked(name: str) -> str:
    check_profile_name(name, ("path", "name"))
    return name


def _summary(name: str, profile: Profile, connections: Mapping[str, Profile]) -> dict[str, Any]:
    connection_id = profile.get("provider_connection_id")
    return {
        "name": name,
        "model": profile.get("model"),
        "base_url": profile.get("base_url"),
        "provider_connection_id": connection_id,
        "provider_connection_broken": bool(connection_id) and connection_id not in connections,
        "api_key_set": has_key(linked(profile, connections)),
    }
