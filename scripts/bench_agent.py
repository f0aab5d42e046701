"""The agent of scripts/bench: an ACP agent that answers at once and offers load to order. Standard library.

A prompt is one of: `turn`, `tools N`, `deltas N`, `paced RATE SECONDS` (tool events per second, each with the
time at which it was written, in nanoseconds of the monotonic clock, which all processes of a machine share).
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

FLUSH_BYTES = 65536  # what a pipe holds


def main() -> None:
    for line in sys.stdin.buffer:
        message = json.loads(line)
        method, id_ = message.get("method"), message.get("id")
        if id_ is None or method is None:
            continue
        if method == "initialize":
            result: Any = {
                "protocolVersion": 1,
                "agentCapabilities": {},
                "agentInfo": {"name": "bench", "version": "1"},
            }
        elif method == "session/new":
            result = {"sessionId": "bench"}
        elif method == "session/prompt":
            words = message["params"]["prompt"][0]["text"].split()
            LOADS[words[0]](*words[1:])
            result = {"stopReason": "end_turn"}
        else:
            result = {}
        write(encoded({"jsonrpc": "2.0", "id": id_, "result": result}))


def write(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def encoded(message: dict[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def update(fields: dict[str, Any]) -> bytes:
    params = {"sessionId": "bench", "update": fields}
    return encoded({"jsonrpc": "2.0", "method": "session/update", "params": params})


def call(number: int) -> bytes:
    """A tool call as agents send it: announced with its input, completed with its output."""
    id_ = f"call_{number}"
    began = {"toolCallId": id_, "title": f"Read file {number}", "kind": "read", "status": "in_progress"}
    text = {"type": "content", "content": {"type": "text", "text": f"line {number}\n" * 8}}
    ended = {
        "toolCallId": id_,
        "status": "completed",
        "content": [text],
        "rawOutput": {"exit": 0, "n": number},
    }
    return update(
        {"sessionUpdate": "tool_call", "rawInput": {"path": f"/tmp/file-{number}"}, **began}
    ) + update({"sessionUpdate": "tool_call_update", **ended})


def chunk(text: str) -> bytes:
    return update({"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}})


def turn() -> None:
    write(chunk("done"))


def flood(messages: Any) -> None:
    pending = bytearray()
    for message in messages:
        pending += message
        if len(pending) >= FLUSH_BYTES:
            write(bytes(pending))
            pending.clear()
    write(bytes(pending))


def tools(count: str) -> None:
    flood(call(number) for number in range(int(count)))


def deltas(count: str) -> None:
    flood(chunk(f"word{number} ") for number in range(int(count)))


def paced(rate: str, seconds: str) -> None:
    interval, start = 1 / float(rate), time.monotonic()
    for number in range(int(float(rate) * float(seconds))):
        time.sleep(max(0.0, start + number * interval - time.monotonic()))
        stamp = {"toolCallId": f"call_{number}", "title": "stamped", "kind": "read", "status": "completed"}
        write(update({"sessionUpdate": "tool_call", "rawOutput": {"sent_ns": time.monotonic_ns()}, **stamp}))


LOADS = {"turn": turn, "tools": tools, "deltas": deltas, "paced": paced}

if __name__ == "__main__":
    main()
