"""The agent as a program: ACP's methods on the standard streams, and Ostler's own.

`session/new` and `session/load` carry in `_meta.ostler`:

`persistence_dir`       where the SDK keeps conversations, each in a separate directory
`conversation_id`       of a new conversation, a UUID, which is also the session's id
`agent`                 the agent in the form of the SDK's clients, with its keys; or
`agent_settings`        the settings to make one from
`confirmation_policy`, `security_analyzer`, `hook_config`, `plugins`, `tags`, `max_iterations`,
`max_budget_per_run`, `stuck_detection`, `stuck_detection_thresholds`, `user_id`, `client_tools`,
`tool_module_qualnames`, `agent_definitions`, `agent_launch_additions`, `observability_...`
                        as in a client's request to start a conversation
`environment`           variables that hold from then on: HOME and the like, of the conversation's home
`secrets`               names and values, or sources in the SDK's form
`llm_profiles`, `meta_profiles`
                        by name, profiles for the SDK's tools besides the files in the home; with keys
`project_hooks`         whether the hooks of sub-agents and plugins in the workspace run
`load_memory`           whether the agent's lasting memory is always part of its prompt
`last_event_id`         (load) the last event that Ostler has of this agent; it sends those after it before
                        the answer. Without it, it sends no event again.
`closed`                (load) results that Ostler has written for actions of the process that died: events,
                        as in its log. The agent takes them over with their ids. It closes the other actions
                        itself, and sends their results.

The MCP servers are ACP's `mcpServers`; those in the agent's document do not count.

`session/prompt` carries `message` (in the SDK's form; else ACP's blocks count), `message_id` (of the event
that Ostler has written for it, which is not sent back) and `sender`. A prompt without both continues where
the agent stopped. A message whose id is in the log already is not appended again. The answer's
`_meta.ostler.status` is the status in which the agent stopped: `finished`, `paused`, `stuck`, `error`,
`idle` (rejected).

`session/request_permission` has the action's event id in `toolCall._meta.ostler.eventId`; the requests of one
step come together. If one is rejected, all are, with the `_meta.ostler.reason` of its answer. The request of
a sub-agent also has its name (`subAgent`) and the risk of the action (`securityRisk`).

Requests: `_ostler/ask` (`question`), `_ostler/title` (`max_length`, `profile`, `prompt`), `_ostler/condense`,
`_ostler/navigate` (`event_id`), `_ostler/pause`, `_ostler/load_plugin` (`plugin_ref`), `_ostler/configure`
(`confirmation_policy`, `security_analyzer`, `secrets`, `llm`), and without a session `_ostler/try_model`
(`llm`): whether it answers. `_ostler/message` (`message`, `message_id`, `sender`, as in a prompt) is for the
running turn, which reads it before its next step; its answer's `taken` is false when the turn has ended, and
then the message had no effect. `session/fork` copies a conversation into the same directory, with
`_meta.ostler.conversation_id` and `from_event_id`, and does not open it. For notifications see frames.py.
Keys and secrets are left out of every line.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
import threading
import uuid
import warnings
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from .wire import INVALID_PARAMS, INVALID_REQUEST, NOT_FOUND, Handler, RpcError, Wire

PROTOCOL_VERSION = 1

CLOSE_SECONDS = 2.0
"""Seconds that tools may take to end when the client has gone; Ostler kills the processes left after that."""

REQUESTS = 32
"""Requests handled at the same time: each question waits for a model, on a thread."""

QUIET = {
    "OPENHANDS_SUPPRESS_BANNER": "1",
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # otherwise litellm downloads it when it is imported
    "LITELLM_TELEMETRY": "False",
    "ANONYMIZED_TELEMETRY": "false",
    "DO_NOT_TRACK": "1",
    "LOG_JSON": "0",
    "LOG_LEVEL": "WARNING",
    "LOG_RICH_TRACEBACKS": "0",  # they show the values of variables
}
"""Variables that keep the libraries from using the network, and from printing, while they are imported."""

NO_HISTORY = {"HISTFILE": ""}
"""The terminal's shell gets secrets as commands, which it would write into the user's history file."""


def main() -> int:
    """Serve one client until the input ends."""
    reading, writing = os.dup(0), os.dup(1)
    # Libraries print: redirect their output to standard error, and give them an empty input.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    os.environ.update(NO_HISTORY)
    warnings.simplefilter("ignore")  # litellm warns for each answer of a model that is in no price list
    loop = asyncio.new_event_loop()
    loop.set_default_executor(ThreadPoolExecutor(REQUESTS, thread_name_prefix="request"))
    loop.run_until_complete(_serve(Wire(reading, writing)))
    # Exit without waiting for threads and processes of tools: the state is on the disk.
    os._exit(0)


async def _serve(wire: Wire) -> None:
    agent = BuiltIn(wire)
    at_once = {"session/prompt": agent.announce, "session/cancel": agent.cancel}
    try:
        await wire.serve(agent.handlers(), at_once, _end_soon)
    finally:
        await agent.close_all()


def _end_soon() -> None:
    """The client has gone: exit this process, even if its loop hangs."""
    timer = threading.Timer(2 * CLOSE_SECONDS, os._exit, [0])
    timer.daemon = True
    timer.start()


CALLS: Mapping[str, tuple[str, Callable[[Any, dict[str, Any]], object]]] = {
    "_ostler/ask": ("response", lambda session, given: session.ask(_text(given, "question"))),
    "_ostler/condense": ("", lambda session, _: session.condense()),
    "_ostler/configure": ("", lambda session, given: session.configure(given)),
    "_ostler/load_plugin": (
        "",
        lambda session, given: session.conversation.load_plugin(_text(given, "plugin_ref")),
    ),
    "_ostler/navigate": ("", lambda session, given: session.navigate(given.get("event_id"))),
    "_ostler/pause": ("", lambda session, _: session.conversation.pause()),
    "_ostler/title": (
        "title",
        lambda session, given: session.title(
            given.get("max_length") or 50, given.get("profile"), given.get("prompt")
        ),
    ),
}
"""Requests that call an open session on a thread: the member of the answer that gets the result, if any, and
the call."""


class BuiltIn:
    """The methods of ACP, and Ostler's own. Sessions live until they are closed, or the process ends."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._sessions: dict[str, Any] = {}
        self._ready: asyncio.Task[None] | None = None

    def handlers(self) -> dict[str, Handler]:
        """Return the handlers of the requests, by method."""
        return {
            "initialize": self.initialize,
            "session/new": self.new,
            "session/load": self.load,
            "session/resume": self.load,
            "session/fork": self.fork,
            "session/close": self.close,
            "session/prompt": self.prompt,
            "_ostler/message": self.message,
            "_ostler/try_model": self.try_model,
            **{method: partial(self._call, *call) for method, call in CALLS.items()},
        }

    async def initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        """Answer the handshake at once; the SDK is imported meanwhile."""
        if self._ready is None:
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
        session_id = str(_new_id(given))
        await self._open(session_id, params, given)
        return {"sessionId": session_id}

    async def load(self, params: dict[str, Any]) -> dict[str, Any]:
        """Resume a conversation from its directory."""
        given = _given(params)
        session_id = _uuid(params.get("sessionId"))
        stored = Path(given["persistence_dir"], session_id.hex, "base_state.json")
        if not await asyncio.to_thread(stored.exists):
            raise RpcError(NOT_FOUND, f"Session not found: {session_id}")
        await self._open(str(session_id), params, given)
        return {}

    async def fork(self, params: dict[str, Any]) -> dict[str, Any]:
        """Copy a conversation, up to an event if one is named; the copy is only stored, not opened."""
        session = self._session(params)
        given = _meta(params)
        new_id = _new_id(given)

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
        """Close all sessions: the input has ended."""
        for session in self._sessions.values():
            session.leave()
        closing = (asyncio.to_thread(session.close) for session in self._sessions.values())
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await asyncio.gather(*closing, return_exceptions=True)

    async def prompt(self, params: dict[str, Any]) -> dict[str, Any]:
        """Run a turn. Without a message the agent continues where it stopped."""
        session = self._session(params)
        given = _meta(params)
        return await session.prompt(  # type: ignore[no-any-return]
            given.get("message_id"), given.get("message"), params.get("prompt") or [], given.get("sender")
        )

    def announce(self, params: dict[str, Any]) -> None:
        """Note a prompt; called on the reading thread, so that a cancel right after it applies to it."""
        session = self._sessions.get(params.get("sessionId", ""))
        if session is not None:
            session.announce()

    def cancel(self, params: dict[str, Any]) -> None:
        """Interrupt a turn; called on the reading thread."""
        session = self._sessions.get(params.get("sessionId", ""))
        if session is not None:
            session.cancel()

    async def message(self, params: dict[str, Any]) -> dict[str, Any]:
        """Deliver a message during a turn."""
        session = self._session(params)
        return {
            "taken": await session.take(
                _text(params, "message_id"), params.get("message"), params.get("sender")
            )
        }

    async def try_model(self, params: dict[str, Any]) -> dict[str, Any]:
        """Report whether a model answers; without a session."""
        await self._imported()
        from . import setup, trial
        from .library import profiles

        # Before it is parsed: the SDK may quote keys in its error.
        self._wire.hide(profiles.secrets_of(params.get("llm")))
        llm = await _threaded(setup.decode, setup.LLM, "llm", params.get("llm"))
        self._wire.hide(setup.secrets_in(llm))
        return await trial.answer_of(llm)

    async def _call(self, member: str, call: Callable[[Any, Any], object], params: dict[str, Any]) -> Any:
        result = await _threaded(call, self._session(params), params)
        return {member: result} if member else {}

    async def _open(self, session_id: str, params: dict[str, Any], given: dict[str, Any]) -> None:
        await self._imported()
        if session_id in self._sessions:
            raise RpcError(INVALID_PARAMS, f"The session is open already: {session_id}")
        from .library import rehome
        from .session import Session

        # The environment of the conversation's home: this process may have been started before it existed.
        os.environ.update(given.get("environment") or {})
        tempfile.tempdir = None  # forces another lookup
        rehome.follow()

        self._sessions[session_id] = await _threaded(
            Session, self._wire, session_id, _text(params, "cwd"), params.get("mcpServers") or [], given
        )

    async def _imported(self) -> None:
        if self._ready is None:
            raise RpcError(INVALID_REQUEST, "Not initialized. Send initialize first.")
        await self._ready

    def _session(self, params: dict[str, Any]) -> Any:
        session = self._sessions.get(params.get("sessionId", ""))
        if session is None:
            raise RpcError(NOT_FOUND, f"Session not found: {params.get('sessionId')}")
        return session


