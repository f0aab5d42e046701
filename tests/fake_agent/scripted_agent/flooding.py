"""The directive `gush`: the same bytes again and again, as fast as they are taken. What is poured is made
once, so that it costs this process nothing and the reader everything.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable

from scripted_agent import shapes
from scripted_agent.directives import directive
from scripted_agent.turn import Turn

TYPE_CHECKING = False  # as typing has it, which takes its time to import
if TYPE_CHECKING:
    from typing import Any

BLOCK_BYTES = 64 * 1024  # written at once: what a pipe holds
LARGE_BYTES = 3 * 1024 * 1024  # of text, in one message
NODES = 49_000  # lists in one message that is nothing but structure: as many as are read

Made = dict[str, Callable[[Turn], bytes]]
LIQUIDS: Made = {}


def liquid(name: str) -> Callable[[Callable[[Turn], bytes]], Callable[[Turn], bytes]]:
    def register(function: Callable[[Turn], bytes]) -> Callable[[Turn], bytes]:
        LIQUIDS[name] = function
        return function

    return register


@directive("gush", "KIND [SECONDS] noise, text, tools, ...: as much of it as is taken (until cancelled)")
def _gush(turn: Turn, rest: str) -> None:
    kind, _, seconds = rest.partition(" ")
    block = b"y\n" if kind == "stderr" else LIQUIDS[kind](turn)
    block *= max(1, BLOCK_BYTES // len(block))
    end = time.monotonic() + float(seconds or 3600)
    poured = 0
    try:
        while time.monotonic() < end:
            if kind == "stderr":
                os.write(sys.stderr.fileno(), block)
            else:
                turn.agent.wire.write(block)
            poured += len(block)
            turn.checkpoint()
    finally:
        turn.agent.log.write("gushed", bytes=poured)


def _frame(turn: Turn, value: bytes) -> bytes:
    """An update with this value, which is JSON already, as a tool's output."""
    empty = {
        "sessionUpdate": "tool_call_update",
        "toolCallId": "worst",
        "status": "completed",
        "rawOutput": 0,
    }
    return update(turn, empty).replace(b'"rawOutput":0', b'"rawOutput":' + value)


def _random(size: int) -> bytes:
    import random  # takes as long as all else together, and is for this alone

    return random.Random(1).randbytes(size)


