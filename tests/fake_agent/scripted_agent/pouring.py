"""Directives that say very much: what a runaway agent, or a hostile one, does to those who listen."""

from __future__ import annotations

import json
from collections.abc import Callable

from scripted_agent import shapes
from scripted_agent.directives import directive
from scripted_agent.turn import Turn

TYPE_CHECKING = False  # as typing has it, which takes its time to import
if TYPE_CHECKING:
    from typing import Any

PIECE_BYTES = 64 * 1024

CALL = "poured"


def _call(**fields: Any) -> dict[str, Any]:
    return {"sessionUpdate": "tool_call_update", "toolCallId": CALL, **fields}


def _shell(key: str) -> Callable[[str], dict[str, Any]]:
    return lambda text: _call(_meta={key: {"terminal_id": "t1", "data": text}})


KINDS: dict[str, Callable[[str], dict[str, Any]]] = {
    "text": lambda text: shapes.chunk("agent_message_chunk", text),
    "thoughts": lambda text: shapes.chunk("agent_thought_chunk", text),
    "output": _shell("terminal_output_delta"),
    "shown": _shell("terminal_output"),
    "content": lambda text: _call(content=[{"type": "content", "content": shapes.text_block(text)}]),
    "calls": lambda text: {
        "sessionUpdate": "tool_call",
        "title": "one of many",
        "status": "in_progress",
        "rawInput": {"text": text},
    },
    "updates": lambda text: {"sessionUpdate": "nobody_knows_this", "text": text},
}
"""What can be poured: one update of the kind with a text."""


@directive("pour", "KIND BYTES [PIECE] so much of a kind, in pieces; a tool call is opened for it")
def _pour(turn: Turn, rest: str) -> None:
    kind, size, *piece = rest.split()
    left, length = int(size), int(piece[0]) if piece else PIECE_BYTES
    if kind in ("output", "shown", "content"):
        turn.update(
            {"sessionUpdate": "tool_call", "toolCallId": CALL, "title": "pour", "status": "in_progress"}
        )
    line = ("0123456789abcdef" * 5)[:79] + "\n"
    text = ("HEAD" + line * (length // len(line) + 1))[:length]
    params = {"sessionId": turn.session.id, "update": KINDS[kind](text)}
    message = {"jsonrpc": "2.0", "method": "session/update", "params": params}
    frame = json.dumps(message, separators=(",", ":")).encode() + b"\n"
    number = 0
    while left > 0:
        mark = b"%04d" % (number % 10_000)
        # Calls have ids of their own, so that they stay open side by side.
        more = b'"toolCallId":"poured-%d",' % number if kind == "calls" else b""
        turn.agent.wire.write(
            frame.replace(b"HEAD", mark, 1).replace(b'"title":"one', more + b'"title":"one', 1)
        )
        turn.checkpoint()
        left -= length
        number += 1
    if kind in ("output", "shown", "content"):
        turn.update(_call(status="completed"))
