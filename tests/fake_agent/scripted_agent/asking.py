"""Directives that ask the client for something: permission, files, a terminal, an answer."""

from __future__ import annotations

import json
import os

from scripted_agent import shapes
from scripted_agent.directives import directive, numbers
from scripted_agent.turn import Turn
from scripted_agent.wire import RpcError


@directive("perm", "[KIND,KIND...] a tool call that needs permission; says allowed or rejected")
def _perm(turn: Turn, rest: str) -> None:
    kinds = rest.split(",") if rest else turn.modes.listed("options", shapes.OPTION_KINDS)
    call = turn.start_tool("execute", "rm -rf build", {"command": "rm -rf build"})
    allowed = turn.allowed(turn.ask("session/request_permission", turn.permission_params(call, "rm", kinds)))
    turn.update_tool(call, "completed" if allowed else "failed", "done" if allowed else "not allowed")
    turn.say("allowed " if allowed else "rejected ")


@directive("write", "PATH TEXT asks for permission, then writes the file in the workspace")
def _write(turn: Turn, rest: str) -> None:
    path, _, text = rest.partition(" ")
    call = turn.start_tool("edit", f"Write {path}", {"path": path, "content": text})
    kinds = turn.modes.listed("options", shapes.OPTION_KINDS)
    params = turn.permission_params(call, path, kinds, "edit")
    allowed = turn.allowed(turn.ask("session/request_permission", params))
    if allowed:
        with open(os.path.join(turn.session.cwd, path), "w") as file:
            file.write(text)
    turn.update_tool(call, "completed" if allowed else "failed", "written" if allowed else "not written")
    turn.say("written " if allowed else "rejected ")


@directive("perms", "N tool calls that ask for permission all at once")
def _perms(turn: Turn, rest: str) -> None:
    kinds = turn.modes.listed("options", shapes.OPTION_KINDS)
    calls = [turn.start_tool("execute", f"call {n}", {"n": n}) for n in range(int(numbers(rest, 10)[0]))]
    asked = [
        turn.begin_ask("session/request_permission", turn.permission_params(call, call, kinds))
        for call in calls
    ]
    answers = [turn.agent.wire.finish(request_id) for request_id in asked]
    allowed = 0
    for call, answer in zip(calls, answers, strict=True):
        yes = turn.allowed(answer)
        allowed += yes
        turn.update_tool(call, "completed" if yes else "failed")
    turn.say(f"allowed {allowed} of {len(calls)} ")


@directive("elicit", "a form elicitation; says what came back")
def _elicit(turn: Turn, rest: str) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string"}}}
    report(turn, "elicitation/create", {"mode": "form", "message": "Who?", "requestedSchema": schema})


@directive("read", "PATH [LINE LIMIT] fs/read_text_file; says what came back")
def _read(turn: Turn, rest: str) -> None:
    path, *window = rest.split()
    params = {"path": os.path.join(turn.session.cwd, path)}
    report(turn, "fs/read_text_file", params | dict(zip(("line", "limit"), map(int, window), strict=False)))


@directive("fswrite", "PATH TEXT fs/write_text_file; says what came back")
def _fswrite(turn: Turn, rest: str) -> None:
    path, _, text = rest.partition(" ")
    report(turn, "fs/write_text_file", {"path": os.path.join(turn.session.cwd, path), "content": text})


@directive("terminal", "COMMAND ARG... create, wait, output, release; says the output")
def _terminal(turn: Turn, rest: str) -> None:
    command, *arguments = rest.split()
    terminal = turn.ask("terminal/create", {"command": command, "args": arguments, "outputByteLimit": 10_000})
    turn.ask("terminal/wait_for_exit", terminal)
    report(turn, "terminal/output", terminal)
    turn.ask("terminal/release", terminal)


@directive("request", "METHOD any other request to the client; says what came back")
def _request(turn: Turn, rest: str) -> None:
    report(turn, rest, {})


def report(turn: Turn, method: str, params: dict[str, object]) -> None:
    try:
        turn.say(f"{method} -> {json.dumps(turn.ask(method, params))} ")
    except RpcError as failure:
        turn.say(f"{method} -> error {failure.code} {failure.message} ")
