"""The directive `pour`: the same bytes again and again, as fast as they are taken. What is poured is made once,
so that it costs this process nothing and the reader everything.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from scripted_agent import shapes
from scripted_agent.directives import directive
from scripted_agent.turn import Turn

BLOCK_BYTES = 64 * 1024  # written at once: what a pipe holds
LARGE_BYTES = 3 * 1024 * 1024  # of text, in one message
NODES = 150_000  # of one message that is nothing but structure

Made = dict[str, Callable[[Turn], bytes]]
LIQUIDS: Made = {}


def liquid(name: str) -> Callable[[Callable[[Turn], bytes]], Callable[[Turn], bytes]]:
    def register(function: Callable[[Turn], bytes]) -> Callable[[Turn], bytes]:
        LIQUIDS[name] = function
        return function

    return register


@directive("pour", "KIND [SECONDS] noise, text, tools, ...: as much of it as is taken (until cancelled)")
def _pour(turn: Turn, rest: str) -> None:
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
        turn.agent.log.write("poured", bytes=poured)


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
