"""A short-lived process that uses one MCP server, by the MCP SDK: `python -P -m supervisor.mcp.helper`.

The SDK takes most of a second and tens of megabytes to import, starts processes, and sends requests to
untrusted addresses. So it never runs in the server, but here, where it is bounded, and ended with all of its
child processes.

Standard input has one JSON object, the request. Standard output gets a line of JSON for each event, the last
of which is `{"event": "done", ...}`. The process ends when its input ends. Operations (`op`):

`test`     `server` (an entry in the settings' shape, secrets in place), `tool_call`: connect, list the tools.
`login`    `server`, `state`: the OAuth flow. Sends `{"event": "authorize", "url", "redirect_uri"}`, and
           takes the browser's answer on a loopback address, or as `{"callback_url": ...}` or `{"code": ...}`
           from the input.
`refresh`  `server`, `state`: a new access token.
`revoke`   `server`, `state`: revoke the login at the authorization server.

`state` holds a login: client registration, tokens, their expiry (seconds since the epoch), and the
authorization server's addresses.
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

import trio

from supervisor.mcp.answers import Answers, Command
from supervisor.mcp.callback import Callback
from supervisor.mcp.diagnosis import Diagnosis, diagnose, too_much
from supervisor.mcp.entry import transport_of
from supervisor.mcp.renewal import Login, client, refresh, revoke
from supervisor.version import __version__

MAX_INPUT: Final = 1024 * 1024
"""Bytes of what is asked, and of a line that follows."""

MAX_TOOLS: Final = 1000
MAX_PAGES: Final = 100
MAX_NAME: Final = 200
MAX_TEXT: Final = 64 * 1024
"""Bounds of a server's data in events: tools and pages of them, characters of a name and of a result."""

CONNECT_SECONDS: Final = 10.0

MARKER: Final = "OSTLER_AGENT"
"""The process marker: the variable by which child processes are found. The SDK passes on few variables."""


class Talk:
    """The two ends of this process: requests come in, events go out."""

    def __init__(self) -> None:
        self._input = trio.lowlevel.FdStream(os.dup(sys.stdin.fileno()))
        self._output = os.dup(sys.stdout.fileno())
        # What a library prints is not an event.
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        self._buffer = bytearray()

    async def line(self) -> dict[str, Any] | None:
        """The next object that came in; None at the end of the input, or at what is none."""
        while (end := self._buffer.find(b"\n")) < 0:
            data = await self._input.receive_some(65536)
            if not data or len(self._buffer) > MAX_INPUT:
                return None
            self._buffer += data
        text = bytes(self._buffer[:end])
        del self._buffer[: end + 1]
        try:
            found = json.loads(text)
        except ValueError:
            return None
        return found if isinstance(found, dict) else None

    def tell(self, event: str, **fields: Any) -> None:
        """Send an event."""
        data = json.dumps({"event": event, **fields}).encode() + b"\n"
        while data:
            data = data[os.write(self._output, data) :]


async def main() -> None:
    """Do what is asked; the last event is `done`."""
    talk = Talk()
    request = await talk.line()
    if request is None:
        return
    seconds = float(request.get("timeout", 30.0))
    _load(request)
    answers = Answers()
    diagnosis = Diagnosis(request["server"], answers)
    result: dict[str, Any] = {}
    async with trio.open_nursery() as nursery:
        callback = Callback()

        async def listen() -> None:
            while (line := await talk.line()) is not None:
                if not callback.take(line.get("callback_url"), line.get("code")):
                    talk.tell("refused", whole=callback.whole)
            nursery.cancel_scope.cancel()  # the input has ended: the server is gone

        nursery.start_soon(listen)
        work = trio.CancelScope()

        async def guard() -> None:
            await answers.over.wait()
            work.cancel()  # the SDK may wait for the rest of an answer that was too long

        nursery.start_soon(guard)
        try:
            with work, trio.fail_after(seconds):
                if request["op"] == "login":
                    result = await _login(request, talk, callback, diagnosis)
                elif request["op"] == "refresh":
                    result = await refresh(request, answers)
                elif request["op"] == "revoke":
                    result = await revoke(request, answers)
                else:
                    result = await _test(request, diagnosis)
        except Exception as error:  # noqa: BLE001 - it is reported
            # Report every error as an event: the server does not show tracebacks of this process.
            result = diagnose(error, diagnosis, seconds)
        if answers.over.is_set():
            result = too_much(diagnosis)
        talk.tell("done", **result)
        nursery.cancel_scope.cancel()


def _load(request: Mapping[str, Any]) -> None:
    """Import the SDK before time counts: on a busy machine that takes seconds."""
    importlib.import_module("mcp.client.auth")
    if request["op"] in ("test", "login"):
        importlib.import_module("mcp")


