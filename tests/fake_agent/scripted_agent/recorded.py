"""Directives that ask as agents were recorded to do (2026-11-23): ids, kinds, inputs, and their order.

Each runs its commands in its session's directory. Where it takes several, `;;` stands between them.
"""

from __future__ import annotations

import json
import os

from scripted_agent import shapes
from scripted_agent.directives import directive
from scripted_agent.questions import announce, content
from scripted_agent.turn import Turn
from scripted_agent.wire import RpcError

TYPE_CHECKING = False  # as typing has it, which takes its time to import
if TYPE_CHECKING:
    from typing import Any


def ask(turn: Turn, *options: tuple[str, str], **call: Any) -> dict[str, Any]:
    """The outcome of a question with these options: id and kind of each."""
    shown = [{"optionId": each, "name": each, "kind": kind} for each, kind in options]
    answer: dict[str, Any] = turn.ask("session/request_permission", {"toolCall": call, "options": shown})
    outcome: dict[str, Any] = answer["outcome"]
    return outcome


def update(turn: Turn, call: str, **fields: Any) -> None:
    turn.update({"sessionUpdate": "tool_call_update", "toolCallId": call, **fields})


def run(turn: Turn, command: str) -> None:
    import subprocess  # takes its time

    subprocess.run(["/bin/sh", "-c", command], cwd=turn.session.cwd, check=False, stdin=subprocess.DEVNULL)


def write(turn: Turn, path: str, text: str) -> None:
    with open(os.path.join(turn.session.cwd, path), "w") as file:
        file.write(text)


def commands(rest: str) -> list[str]:
    return [each.strip() for each in rest.split(";;")]


def new_id() -> str:
    return f"call_{os.urandom(10).hex()}"


@directive(
    "as-openhands",
    "COMMAND[;; COMMAND...] one question for all, of an id and a kind of its own (OpenHands CLI 1.16.0)",
)
def _openhands(turn: Turn, rest: str) -> None:
    calls = {new_id(): command for command in commands(rest)}
    for call, command in calls.items():
        given = {
            "command": command,
            "is_input": False,
            "timeout": None,
            "reset": False,
            "kind": "TerminalAction",
        }
        title = f'terminal: {{"command": "{command}"}}: $ {command}'
        words = [content(f"Summary: terminal\n\n$ {command}")]
        announce(turn, call, title=title, kind="execute", status="in_progress", rawInput=given, content=words)
    outcome = ask(
        turn,
        ("accept", "allow_once"),
        ("reject", "reject_once"),
        ("always_proceed", "allow_always"),
        ("risk_based", "allow_once"),
        toolCallId=f"confirmation-{turn.session.id}",
        title="Confirm Agent Actions",
        kind="other",
        status="pending",
    )
    for call, command in calls.items():
        if outcome.get("optionId") == "accept":
            run(turn, command)
            said = content("Tool: terminal\nResult:\n\nExit code: 0")
            update(turn, call, status="completed", content=[said], rawOutput={"exit_code": 0})
            continue
        word = "rejected" if outcome.get("optionId") == "reject" else "cancelled"
        said = content(f"Tool: terminal\n\nRejection Reason:\nUser {word} the action. Please ask the user.")
        update(turn, call, status="failed", content=[said], rawOutput={"kind": "UserRejectObservation"})
    turn.say("TOOL-DONE ")


@directive(
    "as-deepagents",
    "COMMAND[;; COMMAND...] asks under other ids; a refused call completes (deepagents-acp 0.0.13)",
)
def _deepagents(turn: Turn, rest: str) -> None:
    calls = {new_id(): command for command in commands(rest)}
    for call, command in calls.items():
        announce(turn, call, title=command, kind="execute", status="pending", rawInput={"command": command})
    interrupt = os.urandom(16).hex()  # one for all of them
    answers = []
    for command in calls.values():
        outcome = ask(
            turn,
            ("approve", "allow_once"),
            ("reject", "reject_once"),
            ("approve_always", "allow_always"),
            toolCallId=interrupt,
            title=f"Execute: `{command}`",
            rawInput={"command": command},
        )
        turn.checkpoint()
        answers.append(outcome.get("optionId") == "approve")
    for (call, command), allowed in zip(calls.items(), answers, strict=True):
        if allowed:
            run(turn, command)
        result = "<no output>" if allowed else f"User rejected the tool call for `execute` with id {call}."
        update(turn, call, status="completed", content=[content(f"**Output:**\n```\n{result}\n```")])
    turn.say("TOOL-DONE ")


