"""The built-in agent's program alone: a client of its own on its standard streams, without a server.

One process has the sessions of a whole module: to import the SDK takes seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import shutil
import signal
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from supervisor.acp.schema.extension import (
    ItemAborted,
    ItemDelta,
    ItemStarted,
    Received,
    ReportedEvent,
    ReportedState,
    parse_reported,
)
from supervisor.events import decode_event
from supervisor.events.encode import dump_event
from tests.interop.model_api.request import Tool
from tests.interop.model_api.script import Answer
from tests.interop.model_api.server import ModelApi

PROGRAM = Path(__file__).resolve().parents[2] / "supervisor" / "agents" / "builtin"
PYTHON = "OSTLER_TEST_BUILTIN_PYTHON"
"""A Python with the SDK, for a machine where it is installed already."""

HANGS_SECONDS = 60.0  # nothing here takes so long, on a busy machine either
KEY = "sk-canary-7f3b9e1d5a"  # of every model

Decide = Callable[[dict[str, Any]], dict[str, Any]]


def accept(_: dict[str, Any]) -> dict[str, Any]:
    """Answers a permission request."""
    return {"outcome": {"outcome": "selected", "optionId": "accept"}}


def reject(reason: str) -> Decide:
    """Answers permission requests with a reason."""
    return lambda _: {
        "outcome": {"outcome": "selected", "optionId": "reject"},
        "_meta": {"ostler": {"reason": reason}},
    }


class Refused(Exception):
    """The program answered a request with an error."""

    def __init__(self, error: dict[str, Any]) -> None:
        super().__init__(error["message"])
        self.code: int = error["code"]


class Program:
    """A running program. Requests wait for their answers; what is told goes to the sessions."""

    def __init__(self, python: Path, home: Path, prefix: tuple[str, ...] = (), **more: str) -> None:
        self.home = home
        # A test's own path is too long for the sockets of terminals.
        self.terminals = Path(tempfile.mkdtemp(prefix="terminals-"))
        self.log = home / "stderr"
        environment = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", **more}
        environment["TMUX_TMPDIR"] = str(self.terminals)
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*prefix, str(python), str(PROGRAM)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                cwd=home,
                start_new_session=True,
            )
        self.sessions: dict[str, Session] = {}
        self.longest = 0
        self._ids = iter(range(1, 1_000_000))
        self._answers: dict[int, queue.SimpleQueue[dict[str, Any]]] = {}
        self._writing = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def send(self, **message: Any) -> None:
        """Write one message."""
        assert self.process.stdin is not None
        with self._writing:
            self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            self.process.stdin.flush()

    def start(self, method: str, **params: Any) -> Callable[..., Any]:
        """Send a request; the function that is returned waits so many seconds for its answer."""
        number = next(self._ids)
        self._answers[number] = queue.SimpleQueue()
        self.send(id=number, method=method, params=params)

        def answer(seconds: float = HANGS_SECONDS) -> Any:
            try:
                message = self._answers[number].get(timeout=seconds)
            except queue.Empty:
                raise AssertionError(f"{method} is not answered. {self.last_words()}") from None
            if "error" in message:
                raise Refused(message["error"])
            return message["result"]

        return answer

    def ask(self, method: str, **params: Any) -> Any:
        """Send a request and wait for its answer. Raises Refused."""
        return self.start(method, **params)(HANGS_SECONDS)

    def last_words(self) -> str:
        """The end of what it wrote to its log."""
        return self.log.read_bytes()[-3000:].decode(errors="replace")

    def end(self) -> int:
        """Close its input; the seconds until it has ended must be few."""
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):
            self.process.stdin.close()
        return self.process.wait(HANGS_SECONDS)

    def forget(self) -> None:
        """Leave nothing of it."""
        self.process.kill()
        self.process.wait()
        self._reader.join()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                pipe.close()  # type: ignore[union-attr]
        # Terminals live in servers of their own, which Ostler's containment ends; here nobody does.
        for place in self.terminals.glob("tmux-*/*"):
            subprocess.run(["tmux", "-S", str(place), "kill-server"], check=False, capture_output=True)
        shutil.rmtree(self.terminals, ignore_errors=True)

    def kill(self) -> None:
        """As if it were out of memory."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(HANGS_SECONDS)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.longest = max(self.longest, len(line))
            message = json.loads(line)
            if "method" not in message:
                self._answers[message["id"]].put(message)
            elif "id" in message:
                threading.Thread(target=self._decide, args=(message,), daemon=True).start()
            else:
                session = message["params"]["sessionId"]
                self.sessions[session].hear(message["method"], message["params"])

    def _decide(self, message: dict[str, Any]) -> None:
        session = self.sessions[message["params"]["sessionId"]]
        if message["method"] == "_ostler/start_child":
            session.children.append(message["params"])
            self.send(id=message["id"], **session.child(message["params"]))
            return
        assert message["method"] == "session/request_permission"
        session.asked.append(message["params"])
        answer = session.decide(message["params"])
        if answer:
            with contextlib.suppress(OSError):
                self.send(id=message["id"], result=answer)