async def _test(request: Mapping[str, Any], diagnosis: Diagnosis) -> dict[str, Any]:
    async with _transport(request["server"], diagnosis, None) as transport:
        return await _tools(transport, request.get("tool_call"))


async def _tools(transport: Any, tool_call: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What a server offers over this transport; with `tool_call` one of its tools is called, too."""
    from mcp import Client
    from mcp.types import Implementation

    async with Client(transport, client_info=Implementation(name="ostler", version=__version__)) as client:
        tools: list[dict[str, str]] = []
        cursor: str | None = None
        for _ in range(MAX_PAGES):
            page = await client.list_tools(cursor=cursor)
            tools += [
                {"name": tool.name[:MAX_NAME], "description": (tool.description or "")[:MAX_NAME]}
                for tool in page.tools
            ]
            cursor = page.next_cursor
            if cursor is None or len(tools) >= MAX_TOOLS:
                break
        found: dict[str, Any] = {"ok": True, "tools": tools[:MAX_TOOLS]}
        if tool_call is not None:
            result = await client.call_tool(tool_call["name"], tool_call.get("arguments") or {})
            texts = [part.text for part in result.content if part.type == "text"]
            found["tool_result"] = {"is_error": bool(result.is_error), "text": "\n".join(texts)[:MAX_TEXT]}
        return found


@asynccontextmanager
async def _transport(server: Mapping[str, Any], diagnosis: Diagnosis, auth: Any) -> AsyncIterator[Any]:
    """A transport of the SDK to this server; what it says on standard error is kept for the diagnosis."""
    from mcp.client.sse import sse_client
    from mcp.client.streamable_http import streamable_http_client

    async with AsyncExitStack() as stack:
        kind = transport_of(server)
        if kind == "stdio":
            marker = {MARKER: os.environ[MARKER]} if MARKER in os.environ else {}
            command = Command(server, {**marker, **(server.get("env") or {})}, diagnosis.answers)
            try:
                yield command.transport()
            finally:
                diagnosis.stderr = command.stderr.decode("utf-8", "replace")
        elif kind == "sse":
            yield sse_client(
                server["url"],
                headers=dict(server.get("headers") or {}),
                timeout=CONNECT_SECONDS,
                httpx_client_factory=diagnosis.client,
                auth=auth,
            )
        else:
            client = await stack.enter_async_context(diagnosis.client(server.get("headers"), None, auth))
            yield streamable_http_client(server["url"], http_client=client)


async def _login(
    request: Mapping[str, Any], talk: Talk, callback: Callback, diagnosis: Diagnosis
) -> dict[str, Any]:
    from mcp.shared.auth import AuthorizationCodeResult

    server = request["server"]
    before = request.get("state") or {}
    async with callback.listening(_old_port(before)) as redirect_uri:
        login = Login(_begin(server, before, redirect_uri))

        async def authorize(url: str) -> None:
            known = login.context.oauth_metadata
            whole = known is not None and known.authorization_response_iss_parameter_supported is True
            callback.expect(url, whole=whole)
            await trio.lowlevel.checkpoint()
            talk.tell("authorize", url=url, redirect_uri=redirect_uri, whole=whole)

        async def answered() -> Any:
            return AuthorizationCodeResult(**await callback.answer())

        provider = client(server, login, redirect_uri, redirect_handler=authorize, callback_handler=answered)
        async with _transport(server, diagnosis, provider) as transport:
            result = await _tools(transport)
    return {**result, "renewed": login.renewed, "state": login.remember()}


def _begin(server: Mapping[str, Any], before: Mapping[str, Any], redirect_uri: str) -> dict[str, Any]:
    """What of an earlier login goes into the next one: the registration, where it fits, and no token."""
    wanted = (server.get("auth") or {}).get("authentication") or {}
    if wanted.get("client_id"):
        method = wanted.get("client_auth_method")
        secret = wanted.get("client_secret")
        return {
            "client_info": {
                "client_id": wanted["client_id"],
                "redirect_uris": [redirect_uri],
                "token_endpoint_auth_method": method or ("client_secret_post" if secret else "none"),
                **({"client_secret": secret} if secret else {}),
            }
        }
    registered = before.get("client_info") or {}
    return {"client_info": registered} if redirect_uri in (registered.get("redirect_uris") or ()) else {}


def _old_port(before: Mapping[str, Any]) -> int:
    """The port that the client is registered with, 0 for any."""
    from urllib.parse import urlsplit

    uris = (before.get("client_info") or {}).get("redirect_uris") or [""]
    try:
        return urlsplit(uris[0]).port or 0
    except ValueError:
        return 0


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)  # the SDK logs failures with all that came in
    trio.run(main)
