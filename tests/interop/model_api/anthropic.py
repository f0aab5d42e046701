"""Anthropic's Messages API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.interop.model_api.request import ModelRequest, Tool, text_of
from tests.interop.model_api.script import Answer
from tests.interop.model_api.stream import Event, new_id, pieces

SIGNATURE = "dGVzdA=="
STOPS = {"end": "end_turn", "refusal": "refusal", "tokens": "max_tokens"}


def parse(body: dict[str, Any]) -> ModelRequest:
    request = ModelRequest(model=body.get("model", ""), stream=bool(body.get("stream")))
    offered = [tool for tool in body.get("tools") or [] if "name" in tool]
    request.tools = [Tool(tool["name"], tool.get("input_schema") or {}) for tool in offered]
    output = (body.get("output_config") or {}).get("format") or body.get("output_format") or {}
    request.answer_schema = output.get("schema")
    for message in body.get("messages") or []:
        content = message.get("content")
        parts = content if isinstance(content, list) else [{"type": "text", "text": content or ""}]
        if message.get("role") == "assistant":
            request.rounds += any(part.get("type") == "tool_use" for part in parts)
        if message.get("role") != "user":
            continue
        results = [text_of(p.get("content")) for p in parts if p.get("type") == "tool_result"]
        text = "\n".join(part.get("text", "") for part in parts if part.get("type") == "text")
        request.results += results
        request.user_said(text)  # beside tool results too: so comes a prompt after an interruption
    return request


def stream(request: ModelRequest, answer: Answer) -> Iterator[Event]:
    usage = {
        "input_tokens": answer.input_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }
    start = plain(request, Answer()) | {"content": [], "stop_reason": None}
    start["usage"] = usage | {"output_tokens": 1}
    yield _event("message_start", message=start)
    for index, (block, deltas) in enumerate(_blocks(answer)):
        yield _event("content_block_start", index=index, content_block=block)
        for delta in deltas:
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    yield _event(
        "message_delta",
        delta={"stop_reason": _stop(answer), "stop_sequence": None},
        usage=usage | {"output_tokens": answer.output_tokens},
    )
    yield _event("message_stop")


def _event(kind: str, **fields: Any) -> Event:
    return kind, {"type": kind, **fields}


def _blocks(answer: Answer) -> Iterator[tuple[dict[str, Any], list[dict[str, Any]]]]:
    if answer.thoughts:
        deltas: list[dict[str, Any]] = [{"type": "thinking_delta", "thinking": t} for t in answer.thoughts]
        deltas.append({"type": "signature_delta", "signature": SIGNATURE})
        yield {"type": "thinking", "thinking": "", "signature": ""}, deltas
    if answer.redacted:
        yield {"type": "redacted_thinking", "data": answer.redacted}, []
    for tool, arguments in answer.calls:
        block = {"type": "tool_use", "id": new_id("toolu_"), "name": tool.name, "input": {}}
        yield block, [{"type": "input_json_delta", "partial_json": p} for p in pieces(json.dumps(arguments))]
    if answer.text:
        yield {"type": "text", "text": ""}, [{"type": "text_delta", "text": t} for t in answer.text]


def _stop(answer: Answer) -> str:
    return "tool_use" if answer.calls else STOPS[answer.stop]


def plain(request: ModelRequest, answer: Answer) -> dict[str, Any]:
    content: list[dict[str, Any]] = []
    if answer.thoughts:
        content.append({"type": "thinking", "thinking": "".join(answer.thoughts), "signature": SIGNATURE})
    if answer.redacted:
        content.append({"type": "redacted_thinking", "data": answer.redacted})
    if answer.text or not answer.calls:
        content.append({"type": "text", "text": "".join(answer.text)})
    content += [
        {"type": "tool_use", "id": new_id("toolu_"), "name": tool.name, "input": arguments}
        for tool, arguments in answer.calls
    ]
    return {
        "id": new_id("msg_"),
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": content,
        "stop_reason": _stop(answer),
        "stop_sequence": None,
        "usage": {"input_tokens": answer.input_tokens, "output_tokens": answer.output_tokens},
    }


def error(status: int, message: str) -> dict[str, Any]:
    kinds = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
    return {"type": "error", "error": {"type": kinds.get(status, "api_error"), "message": message}}
