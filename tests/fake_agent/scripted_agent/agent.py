"""The methods an agent answers, and the points where it may fail instead."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable

from scripted_agent import shapes
from scripted_agent.directives import perform
from scripted_agent.modes import POINTS, Modes
from scripted_agent.processes import die, spawn
from scripted_agent.sessions import Session, Store
from scripted_agent.turn import Turn
from scripted_agent.wire import Log, RpcError, Wire

TYPE_CHECKING = False  # as typing has it, which takes its time to import
if TYPE_CHECKING:
    from typing import Any

NO_ANSWER = object()
LATE_REPLAY_S = 0.05  # between the answer of a load and the history that follows it


class Agent:
    """Reads messages on the main thread; each prompt turn has a thread of its own."""

    def __init__(self, modes: Modes, wire: Wire, store: Store, log: Log, turns: list[str]) -> None:
        self.modes, self.wire, self.store, self.log = modes, wire, store, log
        self.scripted_turns = turns
        self.turns: dict[str, Turn] = {}
        self.waiting: dict[str, list[str]] = {}
        self.prompts = 0
        self.authenticated = self.initialized = False
        self.hub: Any = None
        self.paused = threading.Event()
        self.trouble = True  # crash, hang, slow and error apply to this process
        self._methods: dict[str, Callable[[dict[str, Any]], Any]] = {
            "initialize": self.initialize,
            "authenticate": self.authenticate,
            "logout": self.logout,
            "session/new": self.new,
            "session/load": self.load,
            "session/resume": self.resume,
            "session/fork": self.fork,
            "session/list": self.list_sessions,
            "session/close": self.close,
            "session/delete": self.delete,
            "session/set_mode": self.set_mode,
            "session/set_config_option": self.set_config_option,
            "session/set_model": self.set_model,
        }
        if "tells" in modes:
            self._methods |= {
                "_ostler/ask": lambda params: {"response": f"about {params['question']}"},
                "_ostler/condense": self.condense,
                "_ostler/configure": self.opened_only,
                "_ostler/load_plugin": self.opened_only,
                "_ostler/navigate": self.opened_only,
                "_ostler/pause": self.pause,
                "_ostler/title": lambda params: {"title": "A title of the model's"},
            }

    def run(self) -> None:
        start = self.store.count("start")
        self.trouble = "until-start" not in self.modes or start <= self.modes.number("until-start")
        self.log.write(
            "start",
            number=start,
            ppid=os.getppid(),
            pgid=os.getpgid(0),
            cwd=os.getcwd(),
            environment=dict(os.environ),
            descriptors=open_descriptors(),
        )
        if "ignore-term" in self.modes:
            import signal  # few agents need it

            signal.signal(signal.SIGTERM, lambda *_: self.log.write("sigterm"))
        for kind in self.modes.listed("grandchild"):
            self.spawn(kind)
        if "hub" in self.modes:
            from scripted_agent.hub import Hub  # few agents have one

            self.hub = Hub(self.modes.text("hub"))
            self.log.write("hub", child=self.hub.pid, path=self.hub.path)
        self.point("start")
        for number in range(int(self.modes.number("banner", 1)) if "banner" in self.modes else 0):
            self.wire.write(b"Welcome to the scripted agent, line %d\n" % (number + 1))
        if "farewell" in self.modes:
            self.wire.write(self.modes.text("farewell").encode() + b"\n")
            os._exit(0)
        for message in self.wire.messages():
            if "silent" not in self.modes:
                self.dispatch(message)
        self.log.write("eof")
        while "ignore-eof" in self.modes:
            time.sleep(1)
        os._exit(0)

    # -- trouble
    def crash(self, how: str) -> None:
        self.log.write("crash", how=how)
        die(how, int(self.modes.number("stderr", 3)))

    def crash_at(self, point: str) -> None:
        how = self.modes.at("crash", point)
        if how is not None and self.trouble:
            self.crash(how)

    def point(self, point: str) -> object:
        """Whatever the modes want to go wrong here."""
        self.crash_at(point)
        if not self.trouble:
            return None
        late = self.modes.at("slow", point)
        if late is not None:
            time.sleep(float(late))
        if self.modes.at("hang", point) is not None:
            return NO_ANSWER
        error = self.modes.at("error", point)
        if error is not None:
            code, _, text = error.partition(":")
            raise RpcError(int(code), text or "scripted error")
        return None

    def spawn(self, kind: str) -> int:
        pid = spawn(kind)
        self.log.write("spawn", kind=kind, child=pid)
        return pid

    # -- dispatch
    def dispatch(self, message: dict[str, Any]) -> None:
        method, params = message["method"], message.get("params") or {}
        if "id" not in message:
            if method == "session/cancel" and params.get("sessionId") in self.turns:
                self.turns[params["sessionId"]].cancel()
            return
        if method == "session/prompt" or (method == "_ostler/message" and "takes" in self.modes):
            handler = self.prompt if method == "session/prompt" else self.message
            threading.Thread(target=self.respond, args=(message, handler), daemon=True).start()
            return
        self.respond(message, self._methods.get(method, self.unknown))
        if method == "session/new" and "greets" in self.modes and self.store.open:
            banner = [list(self.store.open)[-1], shapes.chunk("agent_message_chunk", "Welcome to it. ")]
            timer = threading.Timer(self.modes.number("greets"), self.update, banner)
            timer.daemon = True
            timer.start()
        if method == "session/new" and "chatty" in self.modes and self.store.open:
            session_id = list(self.store.open)[-1]
            for update in shapes.chatter():
                self.update(session_id, update)

    def respond(self, message: dict[str, Any], handler: Callable[[dict[str, Any]], Any]) -> None:
        try:
            if self.point(POINTS.get(message["method"], "")) is NO_ANSWER:
                return
            result = handler(message.get("params") or {})
        except RpcError as failure:
            self.wire.answer(message["id"], error=failure.body())
            return
        except (KeyError, TypeError, ValueError) as error:
            self.wire.answer(message["id"], error={"code": -32602, "message": f"Invalid params: {error!r}"})
            return
        after = None
        if isinstance(result, Turn):
            result, after = result.answer(), result.after
        self.wire.answer(message["id"], result)
        if after is not None:
            after()
            self.crash_at("idle")

    def unknown(self, params: dict[str, Any]) -> Any:
        raise RpcError(-32601, "Method not found")

    def update(self, session_id: str, update: dict[str, Any]) -> None:
        self.wire.notify("session/update", {"sessionId": session_id, "update": update})

    # -- methods
    def initialize(self, params: dict[str, Any]) -> Any:
        if self.initialized and "initialize-once" in self.modes:
            raise RpcError(-32600, "Already initialized")
        self.initialized = True
        while "gate" in self.modes and not os.path.exists(self.modes.text("gate")):
            time.sleep(0.01)
        return shapes.initialize_result(self.modes)

    def authenticate(self, params: dict[str, Any]) -> Any:
        variables = shapes.env_methods(self.modes).get(params["methodId"])
        if variables is None and params["methodId"] not in self.modes.listed("auth"):
            raise RpcError(-32602, f"Unknown auth method {params['methodId']}")
        if not all(map(os.environ.get, variables or ())):
            raise RpcError(-32602, f"{params['methodId']} needs {', '.join(variables or ())}")
        self.authenticated = True
        return {}

    def logout(self, params: dict[str, Any]) -> Any:
        self.authenticated = False
        return {}

    def need_key(self, mode: str) -> None:
        if mode in self.modes and not self.authenticated and not os.environ.get(self.modes.text(mode)):
            raise RpcError(-32000, "Authentication required")

    def opened(self, session: Session) -> Any:
        if self.hub is not None:
            self.hub.open(session.id)
        return shapes.session_state(session, self.modes)

    def new(self, params: dict[str, Any]) -> Any:
        self.need_key("key")
        if not os.path.isabs(params["cwd"]) or not isinstance(params["mcpServers"], list):
            raise RpcError(-32602, "cwd must be absolute, mcpServers a list")
        session = self.store.new(params["cwd"])
        session.options["mode"] = shapes.mode_ids(self.modes)[0]
        if "tells-agent" in self.modes:
            told = {"kind": "Agent", "tools": [{"name": "terminal"}]}
            self.wire.notify("_ostler/state", {"sessionId": session.id, "key": "agent", "value": told})
        return {"sessionId": session.id, **self.opened(session)}

    def stored(self, params: dict[str, Any]) -> Session:
        self.need_key("key")
        session = self.store.find(params["sessionId"])
        if session is None:
            raise RpcError(-32002, "Resource not found", {"sessionId": params["sessionId"]})
        session.cwd = params.get("cwd", session.cwd)
        return session

    def load(self, params: dict[str, Any]) -> Any:
        self.offered("load")
        session = self.stored(params)
        if "late-replay" in self.modes:
            timer = threading.Timer(LATE_REPLAY_S, self.replay, [session])
            timer.daemon = True
            timer.start()
        else:
            self.replay(session)
        return None if "null-load" in self.modes else self.opened(session)

    def replay(self, session: Session) -> None:
        for turn in session.turns:
            self.update(session.id, shapes.chunk("user_message_chunk", turn["user"]))
            self.crash_at("replay")
            if turn["agent"]:
                self.update(session.id, shapes.chunk("agent_message_chunk", turn["agent"]))

    def resume(self, params: dict[str, Any]) -> Any:
        self.offered("resume")
        session = self.stored(params)
        own = (params.get("_meta") or {}).get("ostler") or {}
        self.waiting[session.id] = own.get("waiting") or []
        return None if "null-load" in self.modes else self.opened(session)

    def fork(self, params: dict[str, Any]) -> Any:
        self.offered("fork")
        session = self.store.fork(self.stored(params), params["cwd"])
        return {"sessionId": session.id, **self.opened(session)}

    def list_sessions(self, params: dict[str, Any]) -> Any:
        self.offered("list")
        found = [s for s in self.store.all() if params.get("cwd") in (None, s.cwd)]
        return {"sessions": [{"sessionId": s.id, "cwd": s.cwd} for s in found]}

    def close(self, params: dict[str, Any]) -> Any:
        self.offered("close")
        if params["sessionId"] in self.turns:
            self.turns[params["sessionId"]].cancel(force=True)
        self.store.open.pop(params["sessionId"], None)
        return {}

    def delete(self, params: dict[str, Any]) -> Any:
        self.offered("delete")
        self.store.delete(params["sessionId"])
        return {}

    def offered(self, name: str) -> None:
        if name in self.modes.listed("without"):
            raise RpcError(-32601, "Method not found")

    def set_mode(self, params: dict[str, Any]) -> Any:
        self.offered("modes")
        session = self.opened_session(params)
        self.refuse(params["modeId"])
        if params["modeId"] not in shapes.mode_ids(self.modes):
            raise RpcError(-32602, f"Unknown mode {params['modeId']}")
        session.options["mode"] = params["modeId"]
        return {}

    def set_config_option(self, params: dict[str, Any]) -> Any:
        self.offered("config")
        session = self.opened_session(params)
        name, value = params["configId"], params["value"]
        self.refuse(value)
        if f"~{value}" in self.modes.listed("refuse"):
            return {"configOptions": shapes.config_options(session, self.modes)}
        models = (*shapes.MODEL_IDS, *self.modes.listed("named-models"))
        allowed = {"mode": shapes.mode_ids(self.modes), "model": models, "brave": (True, False)}
        if value not in allowed.get(name, ()):
            raise RpcError(-32602, f"Cannot set {name} to {value!r}")
        session.options[name] = value
        return {"configOptions": shapes.config_options(session, self.modes)}

    def refuse(self, value: Any) -> None:
        if value in self.modes.listed("refuse"):
            raise RpcError(-32602, f"{value} is not for you")

    def opened_only(self, params: dict[str, Any]) -> Any:
        self.opened_session(params)
        return {}

    def pause(self, params: dict[str, Any]) -> Any:
        self.paused.set()
        return {}

    def condense(self, params: dict[str, Any]) -> Any:
        event = {
            "kind": "Condensation",
            "id": "condensed",
            "timestamp": "2026-01-01T00:00:00.000000",
            "source": "environment",
            "forgotten_event_ids": [],
            "summary": "Short.",
            "llm_response_id": "response",
        }
        self.wire.notify("_ostler/event", {"sessionId": self.opened_session(params).id, "event": event})
        return {}

    def set_model(self, params: dict[str, Any]) -> Any:
        if "legacy-models" not in self.modes:
            raise RpcError(-32601, "Method not found")
        session = self.opened_session(params)
        self.refuse(params["modelId"])
        if params["modelId"] not in shapes.MODEL_IDS:
            raise RpcError(-32602, f"Unknown model {params['modelId']}")
        session.options["model"] = params["modelId"]
        return {}

    def opened_session(self, params: dict[str, Any]) -> Session:
        session = self.store.open.get(params["sessionId"])
        if session is None:
            raise RpcError(-32002, "Resource not found", {"sessionId": params["sessionId"]})
        return session

    # -- the turn
    def message(self, params: dict[str, Any]) -> Any:
        turn = self.turns.get(self.opened_session(params).id)
        taken = turn is not None and turn.take(params["message_id"], params["message"])
        self.log.write("message", id=params["message_id"], taken=taken)
        return {"taken": taken}

    def prompt(self, params: dict[str, Any]) -> Any:
        self.need_key("prompt-key")
        session = self.opened_session(params)
        if self.hub is not None:
            self.hub.need(session.id)
        if session.id in self.turns:
            raise RpcError(-32600, "A turn is running in this session")
        if "single" in self.modes and self.turns:
            raise RpcError(-32600, "This agent does one thing at a time")
        text = "\n".join(block.get("text") or json.dumps(block) for block in params["prompt"])
        waiting = self.waiting.pop(session.id, [])
        if waiting and not text:  # as the built-in one: it asks again
            text = f"!ask-again {' '.join(waiting)}"
        number, self.prompts = self.prompts, self.prompts + 1
        script = self.scripted_turns[number] if number < len(self.scripted_turns) else text
        turn = Turn(self, session, text, script)
        self.turns[session.id] = turn
        self.log.write("turn", session=session.id, text=text)
        try:
            turn.run(perform)
        finally:
            del self.turns[session.id]
            self.log.write("turn_end", session=session.id, stop=turn.stop)
        return turn


def open_descriptors() -> list[str]:
    """What each open descriptor above stderr leads to: a child should inherit none."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if int(name) > 2:
            found.append(target)
    return found
