"""Directives that ask for permission as real agents do, in all their ways."""

from __future__ import annotations

import os

from scripted_agent import shapes
from scripted_agent.directives import directive
from scripted_agent.turn import Turn, TurnEndError

TYPE_CHECKING = False  # as typing has it, which takes its time to import
if TYPE_CHECKING:
    from typing import Any


def content(text: str) -> dict[str, Any]:
    return {"type": "content", "content": shapes.text_block(text)}


def announce(turn: Turn, call: str, **fields: Any) -> None:
    turn.update({"sessionUpdate": "tool_call", "toolCallId": call, **fields})


def options(turn: Turn) -> list[dict[str, Any]]:
    return shapes.permission_options(turn.modes.listed("options", shapes.OPTION_KINDS))


def asks(turn: Turn, call: str, **fields: Any) -> bool:
    params = {"toolCall": {"toolCallId": call, **fields}, "options": options(turn)}
    return turn.allowed(turn.ask("session/request_permission", params))


@directive("askwords", "COMMAND says what it asks for in the content of its request alone, then runs it")
def _askwords(turn: Turn, rest: str) -> None:
    call = turn.new_tool_id()
    announce(turn, call, title="Bash", kind="execute", status="pending", rawInput={})
    allowed = asks(turn, call, title="Bash", content=[content(f"Requesting approval to run: `{rest}`")])
    turn.update_tool(call, "completed" if allowed else "failed", "done" if allowed else None)


@directive("askdiff", "PATH TEXT asks with a diff, writes the file, and forgets the diff in the result")
def _askdiff(turn: Turn, rest: str) -> None:
    name, _, text = rest.partition(" ")
    path = os.path.join(turn.session.cwd, name)
    old = None
    if os.path.exists(path):
        with open(path) as file:
            old = file.read()
    new = text.replace("\\n", "\n")
    diff = {"type": "diff", "path": path, "oldText": old, "newText": new}
    call = turn.new_tool_id()
    where = [{"path": path, "line": 1}]
    if asks(turn, call, title=f"Write {name}", kind="edit", content=[diff], locations=where):
        with open(path, "w") as file:
            file.write(new)
        turn.update_tool(call, "completed", "The file was written.")
    else:
        turn.update_tool(call, "failed")


@directive("askonly", "TITLE asks for a call that never comes")
def _askonly(turn: Turn, rest: str) -> None:
    asked = asks(turn, "only-asked", title=rest or "May I look around?", content=[content("It helps.")])
    turn.agent.log.write("askonly", allowed=asked)


@directive("askother", "COMMAND asks under one id and announces the call under another")
def _askother(turn: Turn, rest: str) -> None:
    if asks(turn, "asked-id", title=rest, kind="execute"):
        turn.update_tool(turn.start_tool("execute", "the real one", {"command": rest}), "completed", "done")


@directive("askforall", "N calls that are announced as running, and asked for by one request of another id")
def _askforall(turn: Turn, rest: str) -> None:
    calls = [turn.start_tool("execute", f"step {n}", {"n": n}) for n in range(int(rest or 2))]
    for call in calls:
        turn.update_tool(call, "in_progress")
    allowed = asks(turn, "confirmation", title="Confirm Agent Actions")
    for call in calls:
        turn.update_tool(call, "completed" if allowed else "failed", "done")


@directive("askagain", "STATUS a call that is announced again, with this status, after it was answered")
def _askagain(turn: Turn, rest: str) -> None:
    given = {"title": "rm -rf build", "kind": "execute", "rawInput": {"command": "rm -rf build"}}
    call = turn.new_tool_id()
    announce(turn, call, status="pending", **given)
    allowed = asks(turn, call, title="Run rm")
    announce(turn, call, status=rest or "in_progress", **given)
    turn.update_tool(call, "completed" if allowed else "failed")


@directive("asklate", "STATUS asks; announces the call again, with this status, after the turn has ended")
def _asklate(turn: Turn, rest: str) -> None:
    given = {"title": "rm -rf build", "kind": "execute", "rawInput": {"command": "rm -rf build"}}
    call = turn.new_tool_id()
    turn.late.append(lambda: announce(turn, call, status=rest, **given))
    announce(turn, call, status="pending", **given)
    asks(turn, call, title="Run rm")


@directive("batch", "N calls of one answer, announced at once as running, asked for one after the other")
def _batch(turn: Turn, rest: str) -> None:
    calls = [turn.new_tool_id() for _ in range(int(rest or 3))]
    for number, call in enumerate(calls):
        announce(turn, call, title=f"step {number}", kind="execute", status="in_progress")
    for number, call in enumerate(calls):
        allowed = asks(turn, call, title=f"step {number}", rawInput={"number": number})
        turn.pause(0.5)
        turn.update_tool(call, "completed" if allowed else "failed", f"output {number}")


@directive("stopif", "asks, and ends the turn as cancelled if it is rejected")
def _stopif(turn: Turn, rest: str) -> None:
    call = turn.start_tool("execute", "rm", {"command": "rm"})
    if not asks(turn, call, title="rm"):
        raise TurnEndError("cancelled")
    turn.update_tool(call, "completed")


@directive("midway", "text before, while and after a call runs, without a boundary")
def _midway(turn: Turn, rest: str) -> None:
    call = turn.start_tool("execute", "make", {"command": "make"})
    turn.update_tool(call, "in_progress")
    turn.say("I run the tests now.")
    turn.update_tool(call, "completed", "ok")
    turn.say("They pass.")


@directive("shell", "COMMAND a call whose result names one of the client's terminals")
def _shell(turn: Turn, rest: str) -> None:
    call = turn.start_tool("execute", rest, {"command": rest})
    terminal = turn.ask("terminal/create", {"command": "/bin/sh", "args": ["-c", rest]})["terminalId"]
    named = [{"type": "terminal", "terminalId": terminal}]
    update = {"sessionUpdate": "tool_call_update", "toolCallId": call, "content": named}
    turn.update({**update, "status": "in_progress"})
    turn.ask("terminal/wait_for_exit", {"terminalId": terminal})
    turn.ask("terminal/release", {"terminalId": terminal})
    turn.update({**update, "status": "completed"})


@directive("lateshell", "COMMAND the same, but the terminal is named after it was released")
def _lateshell(turn: Turn, rest: str) -> None:
    call = turn.start_tool("execute", rest, {"command": rest})
    terminal = turn.ask("terminal/create", {"command": "/bin/sh", "args": ["-c", rest]})["terminalId"]
    turn.ask("terminal/wait_for_exit", {"terminalId": terminal})
    turn.ask("terminal/release", {"terminalId": terminal})
    named = [{"type": "terminal", "terminalId": terminal}]
    update = {"sessionUpdate": "tool_call_update", "toolCallId": call, "status": "completed"}
    turn.update({**update, "content": named})
