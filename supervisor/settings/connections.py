"""Provider connections: an API key and a base URL that several LLM profiles share."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final

import attrs

from supervisor.reading.rules import Form, Limit
from supervisor.settings.errors import ProfileReferenced, problem, read
from supervisor.settings.exposure import REDACTED
from supervisor.settings.llm import connection_of, models_of
from supervisor.settings.names import Setting
from supervisor.settings.storage.store import SettingsStore

UNCHANGED: Final = "unchanged"
"""The value of properties that a change does not mention; null would be an error."""

NOT_BLANK: Final = "[^\\s\\u001c-\\u001f\\u0085]"
"""A pattern: some character that `str.strip` keeps."""

NAME_CHARACTERS: Final = 128
URL_CHARACTERS: Final = 2048


def _real(key: str) -> str:
    if not key.strip() or key.strip() == REDACTED:
        raise ValueError("api_key must be a real key, not blank or redacted")
    return key


Key = Annotated[
    str,
    Form(
        _real, {"allOf": [{"pattern": NOT_BLANK}, {"not": {"pattern": f"^\\s*{re.escape(REDACTED)}\\s*$"}}]}
    ),
]
Name = Annotated[str, Limit(min_length=1, max_length=NAME_CHARACTERS)]
Url = Annotated[str, Limit(max_length=URL_CHARACTERS)]


@attrs.frozen(kw_only=True)
class ProviderConnectionCreateRequest(Setting):
    """A new connection."""

    FORBID: ClassVar[bool] = True

    display_name: Name
    provider: Name = "custom"
    api_key: Key = attrs.field(repr=False)
    base_url: Url | None = None


@attrs.frozen(kw_only=True)
class ProviderConnectionUpdateRequest(Setting):
    """What is to change. Only `base_url` may be null, which clears it."""

    FORBID: ClassVar[bool] = True
    SCHEMA: ClassVar[Mapping[str, Any]] = {"minProperties": 1}

    display_name: Name = UNCHANGED
    provider: Name = UNCHANGED
    api_key: Key = attrs.field(default=UNCHANGED, repr=False)
    base_url: Url | None = None


class ConnectionStore:
    """Connections in `<state>/provider-connections.json`; their keys are encrypted there.

    Every method may raise SettingsCorrupt, and what the cipher raises.
    """

    def __init__(self, settings: SettingsStore) -> None:
        self._settings = settings
        self._stored = settings.connections

    async def list(self) -> list[dict[str, Any]]:
        """All connections, without their keys."""
        found = [_shown(name, found) for name, found in (await self._stored.all()).items()]
        return sorted(found, key=lambda each: (each["created_at"], each["id"]))

    async def create(self, body: Any) -> dict[str, Any]:
        """A new connection. Raises SettingsError, TooManyProfiles."""
        given = read(ProviderConnectionCreateRequest, body, ("body",))
        now = int(time.time())
        found = {**attrs.asdict(given), "created_at": now, "updated_at": now}
        connection_id = uuid.uuid4().hex
        await self._stored.put(connection_id, found, "add")
        return _shown(connection_id, found)

    async def update(self, connection_id: str, body: Any) -> dict[str, Any]:
        """Change one. Raises SettingsError, UnknownProfile."""
        given = attrs.asdict(read(ProviderConnectionUpdateRequest, body, ("body",)))
        changes = {name: given[name] for name in given if name in body}
        if not changes:
            raise problem(("body",), "Value error, give at least one field to change", "value_error")
        async with self._stored.lock:
            found = {
                **await self._stored.get(connection_id),
                **changes,
                "updated_at": int(time.time()),
            }
            await self._stored.replace({**await self._stored.all(), connection_id: found})
        return _shown(connection_id, found)

    async def delete(self, connection_id: str) -> dict[str, Any]:
        """Delete one, and return it. Raises UnknownProfile, ProfileReferenced."""
        async with self._settings.llm_profiles.lock, self._stored.lock:
            connections = dict(await self._stored.all())
            found = await self._stored.get(connection_id)
            await self._refuse_if_used(connection_id)
            del connections[connection_id]
            await self._stored.replace(connections)
        return {**_shown(connection_id, found), "api_key_set": False}  # its key is deleted, too

    async def _refuse_if_used(self, connection_id: str) -> None:
        profiles = await self._settings.llm_profiles.all()
        users = [
            f"LLM profile {name}"
            for name, found in sorted(profiles.items())
            if connection_of(found) == connection_id
        ]
        settings = (await self._settings.get()).agent_settings
        if connection_id in map(connection_of, models_of(settings)):
            users.append("the agent settings")
        if users:
            raise ProfileReferenced(
                f"The provider connection is used by {', '.join(users)}. Choose another one there first."
            )


def _shown(connection_id: str, found: Mapping[str, Any]) -> dict[str, Any]:
    shown = ("display_name", "provider", "base_url", "created_at", "updated_at")
    return {
        "id": connection_id,
        **{name: found[name] for name in shown},
        "api_key_set": bool(found.get("api_key")),
    }
