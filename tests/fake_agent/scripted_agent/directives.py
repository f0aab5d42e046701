"""What one line of a prompt can make a turn do: `!name arguments`."""

from __future__ import annotations

import json
import os
from collections.abc import Callable

from scripted_agent import shapes
from scripted_agent.turn import Turn

FLOOD_BATCH = 500  # deltas per write: fast, and a cancel is noticed soon


class Directive:
    """One line's effect; `run` takes the turn and the words after the name as one string."""

    def __init__(self, help_text: str, run: Callable[[Turn, str], None]) -> None:
        self.help = help_text
        self.run = run


DIRECTIVES: dict[str, Directive] = {}


def directive(
    name: str, help_text: str
) -> Callable[[Callable[[Turn, str], None]], Callable[[Turn, str], None]]:
    def register(function: Callable[[Turn, str], None]) -> Callable[[Turn, str], None]:
        if name in DIRECTIVES:  # the one of before would be lost, and its tests would test nothing
            raise ValueError(f"there are two directives of the name {name}")
        DIRECTIVES[name] = Directive(help_text, function)
        return function

    return register


def perform(turn: Turn) -> None:
    """Run the lines of the turn's script in order."""
    if turn.session.pending and "resumes-calls" in turn.modes:
        run_counted(turn)
    for line in turn.script.splitlines():
        turn.checkpoint()
        name, _, rest = line.strip().partition(" ")
        known = DIRECTIVES.get(name[1:]) if name.startswith("!") else None
        if known:
            known.run(turn, rest.strip())
        elif line.strip():
            echo(turn, line.strip())


def echo(turn: Turn, line: str) -> None:
    for word in ["echo:", *line.split()]:
        turn.say(word + " ")


def numbers(rest: str, *defaults: float) -> list[float]:
    given = [float(word) for word in rest.split()]
    return [*given, *defaults[len(given) :]]


# -- text
@directive("text", "TEXT one chunk, verbatim")
def _text(turn: Turn, rest: str) -> None:
    turn.say(rest)


@directive("verdict", "N a judge's verdict: complete from the N-th one of this home on")
def _verdict(turn: Turn, rest: str) -> None:
    done = turn.agent.store.count("verdict") >= int(rest)
    found = {"score": 0.9 if done else 0.2, "complete": done, "missing": "" if done else "the tests"}
    turn.say(json.dumps(found))


@directive("message", "ID TEXT one chunk with this messageId")
def _message(turn: Turn, rest: str) -> None:
    message_id, _, text = rest.partition(" ")
    turn.say(text, message_id)


@directive("think", "TEXT one thought chunk per word")
def _think(turn: Turn, rest: str) -> None:
    for word in (rest or "let me think").split():
        turn.think(word + " ")


@directive("split", "REPEAT text of 1 to 4 byte characters, written byte by byte")
def _split(turn: Turn, rest: str) -> None:
    text = "aé€😀" * int(numbers(rest, 3)[0])
    turn.said += text
    params = {"sessionId": turn.session.id, "update": shapes.chunk("agent_message_chunk", text)}
    message = {"jsonrpc": "2.0", "method": "session/update", "params": params}
    for byte in json.dumps(message, ensure_ascii=False).encode() + b"\n":
        turn.agent.wire.write(bytes([byte]))


@directive("slow", "N MS so many chunks, so far apart")
def _slow(turn: Turn, rest: str) -> None:
    count, gap_ms = numbers(rest, 20, 50)
    for number in range(int(count)):
        turn.say(f"s{number} ")
        turn.pause(gap_ms / 1000)


@directive("flood", "N deltas as fast as the pipe takes them")
def _flood(turn: Turn, rest: str) -> None:
    count = int(numbers(rest, 1000)[0])
    params = {"sessionId": turn.session.id, "update": shapes.chunk("agent_message_chunk", "MARK")}
    message = {"jsonrpc": "2.0", "method": "session/update", "params": params}
    head, tail = json.dumps(message, separators=(",", ":")).encode().split(b"MARK")
    for start in range(0, count, FLOOD_BATCH):
        batch = range(start, min(start + FLOOD_BATCH, count))
        turn.agent.wire.write(b"".join(head + b"d%d " % number + tail + b"\n" for number in batch))
        turn.checkpoint()
    turn.said += f"<{count} deltas>"


