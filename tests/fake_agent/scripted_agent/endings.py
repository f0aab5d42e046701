"""Directives that end a turn, break the rules, or tell what the process is."""

from __future__ import annotations

import json
import os
import sys
import time

from scripted_agent import shapes
from scripted_agent.asking import report
from scripted_agent.directives import directive, numbers
from scripted_agent.turn import Turn, TurnEndError
from scripted_agent.wire import RpcError


@directive("stop", "REASON end the turn with this stop reason")
def _stop(turn: Turn, rest: str) -> None:
    raise TurnEndError(rest or "end_turn")


@directive("error", "CODE MESSAGE answer the prompt with this error")
def _error(turn: Turn, rest: str) -> None:
    code, _, message = rest.partition(" ")
    raise RpcError(int(code), message or "scripted error", {"details": message})


@directive("flaky", "N CODE MESSAGE this error for the first N prompts with this line, in all processes")
def _flaky(turn: Turn, rest: str) -> None:
    times, _, error = rest.partition(" ")
    if turn.agent.store.count("flaky-" + "".join(c if c.isalnum() else "-" for c in rest)[:80]) <= int(times):
        _error(turn, error)


@directive("hang", "say nothing until cancelled")
def _hang(turn: Turn, rest: str) -> None:
    while True:
        turn.pause(3600)


@directive("oncancel", "HOW what a cancel of this turn does, as for the mode cancel")
def _oncancel(turn: Turn, rest: str) -> None:
    turn.on_cancel = rest


@directive("sleep", "SECONDS say nothing for so long")
def _sleep(turn: Turn, rest: str) -> None:
    turn.pause(numbers(rest, 1)[0])


@directive("crash", "[CODE|SIGNAL] die at once")
def _crash(turn: Turn, rest: str) -> None:
    turn.agent.crash(rest)


@directive("eof", "close stdout and live on")
def _eof(turn: Turn, rest: str) -> None:
    turn.agent.wire.close_stdout()
    turn.agent.log.write("closed_stdout")


@directive("after", "N chunks after the answer of this turn")
def _after(turn: Turn, rest: str) -> None:
    count = int(numbers(rest, 3)[0])
    chunks = [shapes.chunk("agent_message_chunk", f"late{number} ") for number in range(count)]
    turn.late += [lambda update=chunk: turn.update(update) for chunk in chunks]


@directive("later", "SECONDS a chunk, a tool call and a title so long after the answer, outside any turn")
def _later(turn: Turn, rest: str) -> None:
    def background() -> None:
        time.sleep(numbers(rest, 0.2)[0])
        turn.update(shapes.chunk("agent_message_chunk", "background "))
        turn.update_tool(turn.start_tool("other", "background work", None), "completed", "done")
        turn.update(shapes.title("Background title"))

    turn.late.append(background)


# -- breaking the rules
@directive("unknown", "updates, a notification and a request nobody knows")
def _unknown(turn: Turn, rest: str) -> None:
    for update in shapes.unknown_updates():
        turn.update(update)
    turn.agent.wire.notify("_vendor/event", {"x": 1})
    report(turn, "_vendor/question", {})


@directive("badtypes", "updates with wrong JSON types")
def _badtypes(turn: Turn, rest: str) -> None:
    for update in shapes.badly_typed_updates():
        turn.update(update)


@directive("noise", "N lines on stdout that are not JSON")
def _noise(turn: Turn, rest: str) -> None:
    for number in range(int(numbers(rest, 1)[0])):
        turn.agent.wire.write(b"npm warn line %d\n" % number)


@directive("junk", "BYTES one line that long which is not JSON")
def _junk(turn: Turn, rest: str) -> None:
    turn.agent.wire.write(b"j" * int(rest) + b"\n")


@directive("raw", "TEXT this line as it is")
def _raw(turn: Turn, rest: str) -> None:
    turn.agent.wire.write(rest.encode() + b"\n")


@directive("bytes", "BASE64 these bytes and a line feed; SESSION in them becomes the id of the session")
def _bytes(turn: Turn, rest: str) -> None:
    import base64  # few agents need it

    turn.agent.wire.write(base64.b64decode(rest).replace(b"SESSION", turn.session.id.encode()) + b"\n")


@directive("stderr", "N lines on stderr")
def _stderr(turn: Turn, rest: str) -> None:
    for number in range(int(numbers(rest, 3)[0])):
        print(f"scripted agent: line {number + 1}", file=sys.stderr, flush=True)


@directive("complain", "TEXT this line on stderr")
def _complain(turn: Turn, rest: str) -> None:
    print(rest, file=sys.stderr, flush=True)


@directive("retry", "SECONDS TEXT this line on stderr so often and nothing else, until cancelled")
def _retry(turn: Turn, rest: str) -> None:
    seconds, _, text = rest.partition(" ")
    while True:
        _complain(turn, text)
        turn.pause(float(seconds))


# -- what the process is
@directive("run", "COMMAND ARG... a child of its own; says what that writes")
def _run(turn: Turn, rest: str) -> None:
    import subprocess

    ended = subprocess.run(rest.split(), cwd=turn.session.cwd, capture_output=True, text=True)
    turn.say(f"{ended.stdout}{ended.stderr}exit {ended.returncode} ")


@directive("spawn", "KIND a grandchild, as for the mode grandchild; says its pid")
def _spawn(turn: Turn, rest: str) -> None:
    turn.say(f"spawned {turn.agent.spawn(rest or 'plain')} ")


@directive("env", "NAME say the value of this variable")
def _env(turn: Turn, rest: str) -> None:
    turn.say(f"{rest}={os.environ.get(rest, '<unset>')} ")


@directive("pid", "say the process id")
def _pid(turn: Turn, rest: str) -> None:
    turn.say(f"pid={os.getpid()} ")


@directive("cwd", "say the working directories of the process and of the session")
def _cwd(turn: Turn, rest: str) -> None:
    turn.say(f"cwd={os.getcwd()} session={turn.session.cwd} ")


@directive("remember", "say every user text of this session so far, as a JSON list")
def _remember(turn: Turn, rest: str) -> None:
    turn.say(json.dumps([record["user"] for record in turn.session.turns[:-1]]))
