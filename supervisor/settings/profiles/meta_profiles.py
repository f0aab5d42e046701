"""The meta-profiles of a server."""

from __future__ import annotations

from typing import Any, Final

import trio

from supervisor.settings.errors import TooManyProfiles, UnknownProfile
from supervisor.settings.profiles.meta_profile import decode_meta_profile
from supervisor.settings.profiles.profile import check_profile_name
from supervisor.settings.storage.store import SettingsStore

MAX_META_PROFILES: Final = 50
"""Meta-profiles of a server; the wire's."""


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
        found = (await self._stored.all()).get(name)
        if found is None:
            raise UnknownProfile(f"There is no meta-profile {name!r}.")
        return dict(found)

    async def save(self, name: str, body: Any) -> None:
        """Create or replace the one of this name. Raises SettingsError and TooManyProfiles."""
        check_profile_name(name, ("path", "name"))
        found = decode_meta_profile(body, ("body",))
        async with self._stored.lock:
            profiles = await self._stored.all()
            if name not in profiles and len(profiles) >= MAX_META_PROFILES:
                raise TooManyProfiles(
                    f"There are {MAX_META_PROFILES} meta-profiles already. "
                    "Delete one before you save another."
                )
            await self._stored.replace({**profiles, name: found})

    async def delete(self, name: str) -> bool:
        """Delete the one of this name; whether there was one. If it was active, none is then."""
        check_profile_name(name, ("path", "name"))
        async with self._stored.lock:
            profiles = dict(await self._stored.all())
            if profiles.pop(name, None) is None:
                return False
            with trio.CancelScope(shield=True):  # half of it would leave the settings with a name of nothing
                await self._stored.replace(profiles)
                await self._settings.forget_meta_profile(name)
        return True

    async def activate(self, name: str) -> bool:
        """Make it the active one; whether it is: an ACP agent routes nothing. Raises UnknownProfile."""
        check_profile_name(name, ("path", "name"))
        document = await self._settings.patch({"active_meta_profile": name})
        return document.active_meta_profile == name