REFUSED = {"code": -32602, "message": "no"}


class Session:
    """One conversation of the program, and all that it told, checked as Ostler checks it."""

    def __init__(self, program: Program, home: Path, session_id: str | None = None) -> None:
        self.program = program
        self.id = session_id or str(uuid.uuid4())
        self.workspace = home / "workspace"
        self.workspace.mkdir(exist_ok=True)
        self.persistence = home / "persistence"
        self.events: list[dict[str, Any]] = []
        self.states: list[ReportedState] = []
        self.items: list[ItemStarted | ItemDelta | ItemAborted] = []
        self.received: list[Received] = []
        self.asked: list[dict[str, Any]] = []
        self.decide: Decide = accept
        self.children: list[dict[str, Any]] = []
        self.child: Callable[[dict[str, Any]], dict[str, Any]] = lambda _: {
            "error": {"code": 1, "message": "no"}
        }
        """What a request for a child conversation is answered with: `result` or `error`."""
        self.wrong: list[str] = []
        program.sessions[self.id] = self

    def open(
        self, agent: dict[str, Any], *, servers: list[Any] | None = None, load: bool = False, **given: Any
    ) -> Session:
        """Start the conversation, or take it up; `given` is what Ostler sends with it."""
        meta = {"persistence_dir": str(self.persistence), "conversation_id": self.id, "agent": agent, **given}
        params = {"cwd": str(self.workspace), "mcpServers": servers or [], "_meta": {"ostler": meta}}
        if load:
            self.program.ask("session/load", sessionId=self.id, **params)
        else:
            assert self.program.ask("session/new", **params) == {"sessionId": self.id}
        return self

    def say(self, text: str, **meta: Any) -> dict[str, Any]:
        """A turn; the answer to its prompt."""
        return self.saying(text, **meta)(HANGS_SECONDS)  # type: ignore[no-any-return]

    def saying(self, text: str | None, **meta: Any) -> Callable[..., Any]:
        """Begin a turn; without a text, go on with the last."""
        prompt = [] if text is None else [{"type": "text", "text": text}]
        return self.program.start("session/prompt", sessionId=self.id, prompt=prompt, _meta={"ostler": meta})

    def add(self, text: str, message_id: str) -> Callable[..., Any]:
        """Say something during a turn; whether that reads it."""
        message = {"role": "user", "content": [{"type": "text", "text": text}]}
        given = {"message_id": message_id, "message": message}
        return self.program.start("_ostler/message", sessionId=self.id, **given)

    def ask(self, method: str, **params: Any) -> Any:
        """A request of Ostler's own."""
        return self.program.ask(method, sessionId=self.id, **params)

    def cancel(self) -> float:
        """Interrupt the turn; when it was."""
        self.program.send(method="session/cancel", params={"sessionId": self.id})
        return time.monotonic()

    def hear(self, method: str, params: dict[str, Any]) -> None:
        """Check what was told as Ostler does, and keep it."""
        told = parse_reported(method, params)
        if isinstance(told, ReportedEvent):
            self.events.append(dict(told.event))
            try:
                again = json.loads(dump_event(decode_event(told.event)))
            except ValueError as error:
                self.wrong.append(f"{told.event['kind']}: {error}")
                return
            if differences(without_nulls(told.event), without_nulls(again)):
                self.wrong.append(f"{told.event['kind']}: {differences(told.event, without_nulls(again))}")
        elif isinstance(told, ReportedState):
            self.states.append(told)
        elif isinstance(told, Received):
            self.received.append(told)
        else:
            self.items.append(told)

    def close(self) -> None:
        """End it, and check that everything could be read."""
        self.ask("session/close")
        self.check()

    def check(self) -> None:
        """Everything that was told could be read, and came once."""
        assert self.wrong == [], "\n".join(self.wrong)[:5000]
        ids = [event["id"] for event in self.events]
        assert len(ids) == len(set(ids))

    def of(self, kind: str) -> list[dict[str, Any]]:
        """The events of a kind."""
        return [event for event in self.events if event["kind"] == kind]

    @property
    def kinds(self) -> list[str]:
        """The kinds of the events in their order; a tool's with its own name."""
        return [named(event) for event in self.events]

    def last(self, kind: str) -> dict[str, Any]:
        """The last event of a kind."""
        found = self.of(kind)
        assert found, f"no {kind} in {self.kinds}. {self.program.last_words()}"
        return found[-1]

    def observed(self) -> dict[str, Any]:
        """The last observation."""
        return self.last("ObservationEvent")["observation"]  # type: ignore[no-any-return]

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something has been told."""
        until(condition, lambda: f"{self.kinds} {self.program.last_words()}")

    @property
    def stored(self) -> Path:
        """Where the SDK keeps it."""
        return self.persistence / self.id.replace("-", "")


def until(condition: Callable[[], bool], words: Callable[[], str] = str) -> None:
    """Look often, until a hang is certain."""
    end = time.monotonic() + HANGS_SECONDS
    while not condition():
        assert time.monotonic() < end, words()
        time.sleep(0.02)


def named(event: dict[str, Any]) -> str:
    """An event in one word."""
    match event["kind"]:
        case "ActionEvent":
            return str((event.get("action") or {}).get("kind") or "no action")
        case "ObservationEvent":
            return str(event["observation"]["kind"])
        case "MessageEvent":
            return f"{event['source']} says"
        case kind:
            return str(kind)


def without_nulls(value: Any) -> Any:
    """JSON without null properties."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list):
        return [without_nulls(each) for each in value]
    return value


