"""Connects to an MCP server as an agent would, to test it; and logs in to it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import attrs

from supervisor.conversations.mcp.helper import Helper, HelperFailed, ask_helper, run_helper
from supervisor.conversations.mcp.logins import McpLogins, NotLoggedIn, with_token
from supervisor.credentials.masking import Masker
from supervisor.credentials.secret import CredentialsFailure
from supervisor.mcp.configured import FROM_CONVERSATION, Server, resolve, without_secrets
from supervisor.mcp.entry import uses_oauth
from supervisor.mcp.forward import forward_servers
from supervisor.settings.exposure import secrets_of

EVERYTHING: Final = {"http": True, "sse": True}
"""The capabilities of an agent that supports every transport."""

LOGIN_SECONDS: Final = 600.0
"""Seconds for a login: a person has to find the password and the second factor."""


class CannotTry(Exception):
    """The server was not contacted. The message is one line that says what to check, without values. `kind`:
    the API's error kind."""

    def __init__(self, reason: str, kind: str = "unknown") -> None:
        super().__init__(reason)
        self.kind = kind


@attrs.frozen
class McpProbe:
    """Connects to MCP servers on behalf of a person.

    `environment`: that of the caller; commands are looked for on its PATH and started in `cwd`.
    """

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
        """Connect to a server and list its tools. Returns the API's answer, with objects as `tools`.

        `entry`: a valid entry in the form of the settings. `secrets`: the values that it may refer to.
        `seconds`: the limit, besides the time of a start.

        Cancellation ends what it started.
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
        """The entry as an agent would get it, and a masker for its values. Raises CannotTry."""
        given = self.resolved(name, entry, secrets)
        if uses_oauth(given):
            try:
                token = await self.logins.token(name, given)
            except (NotLoggedIn, CredentialsFailure) as error:
                raise CannotTry(f"Authentication: {error}") from error
            given = with_token(given, token)
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
        """Return the entry with the secrets in it. Raises CannotTry."""
        given, missing = resolve(Server(name, FROM_CONVERSATION, entry), secrets)
        if missing:
            raise CannotTry(f"Secrets: {without_secrets(missing)}.")
        return given

    @asynccontextmanager
    async def login(
        self, name: str, entry: Mapping[str, Any], secrets: Mapping[str, str]
    ) -> AsyncIterator[Login]:
        """Log in to a remote server while the block runs; the block drives the login by `Login.event`.

        Raises CannotTry, HelperFailed, and what the store of logins raises.

        Cancellation ends the login.
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
    """A login in progress."""

    _helper: Helper
    _logins: McpLogins
    _url: str
    _mask: Masker

    async def event(self) -> dict[str, Any]:
        """Wait for the next event.

        `authorize` has the `url` for a person. `refused` follows an invalid answer. `done` is the outcome;
        the login is stored by then.

        Raises HelperFailed, and what the store of logins raises.
        """
        event = await self._helper.event()
        if event.get("event") != "done":
            return event
        state = event.pop("state", None)
        if event.get("ok") and event.get("renewed") and isinstance(state, Mapping):
            await self._logins.keep(self._url, state)
            event["oauth_state"] = state
        return _masked(event, self._mask)

    async def answer(self, **given: str) -> None:
        """Pass on the browser's answer: `callback_url`, or `code`. Raises HelperFailed."""
        await self._helper.send(given)


def _masked(answer: Mapping[str, Any], mask: Masker) -> dict[str, Any]:
    """Masks secrets in a server's answer, which may repeat what it was sent. The login's state is never
    shown."""
    return {key: value if key == "oauth_state" else mask.value(value) for key, value in answer.items()}


def _mask(entry: Mapping[str, Any], secrets: Mapping[str, str]) -> Masker:
    return Masker([*secrets.values(), *secrets_of({"mcp_config": {"x": entry}})])


def _named(pairs: list[dict[str, str]]) -> dict[str, str]:
    return {pair["name"]: pair["value"] for pair in pairs}


def _reason(entry: Mapping[str, Any], reason: str) -> str:
    if entry.get("command") is not None:
        return f"Command not found: {entry['command']} is not on PATH, or not executable. Check the command."
    return reason
