"""Right inputs, to be made wrong: a few of each kind that agents and clients send. They are in `inputs/`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
INPUTS = HERE / "inputs"


def _values(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


EVENTS = _values(HERE.parent / "events" / "recorded.jsonl")
UPDATES = _values(INPUTS / "updates.jsonl")
RESULTS = _values(INPUTS / "results.jsonl")
REQUESTS = _values(INPUTS / "requests.jsonl")
SETTINGS = _values(INPUTS / "settings.jsonl")
CONVERSATION_CHANGES = _values(INPUTS / "conversations.jsonl")
SENT_MESSAGES = _values(INPUTS / "sent.jsonl")
MCP_FILES = _values(INPUTS / "mcp.jsonl")
SAID = (INPUTS / "said.txt").read_bytes().splitlines()
"""Messages of a person that Ostler answers itself."""
QUERIES = (INPUTS / "queries.txt").read_bytes().splitlines()
PERMISSION = next(each["params"] for each in REQUESTS if each.get("method") == "session/request_permission")


def session_update(update: Any, session: str = "s") -> dict[str, Any]:
    return {"jsonrpc": "2.0", "method": "session/update", "params": {"sessionId": session, "update": update}}


MESSAGES = [
    *map(session_update, UPDATES),
    *({"jsonrpc": "2.0", "id": 1, "result": result} for result in RESULTS),
    *REQUESTS,
]
LONG = 60_000  # characters: what stands for megabytes here

LONG_UPDATES = [
    {"sessionUpdate": "tool_call", "toolCallId": "i" * LONG, "title": "t" * LONG, "kind": "k" * LONG},
    {
        "sessionUpdate": "tool_call_update",
        "toolCallId": "i" * LONG,
        "status": "completed",
        "rawOutput": "o" * LONG,
    },
    {
        "sessionUpdate": "tool_call_update",
        "toolCallId": "c",
        "content": [{"type": "diff", "path": "p" * LONG}],
    },
    {
        "sessionUpdate": "agent_message_chunk",
        "messageId": "m" * LONG,
        "content": {"type": "text", "text": "\n" * LONG},
    },
    {"sessionUpdate": "agent_message_chunk", "content": {"type": "t" * LONG, "text": "x"}},
    {"sessionUpdate": "session_info_update", "title": "t" * LONG},
    {"sessionUpdate": "current_mode_update", "currentModeId": "m" * LONG},
    {"sessionUpdate": "available_commands_update", "availableCommands": [{"name": "n" * 100}] * 500},
    {"sessionUpdate": "plan", "entries": [{"content": "step", "priority": "p", "status": "s"}] * 1000},
    {"sessionUpdate": "u" * LONG},
]
LONG_CHANGES = [
    {"tags": dict.fromkeys(map(str, range(5000)), 1)},
    {"tags": {f"NO {number}": "v" for number in range(5000)}},
    {"tags": {"n" * LONG: 1}},
    {"title": "t" * LONG},
]
FRAMES = [json.dumps(message, ensure_ascii=False).encode() for message in MESSAGES]


def _request(line: bytes, *headers: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join((line + b" HTTP/1.1", b"Host: 127.0.0.1", *headers, b"", body))


JSON_TYPE = b"Content-Type: application/json"
HTTP_REQUESTS = [
    _request(b"GET /alive"),
    _request(b"GET /api/conversations/search?limit=5", b"Accept: */*", b"Connection: close"),
    _request(b"POST /api/conversations", JSON_TYPE, b"Content-Length: 2", body=b"{}"),
    _request(b"PATCH /api/settings", JSON_TYPE, b"Transfer-Encoding: chunked", body=b"2\r\n{}\r\n0\r\n\r\n"),
    _request(
        b"OPTIONS /api/settings", b"Origin: http://localhost:1", b"Access-Control-Request-Method: PATCH"
    ),
    _request(
        b"GET /sockets/events/01a1fd5c-83bf-7d90-b8a7-f8d042d32f4b",
        b"Connection: Upgrade",
        b"Upgrade: websocket",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
]
