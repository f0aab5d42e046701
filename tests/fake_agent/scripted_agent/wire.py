"""Messages on stdin and stdout, and the log that tests read."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Iterator

from scripted_agent.modes import Modes

TYPE_CHECKING = False  # as typing has it, which takes its time to import
if TYPE_CHECKING:
    from typing import Any

NOISE = b"\nnpm notice this line is not JSON\n"


class Log:
    """JSON lines, one `write` to an O_APPEND file each, so that several processes can share one."""

    def __init__(self, path: str | None) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) if path else None

    def write(self, event: str, **fields: Any) -> None:
        if self._fd is None:
            return
        record = {"event": event, "pid": os.getpid(), "time": time.time(), **fields}
        os.write(self._fd, json.dumps(record).encode() + b"\n")


class RpcError(Exception):
    """An error to answer with."""

    def __init__(self, code: int, message: str, data: Any = None) -> None:
        super().__init__(message)
        self.code, self.message, self.data = code, message, data

    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.data is not None:
            body["data"] = self.data
        return body


class Wire:
    """Writes whole messages (or deliberately broken ones) and matches the client's answers."""

    def __init__(self, log: Log, modes: Modes) -> None:
        self._log = log
        self._modes = modes
        self._lock = threading.Lock()
        self._next_id = 0
        self._waiting: dict[Any, tuple[threading.Event, list[dict[str, Any]]]] = {}
        self._fd = sys.stdout.fileno()
        self._first = True

    # -- out
    def write(self, data: bytes) -> None:
        """All of `data`, with no other message in between. A reader that is gone is not an error here."""
        step = 1 if "dribble" in self._modes else len(data)
        with self._lock:
            view = memoryview(data)
            try:
                while view:
                    view = view[os.write(self._fd, view[:step]) :]
            except OSError as error:
                self._log.write("write_failed", error=str(error))

    def send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
        if "noise" in self._modes:
            data = NOISE + data + b"\r"
        if "bom" in self._modes and self._first:
            data = b"\xef\xbb\xbf" + data
        self._first = False
        self.write(data + b"\n")

    def notify(self, method: str, params: dict[str, Any]) -> None:
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def answer(self, request_id: Any, result: Any = None, error: dict[str, Any] | None = None) -> None:
        body = {"error": error} if error else {"result": result}
        self.send({"jsonrpc": "2.0", "id": request_id, **body})

    def close_stdout(self) -> None:
        """End of file for the client while this process lives on."""
        with self._lock:
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, self._fd)
            os.close(null)

    def begin(self, method: str, params: dict[str, Any]) -> Any:
        """Send a request without waiting for its answer; returns its id."""
        with self._lock:
            request_id = f"agent-{self._next_id}"
            self._next_id += 1
        self._waiting[request_id] = (threading.Event(), [])
        self.send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        return request_id

    def finish(self, request_id: Any) -> Any:
        """Wait for the answer; raises RpcError for an error."""
        event, box = self._waiting[request_id]
        event.wait()
        del self._waiting[request_id]
        message = box[0]
        if "error" in message:
            error = message["error"]
            raise RpcError(error.get("code", 0), error.get("message", ""), error.get("data"))
        return message.get("result")

    # -- in
    def messages(self) -> Iterator[dict[str, Any]]:
        """Requests and notifications until stdin ends; answers are delivered to whoever waits for them."""
        for line in sys.stdin.buffer:
            try:
                message = json.loads(line)
            except ValueError:
                self._log.write("garbage", line=line.decode(errors="replace")[:200])
                self.send({"jsonrpc": "2.0", "id": None, "error": {"code": -32700, "message": "Parse error"}})
                continue
            self._log.write("received", message=message)
            if "method" in message:
                yield message
                continue
            waiting = self._waiting.get(message.get("id"))
            if waiting:
                waiting[1].append(message)
                waiting[0].set()
