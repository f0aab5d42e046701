"""Logs of completions as events: without secrets, and without what providers encrypt for themselves."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from openhands.sdk.event.llm_completion_log import LLMCompletionLogEvent
from openhands.sdk.llm import LLM

ENCRYPTED = "encrypted_content"

HIDDEN = "<hidden>"


def log_to(llm: LLM, tell: Callable[[LLMCompletionLogEvent], None], mask: Callable[[str], str]) -> None:
    """Report every completion of a model as an event, instead of writing files."""

    def logged(name: str, data: str) -> None:
        text = mask(without_encrypted(data))
        tell(LLMCompletionLogEvent(filename=name, log_data=text, model_name=llm.model, usage_id=llm.usage_id))

    llm.telemetry.set_log_completions_callback(logged)


def without_encrypted(data: str) -> str:
    """Return a log (JSON) without the encrypted content of reasoning items, at any depth."""
    if ENCRYPTED not in data:
        return data
    return json.dumps(_without(json.loads(data)), ensure_ascii=False)


def _without(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: HIDDEN if key == ENCRYPTED and each else _without(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_without(each) for each in value]
    return value
