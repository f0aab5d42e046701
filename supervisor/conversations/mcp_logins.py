"""Access tokens for MCP servers that want OAuth: kept, and renewed before they expire."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

import structlog
import trio

from supervisor.mcp.logins import LoginsError, LoginStore, Token

from .mcp_helper import HelperFailed, ask_helper

log = structlog.get_logger(__name__)

REFRESH_SECONDS: Final = 20.0
"""For a new token. An authorization server answers within one."""


class NotLoggedIn(Exception):
    """There is no token for a server; one line, with what to do."""


class McpLogins:
    """The logins of one state directory. Callers may be many: one at a time renews a login."""

    def __init__(self, store: LoginStore, environment: Mapping[str, str], cwd: Path) -> None:
        self._store = store
        self._environment = environment
        self._cwd = cwd
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()
        self._limiter = trio.CapacityLimiter(1)

    async def token(self, name: str, server: Mapping[str, Any], *, refused: str | None = None) -> Token:
        """A token that can be used now for the server at `server["url"]`; `refused` is one that cannot.

        Raises NotLoggedIn, and what the store's cipher raises. Cancelling it leaves the login as it is, or
        renewed.
        """
        url = server["url"]
        lock = self._locks.get(url)
        if lock is None:
            lock = self._locks[url] = trio.Lock()
        async with lock:
            state = await self._state(server)
            token = None if state is None else Token.of(state)
            if state is None or token is None:
                raise NotLoggedIn(_nobody(name))
            if token.fresh() and token.value != refused:
                return token
            if token.renewable:
                token = await self._renewed(server, state) or token
            if token.value == refused or not token.alive():
                raise NotLoggedIn(f"the login has ended: `ostler mcp login {name}`")
            return token

    async def check(self, name: str, server: Mapping[str, Any]) -> None:
        """Raise NotLoggedIn where nobody has logged in to a server. Asks nobody."""
        state = await self._state(server)
        if state is None or Token.of(state) is None:
            raise NotLoggedIn(_nobody(name))

    async def keep(self, url: str, state: Mapping[str, Any]) -> None:
        """Keep a login. Raises LoginsError, and what the cipher raises."""
        with trio.CancelScope(shield=True):  # a token that was renewed may be the last one
            await trio.to_thread.run_sync(self._store.put, url, state, limiter=self._limiter)

    async def forget(self, url: str) -> bool:
        """Forget a login; whether there was one."""
        return await trio.to_thread.run_sync(self._store.drop, url, limiter=self._limiter)

    async def state(self, url: str) -> dict[str, Any] | None:
        """The login that is kept for an address. Holds credentials."""
        return await trio.to_thread.run_sync(self._store.get, url, limiter=self._limiter)

    async def _state(self, server: Mapping[str, Any]) -> dict[str, Any] | None:
        try:
            found = await self.state(server["url"])
        except LoginsError as error:
            raise NotLoggedIn(str(error)) from error
        if found is not None:
            return found
        # What a client of the wire keeps itself, in the settings.
        given = (server.get("auth") or {}).get("state")
        return dict(given) if isinstance(given, Mapping) else None

    async def _renewed(self, server: Mapping[str, Any], state: Mapping[str, Any]) -> Token | None:
        """A new token, kept; None where there was none to be had. The old one may do for a moment yet."""
        ask = partial(ask_helper, environment=self._environment, cwd=self._cwd, seconds=REFRESH_SECONDS)
        try:
            with trio.CancelScope(shield=True):
                # Bounded. Where tokens rotate, one that is asked for and not kept ends the login.
                answer = await ask({"op": "refresh", "server": dict(server), "state": dict(state)})
                if answer.get("ok"):
                    await self.keep(server["url"], answer["state"])
        except (HelperFailed, LoginsError) as error:
            log.warning("a login to an MCP server could not be renewed", error=str(error))
            answer = {}
        if answer.get("ok"):
            return Token.of(answer["state"])
        # Perhaps somebody else was quicker: the command beside the server.
        now = await self._state(server)
        token = None if now is None else Token.of(now)
        before = Token.of(state)
        if token is not None and before is not None and token.value != before.value:
            return token
        log.warning("a login to an MCP server was not renewed", reason=answer.get("error"))
        return None


def _nobody(name: str) -> str:
    return f"nobody has logged in to it: `ostler mcp login {name}`"
