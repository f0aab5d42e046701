"""The server's settings, kept in a document and changed one change at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import attrs
import trio

from supervisor.documents.port import Documents
from supervisor.reading.model import Location
from supervisor.settings.agent import (
    NO_BOUNDS,
    OPENHANDS,
    AgentSettings,
    BuiltInSettings,
    LimitBounds,
    Presets,
    ServerCheck,
)
from supervisor.settings.built_in import decode_built_in
from supervisor.settings.document import (
    Rules,
    SettingsDocument,
    apply_change,
    first_document,
    from_stored,
    to_stored,
    with_llm,
    with_meta_profile,
)
from supervisor.settings.errors import UnknownProfile, problem
from supervisor.settings.exposure import StorageCipher
from supervisor.settings.llm import connection_of, linked, linked_settings, models_of
from supervisor.settings.profiles.profile import profiles_from_stored
from supervisor.settings.storage.files import Collection, JsonFile

#: Names of documents.
SETTINGS_FILE: Final = "settings.json"
PROFILES_FILE: Final = "agent-profiles.json"
LLM_PROFILES_FILE: Final = "llm-profiles.json"
CONNECTIONS_FILE: Final = "provider-connections.json"
META_PROFILES_FILE: Final = "meta-profiles.json"

#: Of a server; the wire's.
MAX_LLM_PROFILES: Final = 50
MAX_CONNECTIONS: Final = 64
MAX_META_PROFILES: Final = 50


class SettingsStore:
    """Settings in the document `settings.json`, kept in memory: a file of one process is read once.

    While the document is corrupt, every method raises SettingsCorrupt, leaves it alone, and reads it again at
    the next call. All may raise DocumentsUnavailable.

    `presets` are the providers' commands, `check_server` is the mcp room's check of an entry. Credentials in
    the settings are encrypted on disk with `cipher`, whose errors propagate from every method that needs it;
    without one they are in the clear. `bounds` are the operator's limits of agents' process trees.

    Locks are taken in this order: agent profiles, `llm_profiles`, `connections` or `meta_profiles`, settings.
    """

    def __init__(
        self,
        documents: Documents,
        presets: Presets,
        check_server: ServerCheck,
        cipher: StorageCipher | None = None,
        bounds: LimitBounds = NO_BOUNDS,
    ) -> None:
        self.rules = Rules(presets, check_server, bounds)
        self._cipher = cipher
        at = documents.document
        self.profiles_file = JsonFile(at(PROFILES_FILE), profiles_from_stored)
        self.llm_profiles = Collection(at(LLM_PROFILES_FILE), cipher, "LLM profile", MAX_LLM_PROFILES)
        self.connections = Collection(at(CONNECTIONS_FILE), cipher, "provider connection", MAX_CONNECTIONS)
        self.meta_profiles = Collection(at(META_PROFILES_FILE), None, "meta-profile", MAX_META_PROFILES)
        self._file = JsonFile(at(SETTINGS_FILE), partial(from_stored, presets=presets, cipher=cipher))
        self._lock = self._file.lock

    async def get(self) -> SettingsDocument:
        """The present settings; those of a server that has not been set up are `first_document`."""
        async with self._lock.here:
            return await self._load()

    async def agent(self) -> AgentSettings:
        """The agent that new conversations get. Raises SettingsError where it cannot be run."""
        document = await self.get()
        if document.agent_settings.get("agent_kind") != OPENHANDS:
            return document.agent(self.rules.presets)
        agent = decode_built_in(document.agent_settings, ("agent_settings",), self.rules.check_server)
        return await self.linked_agent(agent)

    async def linked_agent(self, agent: AgentSettings) -> AgentSettings:
        """The agent with the present keys of the provider connections that its document, if it has one,
        names. Raises SettingsCorrupt."""
        if not isinstance(agent, BuiltInSettings):
            return agent
        assert agent.document is not None
        connections = await self.connections.all()
        document = {name: linked_settings(part, connections) for name, part in agent.document.items()}
        return attrs.evolve(agent, document=document)

    async def linked_llm(self, llm: Mapping[str, Any]) -> dict[str, Any]:
        """A model with the present key of its provider connection. Raises SettingsCorrupt."""
        return linked(llm, await self.connections.all())

    async def patch(self, body: Any) -> SettingsDocument:
        """Apply a PATCH body (`apply_change`) and store the outcome durably before returning it.

        Concurrent calls happen one after the other. Raises SettingsError, SettingsEmpty,
        UnknownProfile, SettingsCorrupt, or OSError from the disk; nothing is changed then.

        A profile that becomes active gives the built-in agent its model, unless the change has another, and
        a meta-profile its routing.
        """
        return await self.patch_with(lambda _: body)

    async def patch_with(self, make: Callable[[SettingsDocument], Any]) -> SettingsDocument:
        """As `patch`, with the body that `make` returns for the present settings; its exceptions
        propagate."""
        async with self._lock:
            document = await self._load()
            body = make(document)
            changed = apply_change(document, body, self.rules)
            profile_id = changed.active_agent_profile_id
            if "active_agent_profile_id" in body and profile_id is not None:
                known = await self.profiles_file.kept() or {}
                if all(each.id != profile_id for each in known.values()):
                    raise UnknownProfile(f"There is no agent profile with the id {profile_id}.")
            if "active_profile" in body and (name := changed.active_profile) is not None:
                await self.usable_llm(name)
                if "llm" not in (body.get("agent_settings_diff") or {}):
                    changed = with_llm(changed, await self.llm_profiles.get(name))
            if "active_meta_profile" in body:
                name = changed.active_meta_profile
                meta_profile = None if name is None else await self.meta_profiles.get(name)
                changed = with_meta_profile(changed, name, meta_profile)
            return await self._store(changed)

    async def usable_llm(self, name: str) -> dict[str, Any]:
        """An LLM profile with the credentials of its provider connection.

        Raises UnknownProfile, and SettingsError where its connection is gone.
        """
        return await self.usable(await self.llm_profiles.get(name), ("llm_profile",))

    async def usable(self, llm: Mapping[str, Any], loc: Location) -> dict[str, Any]:
        """A model with the credentials of its provider connection. Raises SettingsError where that is
        gone."""
        connections = await self.connections.all()
        connection_id = llm.get("provider_connection_id")
        if connection_id and connection_id not in connections:
            msg = "Value error, the provider connection does not exist; choose another one in the profile"
            raise problem((*loc, "provider_connection_id"), msg, "value_error")
        return linked(llm, connections)

    async def routing(self) -> dict[str, Any]:
        """The models that an agent may switch to: LLM profiles with the credentials of their connections, and
        meta-profiles. Profiles whose connection was deleted are left out. Raises SettingsCorrupt."""
        profiles, connections = await self.llm_profiles.all(), await self.connections.all()
        return {
            "llm_profiles": {
                name: linked(each, connections)
                for name, each in profiles.items()
                if (connection := connection_of(each)) is None or connection in connections
            },
            "meta_profiles": dict(await self.meta_profiles.all()),
        }

    async def linked(self, document: SettingsDocument) -> SettingsDocument:
        """The settings with the present credentials of their models' provider connections.

        These are not stored: a copy would outlive the connection's key.
        """
        if not any(connection_of(llm) for llm in models_of(document.agent_settings)):
            return document
        agent = linked_settings(document.agent_settings, await self.connections.all())
        return attrs.evolve(document, agent_settings=agent)

    async def update(self, change: Callable[[SettingsDocument], SettingsDocument]) -> None:
        """Store what `change` makes of the present settings: what follows from a change of profiles."""
        async with self._lock:
            document = await self._load()
            changed = change(document)
            if changed != document:
                await self._store(changed)

    async def _load(self) -> SettingsDocument:
        stored = await self._file.kept()
        return first_document(self.rules.presets) if stored is None else stored

    async def _store(self, document: SettingsDocument) -> SettingsDocument:
        # In a thread: the first encryption loads a large library.
        stored = await trio.to_thread.run_sync(to_stored, document, self.rules.presets, self._cipher)
        await self._file.replace(stored, document)
        return document
