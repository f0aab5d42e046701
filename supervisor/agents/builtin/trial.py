"""Tests whether a model answers: one tiny completion, as the SDK's own server tests a draft profile."""

from __future__ import annotations

import asyncio
from typing import Any

from openhands.sdk.llm import LLM, Message, TextContent
from openhands.sdk.llm.auth.openai import create_subscription_llm_from_config
from openhands.sdk.llm.exceptions import (
    LLMError,
    LLMRateLimitError,
    LLMTimeoutError,
    is_quota_exhaustion_error,
)
from openhands.sdk.utils.redact import redact_text_secrets

ATTEMPT_SECONDS = 15
"""Seconds for the single attempt in all; a model's own timeout is for conversations, and counts only if it is
shorter. A library's timeout restarts with each byte, so it does not bound the whole. The server ends one that
blocks the loop."""


async def answer_of(llm: LLM) -> dict[str, Any]:
    """Return the wire's answer. Errors that may pass soon (a rate limit, a slow answer) do not count."""
    try:
        async with asyncio.timeout(ATTEMPT_SECONDS):
            await _attempt(llm)
    except (LLMRateLimitError, LLMTimeoutError, TimeoutError) as error:
        return _invalid(error) if is_quota_exhaustion_error(error) else VALID
    except Exception as error:  # noqa: BLE001 - any error of a library is the reason of the failure
        return _invalid(error)
    return VALID


VALID = {"valid": True, "error": None}


async def _attempt(llm: LLM) -> None:
    if llm.auth_type == "subscription":
        llm = await asyncio.to_thread(create_subscription_llm_from_config, llm)
    seconds = ATTEMPT_SECONDS if llm.timeout is None else min(llm.timeout, ATTEMPT_SECONDS)
    # Without retries and fallbacks, which would hide that this model is broken.
    llm = llm.model_copy(update={"num_retries": 0, "timeout": seconds, "fallback_strategy": None})
    messages = [
        Message(role="system", content=[TextContent(text="Reply with one token.")]),
        Message(role="user", content=[TextContent(text="ping")]),
    ]
    ask = llm.aresponses if llm.uses_responses_api() else llm.acompletion
    await ask(messages=messages, max_tokens=1)


def _invalid(error: BaseException) -> dict[str, Any]:
    said = error.message if isinstance(error, LLMError) else str(error)
    message = redact_text_secrets(said or type(error).__name__)
    return {"valid": False, "error": {"type": type(error).__name__, "message": message}}
