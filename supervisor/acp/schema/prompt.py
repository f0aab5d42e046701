"""The content of a prompt, and its answer."""

from __future__ import annotations

from typing import Any, Final

import attrs

from supervisor.acp.schema.bounds import NAME_CHARS
from supervisor.acp.schema.read import Json, as_object, integer, line, member

MAX_TOKENS: Final = 10**12
"""Cap of a token count in one turn. The agent controls the figures, and their sum must fit the store."""

UNKNOWN_STOP_REASON: Final = "unknown"
"""The stop reason of an answer without one."""


def text_block(words: str) -> dict[str, Any]:
    """A text block for a prompt. Every agent accepts texts."""
    return {"type": "text", "text": words}


def image_block(data: str, mime_type: str) -> dict[str, Any]:
    """An image for a prompt: base64 `data`. For agents with the prompt capability `image` only."""
    return {"type": "image", "data": data, "mimeType": mime_type}


def resource_link_block(
    uri: str, name: str, *, mime_type: str | None = None, size: int | None = None
) -> dict[str, Any]:
    """A reference to something that the agent can fetch itself; `size` in bytes. Every agent accepts
    these."""
    block: dict[str, Any] = {"type": "resource_link", "uri": uri, "name": name}
    if mime_type is not None:
        block["mimeType"] = mime_type
    if size is not None:
        block["size"] = size
    return block


@attrs.frozen
class Usage:
    """Token counts. Some agents report them for a turn, others for the session. `total` None: not given."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_read_tokens: int = 0
    cached_write_tokens: int = 0
    thought_tokens: int = 0
    total_tokens: int | None = None

    def plus(self, other: Usage) -> Usage:
        """The sum of both."""
        mine, more = attrs.asdict(self), attrs.asdict(other)
        return Usage(**{name: (value or 0) + (more[name] or 0) for name, value in mine.items()})


@attrs.frozen
class PromptResult:
    """The answer to `session/prompt`: the turn is over.

    `stop_reason` is kept as the agent wrote it; the protocol's are end_turn, max_tokens,
    max_turn_requests, refusal and cancelled.
    """

    stop_reason: str
    usage: Usage | None
    raw: Json = attrs.field(repr=False)


def parse_prompt_result(result: Any) -> PromptResult:
    """Read the answer to `session/prompt`. Never raises."""
    raw = as_object(result)
    return PromptResult(line(raw, "stopReason", NAME_CHARS) or UNKNOWN_STOP_REASON, _usage(raw), raw)


def usage_in_meta(raw: Json) -> Usage | None:
    """The token counts in `_meta.usage` of an answer or a message; None if there are none."""
    return _tokens(member(member(raw, "_meta"), "usage"))


def _usage(raw: Json) -> Usage | None:
    # Some agents report usage in other members than the protocol's.
    return (
        _tokens(member(raw, "usage"))
        or usage_in_meta(raw)
        or _tokens(member(member(member(raw, "_meta"), "quota"), "token_count"))
    )


def _tokens(given: Json) -> Usage | None:
    """The token counts of an object, in either spelling."""
    if not given:
        return None
    figures = {
        field: min(max(0, figure), MAX_TOKENS)
        for field, names in _TOKENS.items()
        for name in names
        if (figure := integer(given, name)) is not None
    }
    return Usage(**figures) if figures else None


_TOKENS: Final = {
    "input_tokens": ("inputTokens", "input_tokens"),
    "output_tokens": ("outputTokens", "output_tokens"),
    "cached_read_tokens": ("cachedReadTokens", "cached_read_tokens"),
    "cached_write_tokens": ("cachedWriteTokens", "cached_write_tokens"),
    "thought_tokens": ("thoughtTokens", "thought_tokens"),
    "total_tokens": ("totalTokens", "total_tokens"),
}