def differences(one: Any, other: Any, where: str = "") -> list[str]:
    """Where two JSON values differ."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys = sorted({*one, *other})
        return [each for key in keys for each in differences(one.get(key), other.get(key), f"{where}.{key}")]
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return [each for index, (a, b) in pairs for each in differences(a, b, f"{where}[{index}]")]
    return [] if one == other else [f"{where}: {one!r:.200} became {other!r:.200}"]


def status(answer: dict[str, Any]) -> str:
    """The status of the conversation that the answer to a prompt tells."""
    return str(answer["_meta"]["ostler"]["status"])


def text_of(content: list[dict[str, Any]]) -> str:
    """The text of a message or of an observation."""
    return "".join(part.get("text", "") for part in content)


# -- what the model says
def call(tool: str, text: str = "", **arguments: Any) -> Answer:
    """One call of a tool."""
    return calls((tool, arguments), text=text)


def calls(*made: tuple[str, dict[str, Any]], text: str = "", **fields: Any) -> Answer:
    """Several calls in one answer."""
    return Answer(
        text=(text,) if text else (), calls=tuple((Tool(name), args) for name, args in made), **fields
    )


def says(*text: str, **fields: Any) -> Answer:
    """A text, in pieces."""
    return Answer(text=text, **fields)


def finish(message: str = "done") -> Answer:
    """A call of the tool that ends the task."""
    return call("finish", message=message)


# -- what a client sends
def llm(api: ModelApi, **fields: Any) -> dict[str, Any]:
    """A model, with its key."""
    base = {"model": "openai/test-model", "base_url": f"{api.url}/v1", "api_key": KEY, "usage_id": "agent"}
    return {**base, "num_retries": 0, "stream": True, **fields}


def agent(api: ModelApi, *tools: str, model: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """An agent with these tools besides think and finish."""
    return {"kind": "Agent", "llm": model or llm(api), "tools": [{"name": name} for name in tools], **fields}


@contextlib.contextmanager
def running(python: Path, home: Path, prefix: tuple[str, ...] = (), **more: str) -> Iterator[Program]:
    """A program that has introduced itself; nothing of it is left afterwards."""
    home.mkdir(parents=True, exist_ok=True)
    program = Program(python, home, prefix, **more)
    try:
        program.ask("initialize", protocolVersion=1, clientCapabilities={})
        yield program
    finally:
        program.forget()
