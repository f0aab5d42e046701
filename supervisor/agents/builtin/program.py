"""The agent as a program: ACP's methods on the standard streams."""

from __future__ import annotations

import asyncio
import contextlib
import os
import uuid
from typing import Any

PROTOCOL_VERSION = 1

CLOSE_SECONDS = 3.0
"""How long tools may take to end when the client has gone; Ostler ends their processes after this one."""

QUIET = {
    "OPENHANDS_SUPPRESS_BANNER": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it is downloaded when litellm is imported
    "LITELLM_TELEMETRY": "False",
    "ANONYMIZED_TELEMETRY": "false",
    "LOG_JSON": "0",
}
"""Variables that keep the libraries from the network, and from the output, while they are imported."""


def main() -> int:
    """Serve one client until the input ends."""
    reading, writing = os.dup(0), os.dup(1)
    # Libraries print: what they say goes to the log, and what they read is empty.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    from .wire import Wire

    loop = asyncio.new_event_loop()
    loop.run_until_complete(_serve(Wire(reading, writing)))
    # Neither threads of tools nor their processes keep this one: what counts is on the disk.
    os._exit(0)


async def _serve(wire: Any) -> None:
    agent = BuiltIn(wire)
    try:
        await wire.serve(
            {
                "initialize": agent.initialize,
                "session/new": agent.new,
                "session/load": agent.load,
                "session/resume": agent.load,
                "session/fork": agent.fork,
                "session/close": agent.close,
                "session/prompt": agent.prompt,
                "_ostler/ask": agent.ask,
                "_ostler/condense": agent.condense,
                "_ostler/configure": agent.configure,
                "_ostler/load_plugin": agent.load_plugin,
                "_ostler/navigate": agent.navigate,
                "_ostler/title": agent.title,
            },
            {"session/cancel": agent.cancel},
        )
    finally:
        await agent.close_all()


