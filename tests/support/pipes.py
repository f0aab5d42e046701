"""A plain ACP client on pipes: for trying an agent without a supervisor in between."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.support.processes import descendants, kill

Message = dict[str, Any]


class AgentError(Exception):
    """An error the agent answered with."""

    def __init__(self, error: Message) -> None:
        super().__init__(f"{error.get('code')} {error.get('message')}")
        self.code = error.get("code")
        self.error = error


class PipeClient:
    """Starts an agent; collects what it sends; answers permissions by `decide` (a kind, or None to hold)."""

    def __init__(
        self, command: Sequence[str], cwd: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
            env=dict(environment) if environment is not None else None,
            start_new_session=True,
        )
        self.cwd = cwd
        self.session = ""
        self.updates: list[Message] = []
        self.requests: list[Message] = []
        self.first_line = b""
        self.noise: list[bytes] = []
        self.order: list[str] = []  # "update", "request", "noise", "answer N", in order of arrival
        self.decide: Callable[[Message], str | None] = lambda params: "allow_once"
        self.stderr = b""
        self._next_id = 0
        self._answers: dict[int, queue.Queue[Message | None]] = {}
        self._threads = [threading.Thread(target=run) for run in (self._read, self._read_stderr)]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> PipeClient:
        return self

    def __exit__(self, *_: object) -> None:
        below = [process.pid for process in descendants(self.process.pid)]
        kill([self.process.pid, *below])
        self.process.wait()
        for thread in self._threads:
            thread.join(5)
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()

    # -- wire
    def send(self, message: Message) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def begin(self, method: str, params: Message) -> int:
        request_id, self._next_id = self._next_id, self._next_id + 1
        self._answers[request_id] = queue.Queue()
        self.send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        return request_id

    def finish(self, request_id: int, timeout: float = 30.0) -> Any:
        """The result; AgentError, ConnectionError at the end of stdout, queue.Empty after the timeout."""
        message = self._answers[request_id].get(timeout=timeout)
        if message is None:
            raise ConnectionError("stdout ended")
        if "error" in message:
            raise AgentError(message["error"])
        return message["result"]

    def call(self, method: str, params: Message, timeout: float = 30.0) -> Any:
        return self.finish(self.begin(method, params), timeout)

    def notify(self, method: str, params: Message) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def close_stdin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    # -- ACP
    def initialize(self, timeout: float = 30.0) -> Any:
        capabilities = {"fs": {"readTextFile": False, "writeTextFile": False}, "terminal": False}
        client = {"name": "tests", "version": "0"}
        params = {"protocolVersion": 1, "clientCapabilities": capabilities, "clientInfo": client}
        return self.call("initialize", params, timeout)

    def new(self, timeout: float = 30.0) -> Any:
        result = self.call("session/new", {"cwd": str(self.cwd), "mcpServers": []}, timeout)
        self.session = result["sessionId"]
        return result

    def open(self) -> PipeClient:
        self.initialize()
        self.new()
        return self

    def begin_prompt(self, text: str) -> int:
        prompt = [{"type": "text", "text": text}]
        return self.begin("session/prompt", {"sessionId": self.session, "prompt": prompt})

    def prompt(self, text: str, timeout: float = 30.0) -> Any:
        return self.finish(self.begin_prompt(text), timeout)

    def cancel(self) -> None:
        self.notify("session/cancel", {"sessionId": self.session})

    def kinds(self) -> list[str]:
        return [update["update"].get("sessionUpdate") for update in self.updates]

    def text(self) -> str:
        chunks = [update["update"] for update in self.updates]
        return "".join(
            c["content"]["text"] for c in chunks if c.get("sessionUpdate") == "agent_message_chunk"
        )

    def answer_permission(self, request: Message, kind: str) -> None:
        options = request["params"]["options"]
        chosen = next((option for option in options if option["kind"] == kind), None)
        outcome: Message = {"outcome": "cancelled"}
        if chosen:
            outcome = {"outcome": "selected", "optionId": chosen["optionId"]}
        self.send({"jsonrpc": "2.0", "id": request["id"], "result": {"outcome": outcome}})

    # -- reading
    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.first_line = self.first_line or line
            try:
                message = json.loads(line)
            except ValueError:
                self.noise.append(line)
                self.order.append("noise")
                continue
            if isinstance(message, dict):
                self._take(message)
        for waiting in list(self._answers.values()):
            waiting.put(None)

    def _take(self, message: Message) -> None:
        if "method" in message and "id" in message:
            self.requests.append(message)
            self.order.append("request")
            self._respond(message)
        elif message.get("method") == "session/update":
            self.updates.append(message["params"])
            self.order.append("update")
        elif "method" not in message and message.get("id") in self._answers:
            self.order.append(f"answer {message['id']}")
            self._answers[message["id"]].put(message)

    def _respond(self, request: Message) -> None:
        if request["method"] != "session/request_permission":
            error = {"code": -32601, "message": "Method not found"}
            self.send({"jsonrpc": "2.0", "id": request["id"], "error": error})
            return
        kind = self.decide(request["params"])
        if kind is not None:
            self.answer_permission(request, kind)

    def _read_stderr(self) -> None:
        assert self.process.stderr is not None
        while data := self.process.stderr.read1(65536):
            self.stderr += data
