"""Connects to an MCP server as an agent would, to test it; and logs in to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs

from supervisor.conversations.mcp.helper import Helper, HelperFailed, ask_helper, run_helper
from supervisor.conversations.mcp.logins import McpLogins, NotLoggedIn
from supervisor.credentials import CredentialsFailure
from supervisor.credentials.masking import Masker
from supervisor.mcp import forward_servers
from supervisor.mcp.configured import FROM_CONVERSATION, Server, resolve, without_secrets
from supervisor.mcp.entry import uses_oauth
from supervisor.settings import secrets_of

EVERYTHING: Final = {"http": True, "sse": True}
"""Capabilities of an agent that takes every transport."""

LOGIN_SECONDS: Final = 600.0
"""For a person to find the password, and the second factor."""


class CannotTry(Exception):
    """Nothing was asked of the server; one line with what to check, no values. `kind` is the wire's."""

    def __init__(self, reason: str, kind: str = "unknown") -> None:
        super().__init__(reason)
        self.kind = kind


@attrs.frozen
class McpProbe:
    """Speaks to MCP servers on behalf of a person. `environment` is that of the caller; commands are looked
    for with its PATH and started in `cwd`."""

    environment: Mapping[str, str] = attrs.field(repr=False)
    cwd: Path
    logins: McpLogins

    async def test(
        self,
        name: str,
        entry: Mapping[str, Any],
        secrets: Mapping[str, str],
        *,
        seconds: float,
        tool_call: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Connect and list the tools: the wire's answer, with objects as `tools`. `entry` is valid, in the
        settings' shape; `secrets` are what its values may name.

        Bounded by `seconds` and what a start takes. Cancelling it ends what it started.
        """
        try:
            server, mask = await self._ready(name, entry, secrets)
            answer = await ask_helper(
                {"op": "test", "server": server, "tool_call": tool_call},
                environment=self.environment,
                cwd=self.cwd,
                seconds=seconds,
            )
        except CannotTry as error:
            return {"ok": False, "error": str(error), "error_kind": error.kind}
        except HelperFailed as error:
            return {"ok": False, "error": str(error), "error_kind": "unknown"}
        return _masked(answer, mask)

    async def _ready(
        self, name: str, entry: Mapping[str, Any], secrets: Mapping[str, str]
    ) -> tuple[dict[str, Any], Masker]:
        """The entry as an agent would get it, and what hides the values in it. Raises CannotTry."""
        given = self.resolved(name, entry, secrets)
        if uses_oauth(given):
            try:
                token = await self.logins.token(name, given)
            except (NotLoggedIn, CredentialsFailure) as error:
                raise CannotTry(f"Authentication: {error}") from error
            plain = {key: value for key, value in given.items() if key != "auth"}
            given = {
                **plain,
                "headers": {**(given.get("headers") or {}), "Authorization": f"Bearer {token.value}"},
            }
        forwarded = await forward_servers(
            {name: {**given, "enabled": True}},
            EVERYTHING,
            workspace=self.cwd,
            search_path=self.environment.get("PATH"),
        )
        if forwarded.dropped:
            raise CannotTry(_reason(given, forwarded.dropped[0][1]), "connection")
        (acp,) = forwarded.servers
        server: dict[str, Any]
        if "command" in acp:
            server = {"command": acp["command"], "args": acp["args"], "env": _named(acp["env"])}
            if given.get("cwd"):
                server["cwd"] = str(self.cwd / given["cwd"])
        else:
            server = {"url": acp["url"], "transport": acp["type"], "headers": _named(acp["headers"])}
        return server, _mask(given, secrets)

    def resolved(self, name: str, entry: Mapping[str, Any], secrets: Mapping[str, str]) -> dict[str, Any]:
        """The entry with the secrets in it. Raises CannotTry."""
        given, missing = resolve(Server(name, FROM_CONVERSATION, entry), secrets)
        if missing:
            raise CannotTry(f"Secrets: {without_secrets(missing)}.")
        return given

    @asynccontextmanager
    async def login(
        self, name: str, entry: Mapping[str, Any], secrets: Mapping[str, str]
    ) -> AsyncIterator[Login]:
        """Log in to a remote server, in the block, which has to see it through (`Login.event`).

        Raises CannotTry, HelperFailed, and what the store of logins raises. Cancelling it ends the login.
        """
        given = self.resolved(name, entry, secrets)
        if given.get("url") is None:
            raise CannotTry("A command has no login. Give it credentials with --env.")
        try:
            before = await self.logins.state(given["url"])
        except CredentialsFailure as error:
            raise CannotTry(f"Authentication: {error}") from error
        request = {"op": "login", "server": given, "state": before, "timeout": LOGIN_SECONDS}
        async with run_helper(request, environment=self.environment, cwd=self.cwd) as helper:
            yield Login(helper, self.logins, given["url"], _mask(given, secrets))


@attrs.define
class Login:
    """A login under way."""

    _helper: Helper
    _logins: McpLogins
    _url: str
    _mask: Masker

    async def event(self) -> dict[str, Any]:
        """What happens next: `authorize` with the `url` for a person, `refused` for an answer that is none,
        and at last `done`, the outcome - by then the login is kept. Raises HelperFailed and what the store
        of logins raises."""
        event = await self._helper.event()
        if event.get("event") != "done":
            return event
        state = event.pop("state", None)
        if event.get("ok") and event.get("renewed") and isinstance(state, Mapping):
            await self._logins.keep(self._url, state)
            event["oauth_state"] = state
        return _masked(event, self._mask)

    async def answer(self, **given: str) -> None:
        """The answer of the browser: `callback_url`, or `code`. Raises HelperFailed."""
        await self._helper.send(given)


def _masked(answer: Mapping[str, Any], mask: Masker) -> dict[str, Any]:
    """What a server said may hold what it was told. The login's state is not for showing as it is anyway."""
    return {key: value if key == "oauth_state" else mask.value(value) for key, value in answer.items()}


def _mask(entry: Mapping[str, Any], secrets: Mapping[str, str]) -> Masker:
    return Masker([*secrets.values(), *secrets_of({"mcp_config": {"x": entry}})])


def _named(pairs: list[dict[str, str]]) -> dict[str, str]:
    return {pair["name"]: pair["value"] for pair in pairs}


def _reason(entry: Mapping[str, Any], reason: str) -> str:
    if entry.get("command") is not None:
        return f"Command not found: {entry['command']} is not on PATH, or not executable. Check the command."
    return reason
