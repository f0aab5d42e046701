"""JSON-RPC lines on the standard streams, with a clock. The agent on top of it decides what to do."""

from __future__ import annotations

import json
import os
import select
from typing import Any

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
