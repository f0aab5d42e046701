"""The demo as an ACP agent: parallel turns on one loop, without threads."""

from __future__ import annotations

import json
import os
import select
import time
from typing import Any

from supervisor.agents.demo.sessions import Session, Sessions
from supervisor.agents.demo.turn import Script, Turn, TurnCancelled
from supervisor.version import __version__

PROTOCOL_VERSION = 1

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602

READ_BYTES = 65536


class RpcError(Exception):
    """An answer to a request that could not be served."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Wire:
    """Lines in from file descriptor 0, lines out to file descriptor 1."""

    def __init__(self) -> None:
        self._received = b""
        self._next_id = 0
        self.ended = False

    def receive(self, timeout: float | None) -> list[dict[str, Any]]:
        """The messages that arrive within `timeout` seconds (None: any time); sets `ended` at end of
        input."""
        if not select.select([0], [], [], timeout)[0]:
            return []
        data = os.read(0, READ_BYTES)
        if not data:
            self.ended = True
            return []
        *lines, self._received = (self._received + data).split(b"\n")
        return [message for line in lines if (message := self._parse(line)) is not None]

    def notify(self, method: str, params: dict[str, Any]) -> None:
        """Send a notification."""
        self._send({"method": method, "params": params})

    def request(self, method: str, params: dict[str, Any]) -> int:
        """Send a request; returns the id that its answer will carry."""
        self._next_id += 1
        self._send({"id": self._next_id, "method": method, "params": params})
        return self._next_id

    def answer(self, request_id: Any, result: dict[str, Any]) -> None:
        """Answer a request."""
        self._send({"id": request_id, "result": result})

    def refuse(self, request_id: Any, error: RpcError) -> None:
        """Answer a request with an error."""
        self._send({"id": request_id, "error": {"code": error.code, "message": str(error)}})

    def _parse(self, line: bytes) -> dict[str, Any] | None:
        if not line.strip():
            return None
        try:
            message = json.loads(line)
        except ValueError:
            self.refuse(None, RpcError(PARSE_ERROR, "not valid JSON"))
            return None
        return message if isinstance(message, dict) else None

    def _send(self, message: dict[str, Any]) -> None:
        line = json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode() + b"\n"
        while line:
            line = line[os.write(1, line) :]


class _Running:
    """A prompt being worked on."""

    def __init__(self, request_id: Any, session: Session, script: Script) -> None:
        self.request_id = request_id
        self.session = session
        self.script = script
        self.wake_at: float | None = 0.0
        """When to resume; None while a question is open."""
        self.question: int | None = None


class DemoAgent:
    """Serves one client on the standard streams."""

    def __init__(self) -> None:
        self._wire = Wire()
        self._stored = Sessions()
        self._sessions: dict[str, Session] = {}
        self._turns: dict[str, _Running] = {}
        self._methods = {
            "initialize": self._initialize,
            "session/new": self._new,
            "session/load": self._load,
            "session/resume": self._resume,
            "session/list": self._list,
            "session/close": self._close,
            "session/set_mode": self._set_mode,
            "session/set_config_option": self._set_config_option,
        }

    def serve(self) -> None:
        """Serve until the input ends."""
        while not self._wire.ended:
            waits = [turn.wake_at for turn in self._turns.values() if turn.wake_at is not None]
            timeout = max(0.0, min(waits) - time.monotonic()) if waits else None
            for message in self._wire.receive(timeout):
                self._dispatch(message)
            for turn in list(self._turns.values()):
                if turn.wake_at is not None and turn.wake_at <= time.monotonic():
                    self._resume_turn(turn, None)

    def _dispatch(self, message: dict[str, Any]) -> None:
        method, request_id = message.get("method"), message.get("id")
        if not isinstance(method, str):
            self._answered(request_id, message.get("result"))
            return
        params = message.get("params")
        if not isinstance(params, dict):
            params = {}
        if method == "session/cancel":
            self._cancel(params)
        if "id" not in message:
            return
        try:
            if method == "session/prompt":
                self._prompt(request_id, params)
            else:
                self._wire.answer(request_id, self._methods.get(method, _unknown)(params))
        except RpcError as error:
            self._wire.refuse(request_id, error)

    def _initialize(self, params: dict[str, Any]) -> dict[str, Any]:
        return {
            "protocolVersion": PROTOCOL_VERSION,
            "agentInfo": {"name": "ostler-demo", "title": "Ostler Demo", "version": __version__},
            "agentCapabilities": {
                "loadSession": True,
                "promptCapabilities": {"image": False, "audio": False, "embeddedContext": True},
                "mcpCapabilities": {"http": False, "sse": False},
                "sessionCapabilities": {"list": {}, "resume": {}, "close": {}},
            },
            "authMethods": [],
        }

    def _new(self, params: dict[str, Any]) -> dict[str, Any]:
        session = self._stored.create(_text(params, "cwd"))
        self._sessions[session.id] = session
        return {"sessionId": session.id, **_settings(session)}

    def _load(self, params: dict[str, Any]) -> dict[str, Any]:
        answer = self._resume(params)
        session = self._sessions[_text(params, "sessionId")]
        for turn in session.turns:
            for kind, text in (("user_message_chunk", turn["user"]), ("agent_message_chunk", turn["agent"])):
                if text:
                    self._update(session, kind, {"content": {"type": "text", "text": text}})
        return answer

    def _resume(self, params: dict[str, Any]) -> dict[str, Any]:
        session_id = _text(params, "sessionId")
        session = self._sessions.get(session_id) or self._stored.load(session_id)
        if session is None:
            raise RpcError(INVALID_PARAMS, f"there is no session {session_id}")
        session.cwd = _text(params, "cwd")
        self._sessions[session.id] = session
        return _settings(session)

    def _list(self, params: dict[str, Any]) -> dict[str, Any]:
        cwd = params.get("cwd")
        return {"sessions": self._stored.listed(cwd if isinstance(cwd, str) else None)}

    def _close(self, params: dict[str, Any]) -> dict[str, Any]:
        session = self._session(params)
        self._cancel(params)
        del self._sessions[session.id]
        return {}

    def _set_mode(self, params: dict[str, Any]) -> dict[str, Any]:
        session = self._session(params)
        if not session.choose("mode", params.get("modeId")):
            raise RpcError(INVALID_PARAMS, f"there is no mode {params.get('modeId')}")
        self._stored.save(session)
        self._update(session, "current_mode_update", {"currentModeId": session.mode})
        return {}

    def _set_config_option(self, params: dict[str, Any]) -> dict[str, Any]:
        session = self._session(params)
        if not session.choose(_text(params, "configId"), params.get("value")):
            raise RpcError(INVALID_PARAMS, f"{params.get('configId')} cannot be {params.get('value')}")
        self._stored.save(session)
        return {"configOptions": session.options()}

    def _prompt(self, request_id: Any, params: dict[str, Any]) -> None:
        session = self._session(params)
        if session.id in self._turns:
            raise RpcError(INVALID_REQUEST, "a turn of this session is still running")
        blocks = params.get("prompt")
        texts = [
            block["text"]
            for block in (blocks if isinstance(blocks, list) else [])
            if isinstance(block, dict) and isinstance(block.get("text"), str)
        ] or [""]

        def update(kind: str, fields: dict[str, Any]) -> None:
            self._update(session, kind, fields)

        turn = _Running(request_id, session, Turn(session, texts, update).play())
        self._turns[session.id] = turn
        self._resume_turn(turn, None)

    def _resume_turn(self, turn: _Running, value: Any) -> None:
        self._step(turn, lambda: turn.script.send(value))

    def _cancel(self, params: dict[str, Any]) -> None:
        turn = self._turns.get(str(params.get("sessionId")))
        if turn is not None:
            self._step(turn, lambda: turn.script.throw(TurnCancelled()))

    def _step(self, turn: _Running, advance: Any) -> None:
        turn.question = turn.wake_at = None
        try:
            wanted = advance()
        except StopIteration as finished:
            del self._turns[turn.session.id]
            self._stored.save(turn.session)
            self._wire.answer(turn.request_id, finished.value)
            return
        if isinstance(wanted, dict):
            params = {"sessionId": turn.session.id, **wanted}
            turn.question = self._wire.request("session/request_permission", params)
        else:
            turn.wake_at = time.monotonic() + wanted

    def _answered(self, request_id: Any, result: Any) -> None:
        for turn in list(self._turns.values()):
            if turn.question is not None and turn.question == request_id:
                self._resume_turn(turn, result)

    def _update(self, session: Session, kind: str, fields: dict[str, Any]) -> None:
        update = {"sessionUpdate": kind, **fields}
        self._wire.notify("session/update", {"sessionId": session.id, "update": update})

    def _session(self, params: dict[str, Any]) -> Session:
        session = self._sessions.get(_text(params, "sessionId"))
        if session is None:
            raise RpcError(INVALID_PARAMS, f"there is no session {params['sessionId']}")
        return session


def _unknown(params: dict[str, Any]) -> dict[str, Any]:
    raise RpcError(METHOD_NOT_FOUND, "the demo does not know this method")


def _text(params: dict[str, Any], name: str) -> str:
    value = params.get(name)
    if not isinstance(value, str):
        raise RpcError(INVALID_PARAMS, f"{name} must be a string")
    return value


def _settings(session: Session) -> dict[str, Any]:
    return {"modes": session.modes(), "configOptions": session.options()}
