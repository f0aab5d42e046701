"""The directive `leak`: says values that nobody should see in every way that an agent can say anything.

The values are in a file, so that no prompt names them: `{"values": {NAME: {FORM: TEXT}}}`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable

from scripted_agent import shapes
from scripted_agent.directives import directive
from scripted_agent.turn import Turn, TurnEndError
from scripted_agent.wire import RpcError

TYPE_CHECKING = False  # as typing has it, which takes its time to import
if TYPE_CHECKING:
    from typing import Any

PIECES = (1, 3, 7)  # characters of a value in one chunk

WAYS: dict[str, Callable[[Turn, str], None]] = {}


def way(name: str) -> Callable[[Callable[[Turn, str], None]], Callable[[Turn, str], None]]:
    def register(function: Callable[[Turn, str], None]) -> Callable[[Turn, str], None]:
        WAYS[name] = function
        return function

    return register


@directive("leak", "FILE [WAY...] says the values in FILE in these ways, or in every way that goes on")
def _leak(turn: Turn, rest: str) -> None:
    path, *ways = rest.split()
    with open(path) as file:
        values = json.load(file)["values"]
    for name in ways or [name for name in WAYS if name not in ENDINGS]:
        for forms in values.values():
            for text in forms.values():
                WAYS[name](turn, text)


ENDINGS = ("error", "crash", "stop")
"""Ways that end the turn, and so say the first value alone: the file for these should have one."""


@way("text")
def _text(turn: Turn, value: str) -> None:
    turn.say(f"before {value} after ")


@way("pieces")
def _pieces(turn: Turn, value: str) -> None:
    for size in PIECES:
        for start in range(0, len(value), size):
            turn.say(value[start : start + size])
        turn.say(" ")


@way("thought")
def _thought(turn: Turn, value: str) -> None:
    turn.think(f"before {value} after ")
    for size in PIECES:
        for start in range(0, len(value), size):
            turn.think(value[start : start + size])
        turn.think(" ")


@way("tool")
def _tool(turn: Turn, value: str) -> None:
    call = turn.start_tool("execute", f"Run {value}", {"command": value, value: [value, {"deep": value}]})
    content = [
        {"type": "content", "content": shapes.text_block(value)},
        {"type": "diff", "path": f"/w/{value}", "oldText": value, "newText": value},
        {"type": "content", "content": {"type": "resource_link", "name": value, "uri": f"file:///{value}"}},
    ]
    update = {"sessionUpdate": "tool_call_update", "toolCallId": call, "status": "completed", "title": value}
    locations = [{"path": f"/w/{value}"}]
    turn.update(
        {**update, "content": content, "locations": locations, "rawOutput": {"output": value, value: 1}}
    )


@way("tool-pieces")
def _tool_pieces(turn: Turn, value: str) -> None:
    half = len(value) // 2
    call = turn.start_tool("execute", "cat", {"command": "cat"})
    for part in (value[:half], value[half:]):
        delta = {"terminal_output_delta": {"data": part, "terminal_id": call}}
        turn.update({"sessionUpdate": "tool_call_update", "toolCallId": call, "_meta": delta})
    turn.update_tool(call, "failed", f"{value}\n{value}")


@way("plan")
def _plan(turn: Turn, value: str) -> None:
    entries = [{"content": f"Use {value}", "priority": value, "status": "pending"}]
    turn.update({"sessionUpdate": "plan", "entries": entries})


@way("permission")
def _permission(turn: Turn, value: str) -> None:
    call = turn.start_tool("execute", "ask", {"command": value})
    params = turn.permission_params(call, f"May I {value}", ["allow_once", "reject_once"])
    params["toolCall"]["rawInput"] = {"command": value}
    for option in params["options"]:
        option["name"] = f"{option['name']} {value}"
    turn.ask("session/request_permission", params)
    turn.update_tool(call, "completed", value)


@way("session")
def _session(turn: Turn, value: str) -> None:
    turn.update(shapes.title(f"Title {value}"))
    turn.update({"sessionUpdate": "current_mode_update", "currentModeId": value})
    turn.update(
        {"sessionUpdate": "usage_update", "used": 1, "size": 2, "cost": {"amount": 1, "currency": value}}
    )
    turn.update({"sessionUpdate": "notice", "severity": "warning", "title": value, "description": value})
    turn.update(
        {"sessionUpdate": "compaction_update", "compactionId": value, "status": "failed", "error": value}
    )
    command = {"name": value, "description": value, "input": {"hint": value}}
    turn.update({"sessionUpdate": "available_commands_update", "availableCommands": [command]})
    option: dict[str, Any] = {"id": "model", "name": value, "category": "model", "type": "select"}
    option |= {"currentValue": value, "options": [{"value": value, "name": value}]}
    turn.update({"sessionUpdate": "config_option_update", "configOptions": [option]})


@way("unknown")
def _unknown(turn: Turn, value: str) -> None:
    turn.update({"sessionUpdate": "hologram_update", value: value, "list": [value]})
    turn.agent.wire.notify("_vendor/event", {value: value})
    turn.agent.wire.notify(f"_vendor/{value}", {})
    turn.agent.wire.write(f"noise {value}\n".encode())


@way("requests")
def _requests(turn: Turn, value: str) -> None:
    asked = [
        ("_vendor/question", {"value": value}),
        (f"_vendor/{value}", {}),
        ("fs/read_text_file", {"path": f"{turn.session.cwd}/{value}"}),
        ("terminal/create", {"command": f"no-such-{value}", "args": [value]}),
        ("elicitation/create", {"mode": "form", "message": value, "requestedSchema": {"title": value}}),
    ]
    for method, params in asked:
        try:
            turn.ask(method, params)
        except RpcError as failure:
            turn.say(f"refused: {failure.message} ")


@way("stderr")
def _stderr(turn: Turn, value: str) -> None:
    print(f"debug: {value}", file=sys.stderr, flush=True)
    half = len(value) // 2
    for part in (value[:half], value[half:] + "\n"):
        print(part, end="", file=sys.stderr, flush=True)


@way("error")
def _error(turn: Turn, value: str) -> None:
    raise RpcError(-32603, f"Failed with {value}", {"details": value, value: [value]})


@way("stop")
def _stop(turn: Turn, value: str) -> None:
    raise TurnEndError(value)


@way("crash")
def _crash(turn: Turn, value: str) -> None:
    _stderr(turn, value)
    turn.agent.crash("3")