@directive(
    "as-hermes-edit",
    "PATH TEXT the diff is in the question alone, and the call never ends (hermes-agent 0.19.0)",
)
def _hermes_edit(turn: Turn, rest: str) -> None:
    name, _, text = rest.partition(" ")
    path = os.path.join(turn.session.cwd, name)
    words = content(f"Preparing write to {path}. Approval prompt shows the diff.")
    announce(
        turn,
        f"tc-{os.urandom(6).hex()}",
        title=f"write: {path}",
        kind="edit",
        content=[words],
        locations=[{"path": path}],
    )
    outcome = ask(
        turn,
        ("allow_once", "allow_once"),
        ("deny", "reject_once"),
        toolCallId="edit-approval-1",
        title=f"Approve edit: {path}",
        kind="edit",
        status="pending",
        content=[{"type": "diff", "path": path, "newText": text}],
        rawInput={"tool": "write_file", "arguments": {"path": path, "content": text}},
    )
    if outcome.get("optionId") == "allow_once":
        write(turn, path, text)
    turn.say("\n\nTOOL-DONE ")


@directive(
    "as-hermes",
    "COMMAND asks for what it takes for dangerous, under another id; tells no input (hermes-agent 0.19.0)",
)
def _hermes(turn: Turn, rest: str) -> None:
    call = f"tc-{os.urandom(6).hex()}"
    announce(
        turn, call, title=f"terminal: {rest}", kind="execute", content=[content(f"$ {rest}")], locations=[]
    )
    allowed = "rm" not in rest
    if not allowed:
        outcome = ask(
            turn,
            ("allow_once", "allow_once"),
            ("allow_session", "allow_always"),
            ("deny", "reject_once"),
            ("deny_always", "reject_always"),
            toolCallId="perm-check-1",
            title=f"recursive delete: {rest}",
            kind="execute",
            status="pending",
            content=[content(f"recursive delete\n$ {rest}")],
            rawInput={"command": rest, "description": "recursive delete"},
        )
        allowed = outcome.get("optionId") == "allow_once"
    if allowed:
        run(turn, rest)
        update(
            turn,
            call,
            kind="execute",
            status="completed",
            content=[content("terminal result\n- **exit_code:** 0")],
        )
    else:
        said = "terminal failed: BLOCKED: User denied this command. Do NOT retry this command."
        update(turn, call, kind="execute", status="failed", content=[content(said)])
    turn.say("\n\nTOOL-DONE ")


def _iac_asks(turn: Turn, tool: str, kind: str, given: str) -> tuple[str, bool]:
    """Its call, and whether it thinks that it is allowed: it takes any option for a yes."""
    own = new_id()
    call = f"{os.urandom(16).hex()}/{own}"
    announce(turn, call, title=tool, kind=kind, status="pending")
    update(turn, call, title=tool, status="pending", content=[content("Input received (22 chars)")])
    summary = '{"fields": {"command": {"type": "str"}}}'
    update(turn, call, title=tool, status="in_progress", content=[content(f"Input summary: {summary}")])
    outcome = ask(
        turn,
        ("allow_once", "allow_once"),
        ("allow_rule:x:*", "allow_always"),
        ("reject_once", "reject_once"),
        ("deny_rule:x:*", "reject_always"),
        ("reject_always", "reject_always"),
        toolCallId=f"permission/{own}",
        title=tool.title(),
        content=[content(f"Approve tool call: {tool.title()}\nInput: {given}\nSuggested rule: x:*")],
    )
    return call, outcome["outcome"] == "selected"


def _iac_ends(turn: Turn, call: str, said: str, denied: bool) -> None:
    said = "The user explicitly denied this tool operation." if denied else said
    update(turn, call, status="in_progress", content=[content(said)], _meta={"timing": {"elapsed_ms": 1}})
    update(turn, call, status="completed")
    turn.say("TOOL-DONE ")


@directive(
    "as-iac-code",
    "COMMAND tells no input, takes any option for a yes, runs in the client's terminal (iac-code 0.16.0)",
)
def _iac(turn: Turn, rest: str) -> None:
    call, allowed = _iac_asks(turn, "bash", "execute", f'{{"command": "{rest}"}}')
    said = ""
    if allowed:
        try:
            created = turn.ask(
                "terminal/create", {"command": rest, "cwd": turn.session.cwd, "outputByteLimit": 50_000}
            )
            turn.ask("terminal/wait_for_exit", created)
            turn.ask("terminal/release", created)
        except RpcError as failure:
            said = f"terminal/create: {failure.code} {failure.message}"
    _iac_ends(turn, call, said, denied=not allowed)


@directive("as-iac-code-writes", "PATH TEXT the same, and writes the file itself (iac-code 0.16.0)")
def _iac_writes(turn: Turn, rest: str) -> None:
    path, _, text = rest.partition(" ")
    call, allowed = _iac_asks(turn, "write_file", "edit", f'{{"content": "{text}", "path": "{path}"}}')
    if allowed:
        write(turn, path, text)
    _iac_ends(turn, call, f"Successfully wrote 1 lines to {path}", denied=not allowed)


