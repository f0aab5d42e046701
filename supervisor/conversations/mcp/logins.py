"""Access tokens for MCP servers that require OAuth: stored, and renewed before they expire."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final
from weakref import WeakValueDictionary

import structlog
import trio

from supervisor.conversations.mcp.helper import START_SECONDS, HelperFailed, ask_helper
from supervisor.credentials.secret import CredentialsFailure
from supervisor.documents.port import Release
from supervisor.mcp.logins import LoginsError, LoginStore, Token

log = structlog.get_logger(__name__)

REFRESH_SECONDS: Final = 20.0
"""Seconds for a new token. An authorization server answers within one."""


LOCK_SECONDS: Final = REFRESH_SECONDS + START_SECONDS + 5.0
"""Seconds to wait for another process that renews the same login: its longest duration, and a margin."""

LOCK_LOOK_SECONDS: Final = 0.05


class NotLoggedIn(Exception):
    """There is no token for a server. The message is one line that says what to do."""


class CannotRenew(NotLoggedIn):
    """There is no token now, but there may be one later, for example when the authorization server is
    back."""


class McpLogins:
    """The logins of one state directory. Of several callers, one at a time renews a login."""

    def __init__(self, store: LoginStore, environment: Mapping[str, str], cwd: Path) -> None:
        self._store = store
        self._environment = environment
        self._cwd = cwd
        self._locks: WeakValueDictionary[str, trio.Lock] = WeakValueDictionary()
        self._limiter = trio.CapacityLimiter(1)

    async def token(self, name: str, server: Mapping[str, Any], *, refused: str | None = None) -> Token:
        """Return a valid token for the server at `server["url"]`.

        `refused`: a token that the server has refused.

        Raises NotLoggedIn, CannotRenew, and what the store's cipher raises.

        Cancellation leaves the login as it is, or renewed.
        """
        url = server["url"]
        lock = self._locks.get(url)
        if lock is None:
            lock = self._locks[url] = trio.Lock()
        async with lock:
            token = _token(name, await self._state(server))
            if _usable(token, refused):
                return token
            if token.renewable:
                try:
                    return await self._renewed(name, server, refused)
                except NotLoggedIn as error:
                    if token.value == refused or not token.alive():
                        raise
                    log.warning("login to MCP server not renewed", reason=str(error))
            if token.value == refused or not token.alive():
                raise _ended(name)
            return token  # it may still be valid for a moment

    async def check(self, name: str, server: Mapping[str, Any]) -> None:
        """Raise NotLoggedIn if there is no login to a server. Sends no request."""
        _token(name, await self._state(server))

    async def keep(self, url: str, state: Mapping[str, Any]) -> None:
        """Store a login. Raises LoginsError, and what the cipher raises."""
        with trio.CancelScope(shield=True):  # a token that was renewed may be the last one
            await trio.to_thread.run_sync(self._store.put, url, state, limiter=self._limiter)

    async def forget(self, server: Mapping[str, Any]) -> str | None:
        """Remove the login to a server, and revoke its tokens.

        Returns why the revocation failed; None if it worked. Raises NotLoggedIn if there is no login, and
        LoginsError.
        """
        url = server["url"]
        async with self._alone(url):
            try:
                state = await self.state(url)
            except (LoginsError, CredentialsFailure):
                state = None  # an unreadable login can still be removed
            if not await trio.to_thread.run_sync(self._store.drop, url, limiter=self._limiter):
                raise NotLoggedIn("there is no login")
        if state is None:
            return None
        try:
            answer = await self._ask("revoke", server, state)
        except HelperFailed as error:
            return str(error)
        return None if answer.get("ok") else str(answer.get("error"))

    async def state(self, url: str) -> dict[str, Any] | None:
        """The stored login of an address. It contains credentials."""
        return await trio.to_thread.run_sync(self._store.get, url, limiter=self._limiter)

    async def _state(self, server: Mapping[str, Any]) -> dict[str, Any] | None:
        try:
            found = await self.state(server["url"])
        except LoginsError as error:
            raise NotLoggedIn(str(error)) from error
        if found is not None:
            return found
        # A login that an API client keeps in the settings.
        given = (server.get("auth") or {}).get("state")
        return dict(given) if isinstance(given, Mapping) else None

    async def _renewed(self, name: str, server: Mapping[str, Any], refused: str | None) -> Token:
        """Renew and store the token. Raises NotLoggedIn, or CannotRenew if a later try may work."""
        with trio.CancelScope(shield=True):
            # Shielded, but bounded: if tokens rotate, a new token that is not stored ends the login.
            async with self._alone(server["url"]):
                state = await self._state(server)
                token = _token(name, state)
                if _usable(token, refused):
                    return token  # another process has renewed it, for example the command
                assert state is not None
                try:
                    answer = await self._ask("refresh", server, state)
                    if answer.get("ok"):
                        await self.keep(server["url"], answer["state"])
                        return _token(name, answer["state"])
                    if answer.get("refused") == "invalid_client":
                        # The server has dropped Ostler's registration: the next login makes another one.
                        tokens = {**state["tokens"], "refresh_token": None}
                        await self.keep(server["url"], {**state, "tokens": tokens, "client_info": None})
                except (HelperFailed, LoginsError) as error:
                    raise CannotRenew(f"cannot renew the login: {error}") from error
        reason = answer.get("error")
        log.warning("login to MCP server not renewed", reason=reason)
        if answer.get("refused"):
            raise _ended(name)
        raise CannotRenew(f"cannot renew the login now: {reason}; try again later")

    async def _ask(self, op: str, server: Mapping[str, Any], state: Mapping[str, Any]) -> dict[str, Any]:
        request = {"op": op, "server": dict(server), "state": dict(state)}
        return await ask_helper(
            request, environment=self._environment, cwd=self._cwd, seconds=REFRESH_SECONDS
        )

    @asynccontextmanager
    async def _alone(self, url: str) -> AsyncIterator[None]:
        """Hold the lock on a login, among all processes. Raises CannotRenew if that takes too long."""
        release: Release | None = None
        try:
            with trio.move_on_after(LOCK_SECONDS):
                while release is None:
                    release = await trio.to_thread.run_sync(self._store.try_lock, url, limiter=self._limiter)
                    if release is None:
                        await trio.sleep(LOCK_LOOK_SECONDS)
        except LoginsError as error:
            raise CannotRenew(str(error)) from error
        if release is None:
            raise CannotRenew("another process has been renewing the login for too long; try again later")
        try:
            yield
        finally:
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(release, limiter=self._limiter)


def with_token(entry: Mapping[str, Any], token: Token) -> dict[str, Any]:
    """A server's entry with a token in a header, in place of its login."""
    plain = {key: value for key, value in entry.items() if key != "auth"}
    headers = entry.get("headers") or {}
    given = {key: value for key, value in headers.items() if key.lower() != "authorization"}
    return {**plain, "headers": {**given, "Authorization": f"Bearer {token.value}"}}


def _token(name: str, state: Mapping[str, Any] | None) -> Token:
    token = None if state is None else Token.of(state)
    if token is None:
        raise NotLoggedIn(f"it requires a login; run `ostler mcp login {name}`")
    return token


def _usable(token: Token, refused: str | None) -> bool:
    return token.fresh() and token.value != refused


def _ended(name: str) -> NotLoggedIn:
    return NotLoggedIn(f"the login has expired; run `ostler mcp login {name}`")