@directive("huge", "BYTES one chunk with that much text")
def _huge(turn: Turn, rest: str) -> None:
    turn.update(shapes.chunk("agent_message_chunk", "h" * int(rest)))


# -- tool calls
@directive("tool", "[KIND [TITLE]] a whole tool call")
def _tool(turn: Turn, rest: str) -> None:
    kind, _, title = rest.partition(" ")
    call = turn.start_tool(kind or "execute", title or "ls", {"command": title or "ls"})
    turn.update_tool(call, "in_progress")
    turn.update_tool(call, "completed", "tool output")


@directive("tools", "N whole tool calls, one after the other")
def _tools(turn: Turn, rest: str) -> None:
    for number in range(int(numbers(rest, 3)[0])):
        call = turn.start_tool("execute", f"step {number}", {"number": number})
        turn.update_tool(call, "completed", f"output {number}")


@directive("failtool", "a tool call that fails")
def _failtool(turn: Turn, rest: str) -> None:
    call = turn.start_tool("execute", "false", {"command": "false"})
    turn.update_tool(call, "failed", "exit status 1")


@directive("bigtool", "BYTES a tool call with that much output")
def _bigtool(turn: Turn, rest: str) -> None:
    call = turn.start_tool("execute", "cat big", {"command": "cat big"})
    turn.update_tool(call, "completed", "head" + "o" * int(rest) + "tail")


@directive("streamtool", "TEXT TEXT... a tool call whose output comes in these pieces")
def _streamtool(turn: Turn, rest: str) -> None:
    call = turn.start_tool("execute", "stream", {"command": "stream"})
    for piece in rest.split():
        meta = {"terminal_output_delta": {"terminal_id": "t1", "data": piece}}
        turn.update({"sessionUpdate": "tool_call_update", "toolCallId": call, "_meta": meta})
    turn.update_tool(call, "completed")


@directive("opentool", "a tool call that is never closed")
def _opentool(turn: Turn, rest: str) -> None:
    turn.update_tool(turn.start_tool("execute", "sleep 60", {"command": "sleep 60"}), "in_progress")


@directive("slowtool", "SECONDS a tool call that runs so long")
def _slowtool(turn: Turn, rest: str) -> None:
    call = turn.start_tool("execute", "sleep", {"seconds": rest})
    turn.update_tool(call, "in_progress")
    turn.pause(numbers(rest, 1)[0])
    turn.update_tool(call, "completed", "slept")


@directive(
    "counted",
    "FILE [SECONDS [GATE]] asks, then adds a line to FILE in the workspace and runs so long; "
    "before all that, somebody has to open the pipe GATE",
)
def _counted(turn: Turn, rest: str) -> None:
    for gate in rest.split()[2:]:
        os.close(os.open(os.path.join(turn.session.cwd, gate), os.O_RDONLY))
    call = turn.start_tool("execute", f"count {rest}", {"command": rest})
    turn.session.pending = rest
    turn.agent.store.save(turn.session)
    kinds = turn.modes.listed("options", shapes.OPTION_KINDS)
    if turn.allowed(turn.ask("session/request_permission", turn.permission_params(call, "count", kinds))):
        run_counted(turn, call)
    else:
        turn.session.pending = ""
        turn.update_tool(call, "failed", "not allowed")


def run_counted(turn: Turn, call: str | None = None) -> None:
    """Run the `counted` call that is pending."""
    file, *seconds = turn.session.pending.split()
    if call is None:
        call = turn.start_tool("execute", f"count {file}", {"command": turn.session.pending})
    turn.update_tool(call, "in_progress")
    with open(os.path.join(turn.session.cwd, file), "a") as counter:
        counter.write("ran\n")
    turn.pause(float(seconds[0]) if seconds else 0)
    turn.session.pending = ""
    turn.agent.store.save(turn.session)
    turn.update_tool(call, "completed", "counted")


