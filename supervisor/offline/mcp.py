"""Tries one MCP server, and logs in to it and out, with the secrets of a state directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final

import attrs

from supervisor.conversations.mcp.helper import HelperFailed
from supervisor.conversations.mcp.logins import CannotRenew, McpLogins, NotLoggedIn
from supervisor.conversations.mcp.probe import CannotTry, Login, McpProbe
from supervisor.credentials.os_keyring import OsKeyring
from supervisor.credentials.secret import CredentialsFailure
from supervisor.credentials.store import SecretStore
from supervisor.documents.port import Documents
from supervisor.mcp.entry import uses_oauth
from supervisor.mcp.logins import LoginsError, LoginStore
from supervisor.settings.exposure import unseal

__all__ = ["FAILURES", "CannotRenew", "Login", "McpServer", "NotLoggedIn", "open_server"]

FAILURES: Final = (CredentialsFailure, LoginsError, CannotTry, HelperFailed)
"""Errors that all functions here may raise. The message is one line."""


@attrs.frozen
class McpServer:
    """One server, with what a connection needs. `entry` is in the settings' shape."""

    name: str
    entry: Mapping[str, Any] = attrs.field(repr=False)
    _secrets: Mapping[str, str] = attrs.field(repr=False)
    _probe: McpProbe

    async def test(self, seconds: float) -> dict[str, Any]:
        """Connect, and list the tools. Returns the answer of the wire."""
        return await self._probe.test(self.name, self.entry, self._secrets, seconds=seconds)

    def login(self) -> AbstractAsyncContextManager[Login]:
        """Log in while the block runs, which drives the login by `Login.event`."""
        return self._probe.login(self.name, self.entry, self._secrets)

    async def logout(self) -> str | None:
        """Forget the login. Returns why its tokens could not be revoked. Raises NotLoggedIn, CannotRenew."""
        entry = self._probe.resolved(self.name, self.entry, self._secrets)
        if not entry.get("url"):
            raise NotLoggedIn(self.name)
        return await self._probe.logins.forget(entry)


async def open_server(
    state: Path,
    name: str,
    entry: Mapping[str, Any],
    environment: Mapping[str, str],
    keys: Callable[[], Mapping[str, str]],
    *,
    sealed: bool,
    keyring: bool,
    documents: Documents,
) -> McpServer:
    """Return the server of an entry. `sealed`: the entry is of the settings, which encrypt its credentials.
    `documents`: those of the server.

    `keys` reads the variables with the keys of Ostler's server, where the entry needs secrets.
    """
    secrets: Mapping[str, str] = {}
    store: SecretStore | None = None
    if sealed or uses_oauth(entry) or "${" in str(entry):
        ring = OsKeyring(environment) if keyring else None
        store = await SecretStore.open(state, keys(), keyring=ring, documents=documents)
        secrets = await store.values()
        if sealed:
            entry = unseal({"mcp_config": {name: entry}}, store.cipher)["mcp_config"][name]
    logins = McpLogins(LoginStore(documents, _Cipher(store)), environment, Path.cwd())
    return McpServer(name, entry, secrets, McpProbe(environment, Path.cwd(), logins))


@attrs.frozen
class _Cipher:
    """The secret store's cipher. `store` is None if there is nothing to encrypt or decrypt."""

    store: SecretStore | None

    def encrypt(self, data: bytes) -> str:
        assert self.store is not None
        return self.store.cipher.encrypt(data)

    def decrypt(self, token: str) -> bytes:
        assert self.store is not None
        return self.store.cipher.decrypt(token)