MEGABYTE = 1 << 20
WORST: dict[str, Callable[[], bytes]] = {
    "text": lambda: b'"' + b"words and words" * MEGABYTE + b'"',
    "escapes": lambda: b'"' + b"\\n" * (15 * MEGABYTE // 2) + b'"',
    "codes": lambda: b'"' + b"\\u00e9" * (15 * MEGABYTE // 6) + b'"',
    "pairs": lambda: b'"' + b"\\ud83d\\ude00" * (15 * MEGABYTE // 12) + b'"',
    "utf8": lambda: b'"' + "é€😀".encode() * (15 * MEGABYTE // 9) + b'"',
    "base64": lambda: b'"' + _random(7 * MEGABYTE).hex().encode() + b'"',
    "brackets": lambda: b'"' + b"[{,:" * (15 * MEGABYTE // 4) + b'"',
    "lists": lambda: b"[" + b"[]," * NODES + b"1]",
    "objects": lambda: b"[" + b'{"a":1},' * (NODES // 2) + b"1]",
    "keys": lambda: b"{" + b",".join(b'"k%d":1' % number for number in range(NODES)) + b"}",
    "floats": lambda: b"[" + b"1.2345678901234567e-300," * (2 * NODES) + b"1]",
    "strings": lambda: b"[" + (b'"' + b"s" * 140 + b'",') * (2 * NODES) + b"1]",
    "deep": lambda: b",".join([b"[" * 190 + b"]" * 190] * 250).join((b"[", b"]")),
    "repaired": lambda: b'"' + b"\\ud800\\n" * (MEGABYTE // 8 - 100) + b'"',
    "numbers": lambda: b"[" + b"NaN," * NODES + b"1" * 4000 + b"]",
    "unmended": lambda: b'"' + b"\\ud800" * (15 * MEGABYTE // 6) + b'"',
    "heavy": lambda: b"[" + b"[]," * (5 * MEGABYTE) + b"1]",
}
"""What costs most to read, just below the limits or, the last two, beyond."""


@directive("worst", "KIND one update that is as costly to read as can be")
def _worst(turn: Turn, rest: str) -> None:
    turn.agent.wire.write(_frame(turn, WORST[rest]()))


@directive("heavy", "N one update with so many empty lists")
def _heavy(turn: Turn, rest: str) -> None:
    turn.update({"sessionUpdate": "tool_call_update", "toolCallId": "heavy", "rawOutput": [[]] * int(rest)})


def line(message: dict[str, Any]) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **message}, separators=(",", ":")).encode() + b"\n"


def update(turn: Turn, content: dict[str, Any]) -> bytes:
    return line({"method": "session/update", "params": {"sessionId": turn.session.id, "update": content}})


def request(turn: Turn, number: int, method: str, **params: Any) -> bytes:
    params = {"sessionId": turn.session.id, **params}
    return line({"id": f"p{number}", "method": method, "params": params})


@liquid("noise")
def _noise(turn: Turn) -> bytes:
    return b"y\n"


@liquid("text")
def _text(turn: Turn) -> bytes:
    return update(turn, shapes.chunk("agent_message_chunk", "word "))


@liquid("tools")
def _tools(turn: Turn) -> bytes:
    call = {"toolCallId": "poured", "title": "step", "kind": "execute"}
    begun = {**call, "sessionUpdate": "tool_call", "status": "in_progress", "rawInput": {"command": "ls"}}
    ended = {**call, "sessionUpdate": "tool_call_update", "status": "completed", "rawOutput": {"out": "x"}}
    return update(turn, begun) + update(turn, ended)


@liquid("progress")
def _progress(turn: Turn) -> bytes:
    return update(turn, {"sessionUpdate": "tool_call_update", "toolCallId": "poured", "title": "go on"})


@liquid("broken")
def _broken(turn: Turn) -> bytes:
    """Updates that are none, answers to nothing, and what is almost JSON."""
    return (
        line({"method": "session/update", "params": [1]})
        + line({"id": 987654, "result": {}})
        + b'{"jsonrpc":"2.0","method":"session/update","params":{"text":"\\ud800"}}\n'
        + line({"method": 5, "id": "x"})
    )


@liquid("unknown")
def _unknown(turn: Turn) -> bytes:
    return b"".join(request(turn, number, "_vendor/unknown") for number in range(200))


@liquid("reads")
def _reads(turn: Turn) -> bytes:
    path = f"{turn.session.cwd}/no-such-file"
    return b"".join(request(turn, number, "fs/read_text_file", path=path) for number in range(200))


@liquid("permissions")
def _permissions(turn: Turn) -> bytes:
    options = shapes.permission_options(["allow_once", "reject_once"])
    asked = {"toolCallId": "asked", "title": "May I", "kind": "execute", "status": "pending"}
    return b"".join(
        request(turn, number, "session/request_permission", toolCall=asked, options=options)
        for number in range(200)
    )


@liquid("large")
def _large(turn: Turn) -> bytes:
    return update(turn, shapes.chunk("agent_message_chunk", "large " * (LARGE_BYTES // 6)))


@liquid("nodes")
def _nodes(turn: Turn) -> bytes:
    raw = {"sessionUpdate": "tool_call_update", "toolCallId": "poured", "rawOutput": [[]] * NODES}
    return update(turn, raw)


@liquid("heavy")
def _too_heavy(turn: Turn) -> bytes:
    return _nodes(turn).replace(b"[]", b"[],[],[],[]")
