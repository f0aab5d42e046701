"""The model API: what it reads out of each provider's requests, and what its answers hold."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.interop.model_api import anthropic, gemini, openai
from tests.interop.model_api.request import ModelRequest, Tool
from tests.interop.model_api.script import decide
from tests.interop.model_api.server import ModelApi

SHELL_SCHEMA = {
    "type": "object",
    "properties": {"command": {"type": "string"}, "why": {"type": "string"}},
    "required": ["command", "why"],
}


def asked(text: str, results: tuple[str, ...] = (), rounds: int = 0) -> ModelRequest:
    tools = [Tool("bash", SHELL_SCHEMA), Tool("write", {"properties": {"filePath": {}, "content": {}}})]
    return ModelRequest(tools=tools, user_text=text, results=list(results), rounds=rounds)


@pytest.mark.parametrize(
    ("request_", "text", "commands"),
    [
        (asked("hello"), "ECHO: hello", []),
        (asked("context\nTOOL: ls"), "", ["ls"]),
        (asked("TOOL: ls", ("a b",), 1), "TOOL-DONE a b", []),
        (asked("TOOLS 2: echo %i"), "", ["echo 0", "echo 1"]),
        (asked("LOOP 2: echo %i", ("0",), 1), "", ["echo 1"]),
        (asked("LOOP 2: echo %i", ("0", "1"), 2), "TOOL-DONE 1", []),
        (asked("STREAM 2"), "d0 d1 ", []),
        (ModelRequest(user_text="TOOL: ls"), "Test title", []),
    ],
)
def test_the_script(request_: ModelRequest, text: str, commands: list[str]) -> None:
    answer = decide(request_)
    assert "".join(answer.text) == text
    assert [arguments["command"] for _, arguments in answer.calls] == commands
    assert all(arguments["why"] == "test why" for _, arguments in answer.calls)


def test_files_errors_and_stops() -> None:
    ((tool, arguments),) = decide(asked("WRITE: /w/a.txt some text")).calls
    assert (tool.name, arguments) == ("write", {"filePath": "/w/a.txt", "content": "some text"})
    assert decide(asked("ERROR 529")).status == 529
    assert decide(asked("REFUSE")).stop == "refusal"
    assert decide(asked("SLOW 3 20")).gap_s == 0.02
    schema = {"type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"]}
    aside = decide(ModelRequest(user_text="x", answer_schema=schema))
    assert json.loads("".join(aside.text)) == {"title": "test title"}


ANTHROPIC = {
    "model": "m",
    "tools": [{"name": "bash", "input_schema": SHELL_SCHEMA}],
    "messages": [
        {"role": "user", "content": "TOOL: old"},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "1", "name": "bash", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": "result"}]},
        {"role": "system", "content": "not the user"},
    ],
}
RESPONSES = {
    "model": "m",
    "tools": [{"type": "function", "name": "shell", "parameters": SHELL_SCHEMA}],
    "input": [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "TOOL: old"}]},
        {"type": "function_call", "name": "shell", "call_id": "1", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "result"},
    ],
}
CODE = {
    "type": "custom",
    "name": "exec",
    "description": "Run code. exec tool declaration:\ndeclare const tools: { exec_command(args: {}): any; };",
}
CODE_MODE = {  # the tools are an item of the input, and one of them runs code that calls the others
    "model": "m",
    "input": [
        {"type": "additional_tools", "tools": [{"type": "namespace", "name": "functions", "tools": [CODE]}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "TOOL: old"}]},
    ],
}
CHAT = {
    "model": "m",
    "tools": [{"type": "function", "function": {"name": "bash", "parameters": SHELL_SCHEMA}}],
    "messages": [
        {"role": "user", "content": "TOOL: old"},
        {"role": "assistant", "tool_calls": [{"id": "1"}]},
        {"role": "tool", "tool_call_id": "1", "content": "result"},
    ],
}
GEMINI = {
    "tools": [{"functionDeclarations": [{"name": "bash", "parameters": SHELL_SCHEMA}]}],
    "contents": [
        {"role": "user", "parts": [{"text": "TOOL: old"}]},
        {"role": "model", "parts": [{"functionCall": {"name": "bash"}}]},
        {"role": "user", "parts": [{"functionResponse": {"name": "bash", "response": {"output": "result"}}}]},
    ],
}


@pytest.mark.parametrize(
    "request_",
    [
        anthropic.parse(ANTHROPIC),
        openai.parse_responses(RESPONSES),
        openai.parse_chat(CHAT),
        gemini.parse(GEMINI, "m", stream=False),
    ],
    ids=["anthropic", "responses", "chat", "gemini"],
)
def test_what_is_read_out_of_a_request(request_: ModelRequest) -> None:
    assert (request_.user_text, request_.results, request_.rounds) == ("TOOL: old", ["result"], 1)
    assert request_.tools[0].schema == SHELL_SCHEMA


def test_a_result_is_told_in_every_way() -> None:
    text = "TELL 3 /w/a.txt: printenv X"
    ((tool, arguments),) = decide(asked(text)).calls
    assert (tool.name, arguments["command"]) == ("bash", "printenv X")
    ((tool, arguments),) = decide(asked(text, ("one\ntwo",), 1)).calls
    assert (tool.name, arguments) == ("write", {"filePath": "/w/a.txt", "content": "one two"})
    answer = decide(asked(text, ("one\ntwo", "written"), 2))
    assert (answer.text, answer.thoughts) == (("one", " tw", "o"), ("one two",))


def test_tools_that_only_code_can_call() -> None:
    request = openai.parse_responses(CODE_MODE)
    ((tool, code),) = decide(request).calls
    assert tool.name == "exec"
    assert code == 'const done = await tools.exec_command({"cmd": "old"}); text(done.output);'
    events = dict(openai.stream_responses(request, decide(request)))
    (item,) = events["response.completed"]["response"]["output"]
    assert (item["type"], item["name"], item["input"]) == ("custom_tool_call", "exec", code)
    request.user_text = "WRITE: a.txt text"
    ((_, code),) = decide(request).calls
    assert code.startswith('text(await tools.apply_patch("*** Begin Patch\\n*** Add File: a.txt\\n+text')


def test_a_prompt_after_an_interruption_counts() -> None:
    text = {"type": "text", "text": "[Request interrupted by user for tool use]\nsay more"}
    result = {"type": "tool_result", "tool_use_id": "1", "content": "rejected"}
    messages = [*ANTHROPIC["messages"][:2], {"role": "user", "content": [result, text]}]
    request = anthropic.parse({**ANTHROPIC, "messages": messages})
    assert request.last_line == "say more"
    assert request.results == []


PATHS = {
    "/v1/messages": {"messages": [{"role": "user", "content": "STREAM 3"}], "tools": ANTHROPIC["tools"]},
    "/v1/responses": {"input": "STREAM 3", "tools": RESPONSES["tools"]},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "STREAM 3"}], "tools": CHAT["tools"]},
    "/v1beta/models/m:streamGenerateContent": {
        "contents": [{"role": "user", "parts": [{"text": "STREAM 3"}]}],
        "tools": GEMINI["tools"],
    },
}


def data_of(lines: Iterator[str]) -> list[Any]:
    found = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return [json.loads(text) for text in found if text != "[DONE]"]


@pytest.mark.parametrize("path", PATHS)
def test_streams_over_http(model_api: ModelApi, path: str) -> None:
    body = {**PATHS[path], "stream": True}
    headers = {"x-api-key": "the key"}
    url = model_api.url + path
    with httpx2.Client(trust_env=False) as client:
        with client.stream("POST", url, json=body, headers=headers) as response:
            text = json.dumps(data_of(response.iter_lines()))
        assert all(f"d{number} " in text for number in range(3))
        assert model_api.calls[-1].key == "the key"
        model_api.key = "another key"
        assert client.post(url, json=body, headers=headers).status_code == 401
        model_api.key, model_api.status = None, 529
        assert client.post(url, json=body, headers=headers).status_code == 529
