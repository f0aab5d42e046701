"""What a turn consists of besides updates: the prompt, requests for permissions, and the answer."""

from __future__ import annotations

from typing import Any, Final

import attrs

from supervisor.acp.errors import RpcError
from supervisor.acp.schema.bounds import NAME_CHARS
from supervisor.acp.schema.read import (
    Json,
    as_object,
    exact_id,
    identifier,
    integer,
    line,
    member,
    objects,
)
from supervisor.acp.schema.updates import ToolCallUpdate, parse_tool_call_update

MAX_TOKENS: Final = 10**12
"""Cap of a token count in one turn. The agent controls the figures, and their sum must fit the store."""

OPTIONS_MAX: Final = 32
"""The most options of a request that are read. Agents offer two to six."""

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
class PermissionOption:
    """One possible answer. Its `kind` has the meaning: allow_once, allow_always, reject_once, reject_always.

    The order of the options has no meaning: some agents put allow_always first. An option with an id too long
    to keep is left out: it could not be chosen.
    """

    option_id: str
    name: str
    kind: str


@attrs.frozen
class PermissionRequest:
    """A permission request. `tool_call` is an update of the call: members that it lacks are unchanged."""

    session_id: str
    tool_call: ToolCallUpdate
    options: tuple[PermissionOption, ...]
    raw: Json = attrs.field(repr=False)


def parse_permission(params: Any) -> PermissionRequest:
    """Read the parameters of a permission request. Raises RpcError (-32602) if they name no tool call."""
    raw = as_object(params)
    tool_call = parse_tool_call_update(member(raw, "toolCall"))
    if tool_call is None:
        raise RpcError.invalid_params("toolCall with a toolCallId is required")
    return PermissionRequest(
        session_id=identifier(raw, "sessionId") or "",
        tool_call=tool_call,
        options=tuple(
            PermissionOption(
                option_id,
                line(option, "name", NAME_CHARS) or option_id,
                line(option, "kind", NAME_CHARS) or "",
            )
            for option in (objects(raw, "options") or ())[:OPTIONS_MAX]
            if (option_id := exact_id(option, "optionId")) is not None
        ),
        raw=raw,
    )


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