@directive(
    "as-claims",
    "JSON [COMMAND] two calls; asks for the first one, runs neither, and reports both so (made up)",
)
def _claims(turn: Turn, rest: str) -> None:
    claim, end = json.JSONDecoder().raw_decode(rest)
    command = rest[end:].strip() or "touch a"
    calls = [new_id(), new_id()]
    for call in calls:
        announce(turn, call, title=command, kind="execute", status="pending", rawInput={"command": command})
    ask(turn, ("yes", "allow_once"), ("no", "reject_once"), toolCallId=calls[0])
    for call in calls:
        update(turn, call, **claim)
    turn.say("TOOL-DONE ")


@directive(
    "as-claims-edit", "PATH asks to write a file, does not, and reports it with a diff as done (made up)"
)
def _claims_edit(turn: Turn, rest: str) -> None:
    call, shown = new_id(), [{"type": "diff", "path": rest, "newText": "x"}]
    announce(turn, call, title=f"Write {rest}", kind="edit", status="pending", content=shown)
    ask(turn, ("yes", "allow_once"), ("no", "reject_once"), toolCallId=call)
    update(turn, call, status="completed", content=[*shown, content("Skipped.")])


@directive(
    "as-droid", "COMMAND[;; COMMAND...] one question for all, under the id of the last one (droid 0.215.0)"
)
def _droid(turn: Turn, rest: str) -> None:
    calls = {new_id(): command for command in commands(rest)}
    for call, command in calls.items():
        given = {"command": command, "summary": "s", "riskLevelReason": "r", "riskLevel": "low"}
        title = f"`{command}` (low)"
        announce(turn, call, title=title, kind="execute", status="pending", rawInput=given)
    outcome = ask(
        turn,
        ("proceed_once", "allow_once"),
        ("proceed_always", "allow_always"),
        ("cancel", "reject_once"),
        toolCallId=call,
        title=title,
        kind="execute",
        rawInput=given,
    )
    for call, command in calls.items():
        if outcome.get("optionId") == "proceed_once":
            created = turn.ask("terminal/create", {"command": command, "cwd": turn.session.cwd})
            update(turn, call, status="in_progress", content=[{"type": "terminal", **created}])
            turn.ask("terminal/wait_for_exit", created)
            turn.ask("terminal/release", created)
            update(turn, call, status="completed")
        else:
            said = "Error: Tool execution cancelled by user"
            update(turn, call, status="failed", rawOutput={"text": said}, content=[content(said)])
    turn.say("TOOL-DONE ")


@directive(
    "as-kimi", "COMMAND announces a refused call again, with its input, and then as failed (Kimi Code 0.38.0)"
)
def _kimi(turn: Turn, rest: str) -> None:
    call = f"0:{new_id()}"
    given = {"command": rest}
    words = [content(f'{{"command":"{rest}"}}')]
    announce(turn, call, title="Bash", kind="execute", status="pending", content=[content("")])
    update(turn, call, status="in_progress", content=words)
    outcome = ask(
        turn,
        ("approve_once", "allow_once"),
        ("approve_always", "allow_always"),
        ("reject", "reject_once"),
        toolCallId=call,
        title="Bash",
        content=[content(f"Requesting approval to Running: {rest}")],
    )
    update(
        turn,
        call,
        title=f"Running: {rest}",
        kind="execute",
        status="in_progress",
        rawInput=given,
        content=words,
    )
    if outcome.get("optionId") == "approve_once":
        run(turn, rest)
        update(turn, call, status="completed")
    else:
        said = 'Tool "Bash" was not run because the user rejected the approval request.'
        update(turn, call, status="failed", content=[content(said)], rawOutput=said)
    turn.say("TOOL-DONE ")


def _qwen_call(turn: Turn, rest: str, *, asking: bool) -> None:
    seconds, _, command = rest.partition(" ")
    call = new_id()
    announce(
        turn, call, title="Shell", kind="execute", status="pending", rawInput={}, content=[], locations=[]
    )
    turn.update(shapes.chunk("agent_message_chunk", ""))
    turn.pause(float(seconds))
    if asking:
        options = (("proceed_once", "allow_once"), ("cancel", "reject_once"))
        ask(turn, *options, toolCallId=call, title=command, kind="execute", content=[], locations=[])
    given = {"command": command}
    update(turn, call, title=f"Shell: {command}", kind="execute", status="in_progress", rawInput=given)
    run(turn, command)
    update(turn, call, status="completed", content=[content("Exit Code: 0")])
    turn.say("TOOL-DONE ")


@directive(
    "as-qwen",
    "SECONDS COMMAND announces a call without its input, which comes so much later (Qwen Code 0.24.4)",
)
def _qwen(turn: Turn, rest: str) -> None:
    _qwen_call(turn, rest, asking=False)


@directive("as-qwen-asks", "SECONDS COMMAND the same, and asks by the command as a title before it is told")
def _qwen_asks(turn: Turn, rest: str) -> None:
    _qwen_call(turn, rest, asking=True)
