"""Encrypts the secrets of one conversation, so that its record never holds one in the clear."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import attrs
import orjson
import trio

from supervisor.conversations.state.record import PARTS, ConversationRecord
from supervisor.credentials.source import LookupSecret
from supervisor.origin import shown_origin
from supervisor.settings.agent import AgentSettings, agent_settings_from_dict, agent_settings_to_dict
from supervisor.settings.built_in import (
    hidden_within,
    open_document,
    seal_document,
    secrets_within,
    without_placeholders,
)
from supervisor.settings.exposure import StorageCipher, seal, unseal

_limiter: Final = trio.CapacityLimiter(2)
"""Threads that may encrypt at the same time: the work is short, but the first one loads a large library."""


@attrs.frozen
class SecretBox:
    """Encrypts and decrypts secrets in a thread. Cancellation waits for that thread."""

    cipher: StorageCipher = attrs.field(repr=False)

    async def seal(self, secrets: Mapping[str, str]) -> dict[str, str]:
        """Encrypt the values."""
        if not secrets:
            return {}
        return await trio.to_thread.run_sync(
            partial(_each, secrets, lambda value: self.cipher.encrypt(value.encode())), limiter=_limiter
        )

    async def open(self, sealed: Mapping[str, str]) -> dict[str, str]:
        """Decrypt the values."""
        if not sealed:
            return {}
        return await trio.to_thread.run_sync(
            partial(_each, sealed, lambda token: self.cipher.decrypt(token).decode()), limiter=_limiter
        )

    async def seal_lookups(self, sources: Mapping[str, LookupSecret]) -> dict[str, dict[str, Any]]:
        """Encrypt the sources of fetched secrets. The part that clients may read is stored next to the
        token."""
        tokens = await self.seal({name: _spelled(source) for name, source in sources.items()})
        return {
            name: {"url": shown_origin(source.url), "description": source.description, "sealed": tokens[name]}
            for name, source in sources.items()
        }

    async def open_lookups(self, sealed: Mapping[str, Mapping[str, Any]]) -> dict[str, LookupSecret]:
        """Decrypt the sources of fetched secrets."""
        opened = await self.open({name: each["sealed"] for name, each in sealed.items()})
        return {name: LookupSecret(**orjson.loads(spelled)) for name, spelled in opened.items()}

    async def seal_parts(self, record: ConversationRecord) -> None:
        """Encrypt what of a new record holds secrets apart from its agent."""
        for name in PARTS:
            value = record.part(name)
            if value is not None:
                record.keep_part(name, *await self.seal_part(value))

    async def seal_part(self, value: Any) -> tuple[Any, str | None]:
        """One of these, without placeholders, and as it is stored if it holds secrets."""
        cleaned = without_placeholders(value)
        if hidden_within(cleaned) == cleaned:
            return cleaned, None
        return cleaned, (await self.seal({"part": orjson.dumps(cleaned).decode()}))["part"]

    async def open_parts(self, record: ConversationRecord) -> list[str]:
        """Decrypt them in place. Returns the secrets in them."""
        tokens = dict(record.parts)
        for name, text in (await self.open(tokens)).items():
            if record.parts.get(name) == tokens[name]:  # else it was changed meanwhile
                record.keep_part(name, orjson.loads(text), tokens[name])
        return secrets_within([record.part(name) for name in PARTS])

    async def seal_settings(self, settings: AgentSettings) -> AgentSettings:
        """Encrypt the credentials inside agent settings (those of MCP servers), for storing; of the built-in
        agent all that it is started with."""
        sealed = await self._in_settings(settings, seal)
        if not sealed.has_document:
            return sealed
        return await trio.to_thread.run_sync(seal_document, sealed, self.cipher, limiter=_limiter)

    async def open_settings(self, settings: AgentSettings) -> AgentSettings:
        """Decrypt the credentials inside stored agent settings, for use. What an earlier release
        stored in the clear stays."""
        if settings.has_document:
            settings = await trio.to_thread.run_sync(open_document, settings, self.cipher, limiter=_limiter)
        return await self._in_settings(settings, unseal)

    async def _in_settings(
        self, settings: AgentSettings, change: Callable[[Mapping[str, Any], StorageCipher], dict[str, Any]]
    ) -> AgentSettings:
        if not settings.mcp_config and not settings.agent_context:
            return settings
        cipher = self.cipher

        def changed() -> AgentSettings:
            return agent_settings_from_dict(change(agent_settings_to_dict(settings), cipher))

        return await trio.to_thread.run_sync(changed, limiter=_limiter)


def split_secrets(
    secrets: Mapping[str, str | LookupSecret],
) -> tuple[dict[str, str], dict[str, LookupSecret]]:
    """Values, and where others are fetched from."""
    values = {name: given for name, given in secrets.items() if isinstance(given, str)}
    return values, {name: given for name, given in secrets.items() if isinstance(given, LookupSecret)}


def _spelled(source: LookupSecret) -> str:
    return orjson.dumps(
        {"url": source.url, "headers": dict(source.headers), "description": source.description}
    ).decode()


def _each(values: Mapping[str, str], change: Callable[[str], str]) -> dict[str, str]:
    return {name: change(value) for name, value in values.items()}