class BuiltIn:
    """The methods of ACP, and Ostler's own. Sessions live as long as the process, or until they are closed."""

    def __init__(self, wire: Any) -> None:
        self._wire = wire
        self._sessions: dict[str, Any] = {}
        self._ready: asyncio.Task[None] | None = None

    async def initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        """Answer the handshake at once; the SDK is imported meanwhile."""
        self._ready = asyncio.create_task(asyncio.to_thread(_import_sdk))
        return {
            "protocolVersion": PROTOCOL_VERSION,
            "agentInfo": {"name": "openhands", "title": "OpenHands", "version": _version()},
            "agentCapabilities": {
                "loadSession": True,
                "promptCapabilities": {"image": True, "embeddedContext": True},
                "mcpCapabilities": {"http": True, "sse": True},
                "sessionCapabilities": {"resume": {}, "close": {}, "fork": {}},
                "_meta": {"ostler": {"events": 1}},
            },
            "authMethods": [],
        }

    async def new(self, params: dict[str, Any]) -> dict[str, Any]:
        """Start a conversation."""
        given = _given(params)
        session_id = str(uuid.UUID(given["conversation_id"]) if "conversation_id" in given else uuid.uuid4())
        await self._open(session_id, params, given)
        return {"sessionId": session_id}

    async def load(self, params: dict[str, Any]) -> dict[str, Any]:
        """Take up a conversation from its directory. Nothing is told again: Ostler has it."""
        given = _given(params)
        session_id = str(uuid.UUID(params["sessionId"]))
        directory = os.path.join(given["persistence_dir"], uuid.UUID(session_id).hex)
        if not await asyncio.to_thread(os.path.exists, os.path.join(directory, "base_state.json")):
            raise _refused(-32002, f"Session not found: {session_id}")
        await self._open(session_id, params, given)
        return {}

    async def fork(self, params: dict[str, Any]) -> dict[str, Any]:
        """Copy a conversation, as far as an event if one is named; the copy is only stored, not opened."""
        session = self._session(params)
        given = (params.get("_meta") or {}).get("ostler") or {}
        new_id = uuid.UUID(given["conversation_id"]) if "conversation_id" in given else uuid.uuid4()

        def copy() -> None:
            made = session.conversation.fork(
                conversation_id=new_id, from_event_id=given.get("from_event_id"), reset_metrics=True
            )
            made.close()

        await _threaded(copy)
        return {"sessionId": str(new_id)}

    async def close(self, params: dict[str, Any]) -> dict[str, Any]:
        """End a session's tools; the conversation stays on the disk."""
        session = self._session(params)
        session.cancel()
        del self._sessions[session.id]
        await asyncio.to_thread(session.close)
        return {}

    async def close_all(self) -> None:
        """The input has ended."""
        for session in self._sessions.values():
            session.cancel()
        closing = (asyncio.to_thread(session.close) for session in self._sessions.values())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.gather(*closing, return_exceptions=True)

    async def prompt(self, params: dict[str, Any]) -> dict[str, Any]:
        """A turn. Without a message the agent continues where it stopped."""
        session = self._session(params)
        given = (params.get("_meta") or {}).get("ostler") or {}
        return await session.prompt(  # type: ignore[no-any-return]
            given.get("message_id"), given.get("message"), params.get("prompt") or [], given.get("sender")
        )

    def cancel(self, params: dict[str, Any]) -> None:
        """Interrupt a turn; called on the reading thread."""
        session = self._sessions.get(params.get("sessionId", ""))
        if session is not None:
            session.cancel()

    async def configure(self, params: dict[str, Any]) -> dict[str, Any]:
        """Policy, analyzer, secrets or model, from now on."""
        session = self._session(params)
        await _threaded(session.configure, params)
        return {}

    async def ask(self, params: dict[str, Any]) -> dict[str, Any]:
        """A question beside the conversation."""
        session = self._session(params)
        return {"response": await _threaded(session.conversation.ask_agent, params["question"])}

    async def condense(self, params: dict[str, Any]) -> dict[str, Any]:
        """Summarize the history now."""
        await _threaded(self._session(params).conversation.condense)
        return {}

    async def title(self, params: dict[str, Any]) -> dict[str, Any]:
        """A title by the model."""
        return {"title": await _threaded(self._session(params).conversation.generate_title)}

    async def navigate(self, params: dict[str, Any]) -> dict[str, Any]:
        """Continue from another event."""
        await _threaded(self._session(params).conversation.navigate_to, params.get("event_id"))
        return {}

    async def load_plugin(self, params: dict[str, Any]) -> dict[str, Any]:
        """Load a plugin into the conversation."""
        await _threaded(self._session(params).conversation.load_plugin, params["plugin_ref"])
        return {}

    async def _open(self, session_id: str, params: dict[str, Any], given: dict[str, Any]) -> None:
        if self._ready is None:
            raise _refused(-32600, "Not initialized. Send initialize first.")
        await self._ready
        from .session import Session

        self._sessions[session_id] = await asyncio.to_thread(
            Session, self._wire, session_id, params["cwd"], params.get("mcpServers") or [], given
        )

    def _session(self, params: dict[str, Any]) -> Any:
        session = self._sessions.get(params.get("sessionId", ""))
        if session is None:
            raise _refused(-32002, f"Session not found: {params.get('sessionId')}")
        return session


def _given(params: dict[str, Any]) -> dict[str, Any]:
    given = (params.get("_meta") or {}).get("ostler")
    if not isinstance(given, dict) or "persistence_dir" not in given:
        raise _refused(-32602, "This agent runs under Ostler, which sends _meta.ostler with each session.")
    return given


async def _threaded(function: Any, *arguments: Any) -> Any:
    """Call the SDK on a thread; what it refuses with ValueError is bad input."""
    try:
        return await asyncio.to_thread(function, *arguments)
    except ValueError as error:
        raise _refused(-32602, str(error)) from error


def _refused(code: int, message: str) -> Exception:
    from .wire import RpcError

    return RpcError(code, message)


def _import_sdk() -> None:
    from . import session, setup  # noqa: F401

    setup.import_tools()


def _version() -> str:
    from importlib.metadata import version

    return version("openhands-sdk")
