"""OpenAI's Responses and Chat Completions APIs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from tests.interop.model_api.request import ModelRequest, Tool, text_of
from tests.interop.model_api.script import Answer
from tests.interop.model_api.stream import Event, new_id, pieces

CALLS = ("function_call", "custom_tool_call", "local_shell_call", "tool_search_call")
CODE_CALLS = "declare const tools"  # in the description of a tool that runs code, which calls the others
CHAT_STOPS = {"end": "stop", "refusal": "content_filter", "tokens": "length"}
INCOMPLETE = {"refusal": "content_filter", "tokens": "max_output_tokens"}


# -- Responses
def parse_responses(body: dict[str, Any]) -> ModelRequest:
    request = ModelRequest(model=body.get("model", ""), stream=bool(body.get("stream")))
    for tool in body.get("tools") or []:
        request.tools += _response_tools(tool)
    answer_format = (body.get("text") or {}).get("format") or {}
    request.answer_schema = answer_format.get("schema")
    items = body.get("input") or []
    if isinstance(items, str):
        items = [{"role": "user", "content": items}]
    in_round = False
    for item in items:
        kind = item.get("type", "message")
        if kind in ("additional_tools", "tool_search_output"):  # so the newer models are told of their tools
            for tool in item.get("tools") or []:
                request.tools += _response_tools(tool)
            continue
        if kind in CALLS:
            request.rounds += not in_round
            in_round = True
            continue
        in_round = False
        if kind == "message" and item.get("role") == "user":
            request.user_said(text_of(item.get("content")))
        elif kind.endswith("_call_output"):
            request.results.append(text_of(item.get("output")))
    return request


def _response_tools(tool: dict[str, Any], namespace: str | None = None) -> list[Tool]:
    match tool.get("type"):
        case "function":
            return [Tool(tool["name"], tool.get("parameters") or {}, namespace=namespace)]
        case "custom":
            code = CODE_CALLS in (tool.get("description") or "")
            return [Tool(tool["name"], kind="code" if code else "custom")]
        case "local_shell":
            return [Tool("local_shell", kind="local_shell")]
        case "tool_search":
            return [Tool("tool_search", kind="search")]
        case "namespace":
            inner = [_response_tools(each, tool.get("name")) for each in tool.get("tools") or []]
            return [found for group in inner for found in group]
    return []


def stream_responses(request: ModelRequest, answer: Answer) -> Iterator[Event]:
    base: dict[str, Any] = {
        "id": new_id("resp_"),
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "model": request.model,
        "output": [],
        "usage": None,
    }
    for number, (kind, fields) in enumerate(_response_steps(base, answer, [])):
        yield kind, {"type": kind, "sequence_number": number, **fields}


def _response_steps(
    base: dict[str, Any], answer: Answer, output: list[dict[str, Any]]
) -> Iterator[tuple[str, dict[str, Any]]]:
    yield "response.created", {"response": base}
    if answer.thoughts:
        yield from _reasoning(answer, output)
    for tool, arguments in answer.calls:
        yield from _call(tool, arguments, output)
    if answer.text:
        yield from _text(answer, output)
    usage = {
        "input_tokens": answer.input_tokens,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": answer.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": answer.input_tokens + answer.output_tokens,
    }
    done = base | {"status": "completed", "output": output, "usage": usage}
    if answer.stop == "end":
        yield "response.completed", {"response": done}
    else:
        reason = {"reason": INCOMPLETE[answer.stop]}
        yield (
            "response.incomplete",
            {"response": done | {"status": "incomplete", "incomplete_details": reason}},
        )


def _reasoning(answer: Answer, output: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    item: dict[str, Any] = {"id": new_id("rs_"), "type": "reasoning", "summary": []}
    place = {"item_id": item["id"], "output_index": len(output), "summary_index": 0}
    yield "response.output_item.added", {"output_index": len(output), "item": item}
    yield "response.reasoning_summary_part.added", {**place, "part": {"type": "summary_text", "text": ""}}
    for thought in answer.thoughts:
        yield "response.reasoning_summary_text.delta", {**place, "delta": thought}
    text = "".join(answer.thoughts)
    yield "response.reasoning_summary_text.done", {**place, "text": text}
    item = item | {"summary": [{"type": "summary_text", "text": text}]}
    if answer.encrypted:
        item["encrypted_content"] = answer.encrypted
    yield "response.output_item.done", {"output_index": len(output), "item": item}
    output.append(item)


def _call(tool: Tool, arguments: Any, output: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    place = {"output_index": len(output)}
    item: dict[str, Any] = {"call_id": new_id("call_"), "status": "in_progress"}
    if tool.kind == "local_shell":
        item |= {"id": new_id("lsh_"), "type": "local_shell_call", "status": "completed", "action": arguments}
        yield "response.output_item.added", {**place, "item": item}
    elif tool.kind == "search":
        item |= {
            "id": new_id("tsc_"),
            "type": "tool_search_call",
            "execution": "client",
            "status": "completed",
        }
        item["arguments"] = arguments
        yield "response.output_item.added", {**place, "item": item}
    elif tool.kind in ("custom", "code"):
        item |= {"id": new_id("ctc_"), "type": "custom_tool_call", "name": tool.name, "input": ""}
        yield "response.output_item.added", {**place, "item": item}
        delta = {**place, "item_id": item["id"], "delta": arguments}
        yield "response.custom_tool_call_input.delta", delta
        item = item | {"status": "completed", "input": arguments}
    else:
        item |= {"id": new_id("fc_"), "type": "function_call", "name": tool.name, "arguments": ""}
        if tool.namespace:
            item["namespace"] = tool.namespace
        yield "response.output_item.added", {**place, "item": item}
        text = json.dumps(arguments)
        for piece in pieces(text):
            delta = {**place, "item_id": item["id"], "delta": piece}
            yield "response.function_call_arguments.delta", delta
        item = item | {"status": "completed", "arguments": text}
    yield "response.output_item.done", {**place, "item": item}
    output.append(item)


def _text(answer: Answer, output: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any]]]:
    item: dict[str, Any] = {"id": new_id("msg_"), "type": "message", "role": "assistant", "content": []}
    place = {"item_id": item["id"], "output_index": len(output), "content_index": 0}
    part = {"type": "output_text", "text": "", "annotations": []}
    added = item | {"status": "in_progress"}
    yield "response.output_item.added", {"output_index": len(output), "item": added}
    yield "response.content_part.added", {**place, "part": part}
    for text in answer.text:
        yield "response.output_text.delta", {**place, "delta": text}
    part = part | {"text": "".join(answer.text)}
    yield "response.output_text.done", {**place, "text": part["text"]}
    yield "response.content_part.done", {**place, "part": part}
    item = item | {"status": "completed", "content": [part]}
    yield "response.output_item.done", {"output_index": len(output), "item": item}
    output.append(item)


def plain_response(request: ModelRequest, answer: Answer) -> dict[str, Any]:
    *_, (_, last) = stream_responses(request, answer)
    return dict(last["response"])


# -- Chat Completions
def parse_chat(body: dict[str, Any]) -> ModelRequest:
    request = ModelRequest(model=body.get("model", ""), stream=bool(body.get("stream")))
    functions = [tool.get("function") or {} for tool in body.get("tools") or []]
    request.tools = [Tool(f["name"], f.get("parameters") or {}) for f in functions if "name" in f]
    answer_format = body.get("response_format") or {}
    if answer_format.get("type") == "json_schema":
        request.answer_schema = (answer_format.get("json_schema") or {}).get("schema")
    for message in body.get("messages") or []:
        match message.get("role"):
            case "user":
                request.user_said(text_of(message.get("content")))
            case "assistant":
                request.rounds += bool(message.get("tool_calls"))
            case "tool":
                request.results.append(text_of(message.get("content")))
    return request


def stream_chat(request: ModelRequest, answer: Answer) -> Iterator[Event]:
    base = {
        "id": new_id("chatcmpl-"),
        "object": "chat.completion.chunk",
        "created": int(time.time()),
        "model": request.model,
    }

    def delta(fields: dict[str, Any], finish: str | None = None) -> Event:
        return None, base | {"choices": [{"index": 0, "delta": fields, "finish_reason": finish}]}

    yield delta({"role": "assistant", "content": ""})
    for thought in answer.thoughts:
        yield delta({"reasoning_content": thought})
    for index, (tool, arguments) in enumerate(answer.calls):
        function = {"name": tool.name, "arguments": ""}
        call = {"index": index, "id": new_id("call_"), "type": "function", "function": function}
        yield delta({"tool_calls": [call]})
        for piece in pieces(json.dumps(arguments)):
            yield delta({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    for text in answer.text:
        yield delta({"content": text})
    yield delta({}, "tool_calls" if answer.calls else CHAT_STOPS[answer.stop])
    yield None, base | {"choices": [], "usage": _chat_usage(answer)}
    yield None, "[DONE]"


def plain_chat(request: ModelRequest, answer: Answer) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": "".join(answer.text) or None}
    if answer.thoughts:
        message["reasoning_content"] = "".join(answer.thoughts)
    if answer.calls:
        functions = [{"name": t.name, "arguments": json.dumps(a)} for t, a in answer.calls]
        message["tool_calls"] = [
            {"id": new_id("call_"), "type": "function", "function": f} for f in functions
        ]
    finish = "tool_calls" if answer.calls else CHAT_STOPS[answer.stop]
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": finish}
    completion: dict[str, Any] = {
        "id": new_id("chatcmpl-"),
        "object": "chat.completion",
        "created": int(time.time()),
        "model": request.model,
        "choices": [choice],
        "usage": _chat_usage(answer),
    }
    if answer.token_ids:
        choice["token_ids"] = list(answer.token_ids)
        completion["prompt_token_ids"] = [1, 2, 3]
    return completion


def _chat_usage(answer: Answer) -> dict[str, int]:
    total = answer.input_tokens + answer.output_tokens
    return {
        "prompt_tokens": answer.input_tokens,
        "completion_tokens": answer.output_tokens,
        "total_tokens": total,
    }


def error(status: int, message: str) -> dict[str, Any]:
    kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "api_error")
    return {"error": {"message": message, "type": kind, "param": None, "code": kind}}
