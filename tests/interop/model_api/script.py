"""What the model answers: a function of the last line of the user's message.

    TOOL: COMMAND           one call of the agent's own shell tool, then a text with its result
    ASK: COMMAND            the same, asking to leave the sandbox where the tool offers that (Codex requests
                            a permission only then)
    MCP: NAME ARGUMENTS     one call of the tool of an MCP server that has this in its name, with these
                            arguments (JSON)
    TOOLS N: COMMAND        N calls in one answer
    LOOP N: COMMAND         N rounds of one call each (`%i` in COMMAND is the number of the call)
    WRITE: PATH TEXT        one call of the agent's own file-writing tool
    TELL N PATH: COMMAND    one call that runs COMMAND; then one that writes what came back into PATH, as one
                            line; then that line, as a thought and as a text in deltas of N characters
    SLOW N [MS]             N text deltas, MS apart (100)
    STREAM N                N text deltas as fast as they go
    THINK N                 N reasoning deltas, then a text
    HANG                    headers, then nothing until the client goes away
    ERROR STATUS            that HTTP status, every time
    Count slowly from 1 to N..., Run this shell command...: COMMAND
                            SLOW and TOOL as `ostler agents probe` says them
    REFUSE, MAXTOK          stop for a refusal, for the limit of output tokens
    anything else           a text "ECHO: ..." with the end of the message

After the tool results of the current turn have arrived the answer is "TOOL-DONE " and the beginning of the
last result. A request without tools is taken for an agent's side question (titles, quota checks) and gets
a short text, or JSON that fits the schema it carries.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

from tests.interop.model_api import tools
from tests.interop.model_api.request import ModelRequest, Tool, spoken
from tests.interop.model_api.stream import INPUT_TOKENS

RESULT_SHOWN = 200  # characters of a tool result that are repeated
ECHO_SHOWN = 80  # characters of the user's message that are repeated

_COMMAND = re.compile(
    r"\W*(?:(?P<tool>TOOL|ASK|WRITE|MCP|Run this shell command[^:]*):\s*(?P<argument>.+)"
    r"|(?P<many>TOOLS|LOOP)\s+(?P<count>\d+):\s*(?P<command>.+)"
    r"|TELL\s+(?P<size>\d+)\s+(?P<path>\S+):\s*(?P<told>.+)"
    r"|(?P<number>SLOW|STREAM|THINK|ERROR)\s+(?P<n>\d+)(?:\s+(?P<ms>\d+))?"
    r"|Count slowly from 1 to (?P<slowly>\d+).*"
    r"|(?P<word>HANG|REFUSE|MAXTOK))\s*"
)


@dataclass(frozen=True)
class Answer:
    """One answer of the model. `stop`: end, refusal, tokens (calls end by themselves)."""

    text: tuple[str, ...] = ()
    thoughts: tuple[str, ...] = ()
    calls: tuple[tuple[Tool, Any], ...] = ()
    gap_s: float = 0.0  # between text deltas
    stop: str = "end"
    status: int = 200
    message: str = ""  # of an error
    hang: bool = False
    garbage: str = ""  # the body, instead of an answer
    fails_after: int = 0  # so many events of the stream come an error (OpenAI)
    aside: bool = False  # answers a side question of the agent
    headers: dict[str, str] = field(default_factory=dict)
    redacted: str = ""  # a redacted thinking block (Anthropic)
    encrypted: str = ""  # of the reasoning item (Responses)
    token_ids: tuple[int, ...] = ()  # of the answer, as vLLM tells them (Chat Completions)
    input_tokens: int = INPUT_TOKENS

    @property
    def output_tokens(self) -> int:
        return max(1, len(self.text) + len(self.thoughts))


def decide(request: ModelRequest) -> Answer:
    """The answer to a request; a pure function."""
    if not request.tools:
        if request.answer_schema:
            return Answer(text=(json.dumps(tools.from_schema(request.answer_schema)),), aside=True)
        return Answer(text=("Test ", "title"), aside=True)
    match = _COMMAND.fullmatch(request.last_line)
    if match is None:
        if request.results:
            return _tool_done(request)
        return Answer(text=("ECHO: ", " ".join(spoken(request.user_text).split())[-ECHO_SHOWN:]))
    if match["tool"]:
        if request.results:
            return _tool_done(request)
        return _one_call(request, match["tool"], match["argument"])
    if match["told"]:
        return _tell(request, int(match["size"]), match["path"], match["told"])
    if match["many"]:
        return _calls(request, match["many"], int(match["count"]), match["command"])
    if match["number"]:
        return _counted(match["number"], int(match["n"]), int(match["ms"] or 100))
    if match["slowly"]:
        return _counted("SLOW", int(match["slowly"]), 100)
    if match["word"] == "HANG":
        return Answer(hang=True)
    return Answer(text=("cut ", "short"), stop="refusal" if match["word"] == "REFUSE" else "tokens")


def _tool_done(request: ModelRequest) -> Answer:
    return Answer(text=("TOOL-DONE ", request.results[-1][:RESULT_SHOWN]))


def _tell(request: ModelRequest, size: int, path: str, command: str) -> Answer:
    if not request.results:
        return _one_call(request, "TOOL", command)
    line = " ".join(request.results[0].split())
    if len(request.results) == 1:
        return _one_call(request, "WRITE", f"{path} {line}")
    return Answer(text=tuple(line[i : i + size] for i in range(0, len(line), size)), thoughts=(line,))


def _one_call(request: ModelRequest, verb: str, argument: str) -> Answer:
    if verb == "WRITE":
        tool = tools.find(request.tools, tools.WRITE)
        path, _, text = argument.partition(" ")
        return _call(tool, lambda found: tools.write_arguments(found, path, text or "text"))
    if verb == "MCP":
        name, _, text = argument.partition(" ")
        found = tools.find_like(request.tools, name)
        if found is None and not request.rounds:
            found = next((each for each in request.tools if each.kind == "search"), None)
        return _call(found, lambda tool: tools.mcp_arguments(tool, name, text))
    tool = tools.find(request.tools, tools.SHELL)
    return _call(tool, lambda found: tools.shell_arguments(found, argument, escalate=verb == "ASK"))


def _call(tool: Tool | None, arguments: Any) -> Answer:
    if tool is None:
        return Answer(text=("NO-SUCH-TOOL",))
    return Answer(calls=((tool, arguments(tool)),))


def _calls(request: ModelRequest, verb: str, count: int, command: str) -> Answer:
    tool = tools.find(request.tools, tools.SHELL)
    if tool is None:
        return Answer(text=("NO-SUCH-TOOL",))
    done = request.rounds >= count if verb == "LOOP" else bool(request.results)
    if done:
        return _tool_done(request)
    numbers = range(count) if verb == "TOOLS" else range(request.rounds, request.rounds + 1)
    commands = [command.replace("%i", str(number)) for number in numbers]
    return Answer(calls=tuple((tool, tools.shell_arguments(tool, c, escalate=False)) for c in commands))


def _counted(verb: str, number: int, gap_ms: int) -> Answer:
    if verb == "SLOW":
        return Answer(text=tuple(f"s{i} " for i in range(number)), gap_s=gap_ms / 1000)
    if verb == "STREAM":
        return Answer(text=tuple(f"d{i} " for i in range(number)))
    if verb == "THINK":
        return Answer(text=("thought ", "done"), thoughts=tuple(f"t{i} " for i in range(number)))
    return Answer(status=number)
