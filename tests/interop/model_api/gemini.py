"""Gemini's generateContent API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from tests.interop.model_api.request import ModelRequest, Tool, text_of
from tests.interop.model_api.script import Answer
from tests.interop.model_api.stream import Event, new_id

STOPS = {"end": "STOP", "refusal": "SAFETY", "tokens": "MAX_TOKENS"}


def parse(body: dict[str, Any], model: str, stream: bool) -> ModelRequest:
    request = ModelRequest(model=model, stream=stream)
    for group in body.get("tools") or []:
        for function in group.get("functionDeclarations") or []:
            schema = function.get("parametersJsonSchema") or function.get("parameters") or {}
            request.tools.append(Tool(function["name"], schema))
    config = body.get("generationConfig") or {}
    request.answer_schema = config.get("responseJsonSchema") or config.get("responseSchema")
    for message in body.get("contents") or []:
        parts = message.get("parts") or []
        if message.get("role") == "model":
            request.rounds += any("functionCall" in part for part in parts)
            continue
        results = [part["functionResponse"].get("response") for part in parts if "functionResponse" in part]
        request.results += [text_of((r or {}).get("output")) or json.dumps(r) for r in results]
        if not results:
            request.user_said("\n".join(part.get("text", "") for part in parts))
    return request


def stream(request: ModelRequest, answer: Answer) -> Iterator[Event]:
    for thought in answer.thoughts:
        yield None, _chunk(request, answer, [{"text": f"**Thinking** {thought}", "thought": True}])
    if answer.calls:
        yield None, plain(request, answer)
        return
    for text in answer.text[:-1]:
        yield None, _chunk(request, answer, [{"text": text}])
    yield None, _chunk(request, answer, [{"text": answer.text[-1]}], STOPS[answer.stop])


def plain(request: ModelRequest, answer: Answer) -> dict[str, Any]:
    calls: list[dict[str, Any]] = []
    for tool, arguments in answer.calls:
        call = {"name": tool.name, "args": arguments, "id": new_id("fc_")}
        calls.append({"functionCall": call, "thoughtSignature": "dGVzdA=="})
    return _chunk(request, answer, calls or [{"text": "".join(answer.text)}], STOPS[answer.stop])


def _chunk(
    request: ModelRequest, answer: Answer, parts: list[dict[str, Any]], finish: str | None = None
) -> dict[str, Any]:
    candidate: dict[str, Any] = {"content": {"role": "model", "parts": parts}, "index": 0}
    if finish:
        candidate["finishReason"] = finish
    usage = {
        "promptTokenCount": answer.input_tokens,
        "candidatesTokenCount": answer.output_tokens,
        "totalTokenCount": answer.input_tokens + answer.output_tokens,
    }
    return {"candidates": [candidate], "usageMetadata": usage, "modelVersion": request.model}


def error(status: int, message: str) -> dict[str, Any]:
    names = {401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED", 429: "RESOURCE_EXHAUSTED", 500: "INTERNAL"}
    return {"error": {"code": status, "message": message, "status": names.get(status, "UNKNOWN")}}
