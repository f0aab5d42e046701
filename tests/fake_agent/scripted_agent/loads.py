"""Directives that offer load to order, for measurements, and cost this process as little as can be."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

from scripted_agent import shapes
from scripted_agent.directives import directive
from scripted_agent.turn import Turn

BLOCK_BYTES = 64 * 1024  # written at once: what a pipe holds
NUMBER = "917355331"  # stands where each message has its number
STAMP = 1234567890123456789  # stands where each message has the time


def _line(turn: Turn, update: object) -> bytes:
    params = {"sessionId": turn.session.id, "update": update}
    message = {"jsonrpc": "2.0", "method": "session/update", "params": params}
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def _tool(turn: Turn) -> bytes:
    """A tool call as agents send it: announced with its input, completed with its output."""
    call = {"toolCallId": f"call_{NUMBER}", "title": f"Read file {NUMBER}", "kind": "read"}
    text = {"type": "content", "content": {"type": "text", "text": f"line {NUMBER}\n" * 8}}
    begun = {"rawInput": {"path": f"/tmp/file-{NUMBER}"}, "status": "in_progress"}
    ended = {"status": "completed", "content": [text], "rawOutput": {"exit": 0, "n": int(NUMBER)}}
    return _line(turn, {"sessionUpdate": "tool_call", **call, **begun}) + _line(
        turn, {"sessionUpdate": "tool_call_update", **call, **ended}
    )


def _delta(turn: Turn) -> bytes:
    return _line(turn, shapes.chunk("agent_message_chunk", f"word{NUMBER} "))


BURSTS: dict[str, Callable[[Turn], bytes]] = {"tools": _tool, "deltas": _delta}


@directive("burst", "KIND N so many tools (two updates each) or deltas, as fast as they are taken")
def _burst(turn: Turn, rest: str) -> None:
    kind, count = rest.split()
    template = BURSTS[kind](turn).replace(b"%", b"%%").replace(NUMBER.encode(), b"%(n)d")
    each = max(1, BLOCK_BYTES // len(template))
    for begin in range(0, int(count), each):
        block = b"".join([template % {b"n": n} for n in range(begin, min(int(count), begin + each))])
        turn.agent.wire.write(block)
        turn.checkpoint()


@directive("paced", "RATE SECONDS tool events at this rate, each with the time of its writing (sent_ns)")
def _paced(turn: Turn, rest: str) -> None:
    rate, seconds = map(float, rest.split())
    call = {"toolCallId": f"call_{NUMBER}", "title": "stamped", "kind": "read", "status": "completed"}
    update = {"sessionUpdate": "tool_call", **call, "rawOutput": {"sent_ns": STAMP}}
    template = _line(turn, update).replace(NUMBER.encode(), b"%d").replace(str(STAMP).encode(), b"%d")
    start = time.monotonic()
    for number in range(int(rate * seconds)):
        turn.pause(max(0.0, start + number / rate - time.monotonic()))
        turn.agent.wire.write(template % (number, time.monotonic_ns()))


@directive("pacedtext", "RATE SECONDS chunks of text at this rate, each with the time (sent_ns=)")
def _paced_text(turn: Turn, rest: str) -> None:
    rate, seconds = map(float, rest.split())
    template = _line(turn, shapes.chunk("agent_message_chunk", f"sent_ns={STAMP} "))
    template = template.replace(str(STAMP).encode(), b"%d")
    start = time.monotonic()
    for number in range(int(rate * seconds)):
        turn.pause(max(0.0, start + number / rate - time.monotonic()))
        turn.agent.wire.write(template % time.monotonic_ns())