def _given(params: dict[str, Any]) -> dict[str, Any]:
    given = _meta(params)
    if not isinstance(given.get("persistence_dir"), str):
        raise RpcError(
            INVALID_PARAMS, "This agent runs under Ostler, which sends _meta.ostler.persistence_dir."
        )
    return given


def _meta(params: dict[str, Any]) -> dict[str, Any]:
    meta = params.get("_meta")
    given = meta.get("ostler") if isinstance(meta, dict) else None
    return given if isinstance(given, dict) else {}


def _text(params: dict[str, Any], name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str):
        raise RpcError(INVALID_PARAMS, f"{name} is not a text.")
    return value


def _new_id(given: dict[str, Any]) -> uuid.UUID:
    return _uuid(given["conversation_id"]) if "conversation_id" in given else uuid.uuid4()


def _uuid(given: Any) -> uuid.UUID:
    try:
        return uuid.UUID(given)
    except (ValueError, AttributeError, TypeError) as error:
        raise RpcError(INVALID_PARAMS, f"{given!r:.80} is not a UUID.") from error


async def _threaded(function: Any, *arguments: Any) -> Any:
    """Call the SDK on a thread; its ValueError is reported as bad input."""
    try:
        return await asyncio.to_thread(function, *arguments)
    except ValueError as error:
        raise RpcError(INVALID_PARAMS, str(error)) from error


def _import_sdk() -> None:
    from .library import rehome  # noqa: F401 - the home first

    # isort: split
    from . import setup
    from .library import changes

    changes.mend()
    setup.import_tools()


def _version() -> str:
    from importlib.metadata import version

    return version("openhands-sdk")