@directive("diff", "PATH an edit with a diff")
def _diff(turn: Turn, rest: str) -> None:
    path = os.path.join(turn.session.cwd, rest or "notes.txt")
    call = turn.start_tool("edit", f"Edit {rest or 'notes.txt'}", {"path": path})
    content = [{"type": "diff", "path": path, "oldText": None, "newText": "new\n"}]
    turn.update(
        {"sessionUpdate": "tool_call_update", "toolCallId": call, "status": "completed", "content": content}
    )


@directive("duptool", "two tool_call messages with one id")
def _duptool(turn: Turn, rest: str) -> None:
    call = turn.start_tool("execute", "first", {"n": 1})
    turn.update({"sessionUpdate": "tool_call", "toolCallId": call, "title": "second", "status": "pending"})
    turn.update_tool(call, "completed", "once")


@directive("noid", "a tool_call and an update without toolCallId")
def _noid(turn: Turn, rest: str) -> None:
    turn.update({"sessionUpdate": "tool_call", "title": "nameless", "kind": "read", "status": "pending"})
    turn.update({"sessionUpdate": "tool_call_update", "status": "completed"})


@directive("strayupdate", "a tool_call_update for an id that was never announced")
def _strayupdate(turn: Turn, rest: str) -> None:
    turn.update_tool("never-announced", "completed", "out of nowhere")


# -- what else a session tells
@directive("update", "JSON this update as it is")
def _update(turn: Turn, rest: str) -> None:
    turn.update(json.loads(rest))


@directive("plan", "STATUS... a plan with one entry per status")
def _plan(turn: Turn, rest: str) -> None:
    turn.update(shapes.plan(*(rest.split() or ["completed", "in_progress", "pending"])))


@directive("usage", "USED SIZE COST a usage_update and the answer's usage; COST is added up")
def _usage(turn: Turn, rest: str) -> None:
    used, size, cost = numbers(rest, 1200, 200_000, 0.5)
    turn.report_usage(int(used), int(size), cost)


@directive("usagereset", "cost and usage start again from zero")
def _usagereset(turn: Turn, rest: str) -> None:
    turn.session.cost = 0.0
    turn.report_usage(10, 200_000, 0.01)


@directive("mode", "ID current_mode_update")
def _mode(turn: Turn, rest: str) -> None:
    turn.session.options["mode"] = rest
    turn.update({"sessionUpdate": "current_mode_update", "currentModeId": rest})


@directive("model", "ID config_option_update with this model chosen")
def _model(turn: Turn, rest: str) -> None:
    turn.session.options["model"] = rest
    options = shapes.config_options(turn.session, turn.modes)
    turn.update({"sessionUpdate": "config_option_update", "configOptions": options})


@directive("commands", "available_commands_update")
def _commands(turn: Turn, rest: str) -> None:
    turn.update(shapes.commands())


@directive("title", "TEXT session_info_update")
def _title(turn: Turn, rest: str) -> None:
    turn.update(shapes.title(rest))


@directive("notice", "TEXT a warning notice")
def _notice(turn: Turn, rest: str) -> None:
    turn.update({"sessionUpdate": "notice", "severity": "warning", "title": rest or "Careful"})


@directive("compaction", "a compaction that completes")
def _compaction(turn: Turn, rest: str) -> None:
    for status in ("in_progress", "completed"):
        turn.update({"sessionUpdate": "compaction_update", "compactionId": "c1", "status": status})


@directive("rich", "every well-formed kind of update, text around a tool call")
def _rich(turn: Turn, rest: str) -> None:
    lines = ("!think hm", "!text before ", "!tool", "!text after ", "!plan", "!commands", "!mode yolo")
    for line in (*lines, "!model large", "!title Rich", "!notice", "!compaction", "!usage"):
        name, _, argument = line[1:].partition(" ")
        DIRECTIVES[name].run(turn, argument)
