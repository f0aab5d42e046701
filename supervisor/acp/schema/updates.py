"""What an agent reports during a turn and between turns (`session/update`), and asks permission for.

Only kinds and members that Ostler acts on have types. Every other update, and one that lacks a required
member, becomes UnknownUpdate with everything the agent wrote. `raw` is the update as received.

Treat all types as immutable. The frequent ones are not frozen, since attrs takes three times as long to
create frozen objects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

import attrs

from supervisor.acp.errors import RpcError
from supervisor.acp.schema.bounds import ID_CHARS, NAME_CHARS, WORDS_CHARS
from supervisor.acp.schema.read import (
    Json,
    as_object,
    exact_id,
    identifier,
    integer,
    label_id,
    line,
    member,
    number,
    objects,
    text,
)
from supervisor.acp.schema.session_options import ConfigOption, parse_config_options

OPTIONS_MAX: Final = 32
"""The most options of a request that are read. Agents offer two to six."""


def text_of(content: Json) -> str | None:
    """The text of a text block; None for other kinds of content."""
    return text(content, "text") if content.get("type") == "text" else None


@attrs.define
class ContentChunk:
    """A piece of a message: a content block. Another `message_id` begins another message."""

    content: Json
    message_id: str | None
    raw: Json = attrs.field(repr=False)

    @property
    def text(self) -> str | None:
        """The text of a text block; None for other kinds of content."""
        return text_of(self.content)


class UserMessageChunk(ContentChunk):
    """A piece of a user's message: replayed history, or an echo."""

    __slots__ = ()


class AgentMessageChunk(ContentChunk):
    """A piece of what the agent says."""

    __slots__ = ()


class AgentThoughtChunk(ContentChunk):
    """A piece of what the agent thinks."""

    __slots__ = ()


@attrs.define
class ToolCallFields:
    """The members of a tool call and of its updates. None means unchanged.

    The recorder reads `raw`; the members here are read when they are asked for, since most updates are about
    tool calls.
    """

    tool_call_id: str
    raw: Json = attrs.field(repr=False)

    @property
    def title(self) -> str | None:
        """A description of the call for people."""
        return line(self.raw, "title", WORDS_CHARS)

    @property
    def kind(self) -> str | None:
        """The call's category, as the agent wrote it."""
        return line(self.raw, "kind", NAME_CHARS)

    @property
    def status(self) -> str | None:
        """The call's progress, as the agent wrote it."""
        return line(self.raw, "status", NAME_CHARS)


class ToolCall(ToolCallFields):
    """A tool call begins."""

    __slots__ = ()


class ToolCallUpdate(ToolCallFields):
    """An update of a tool call. It may come without a ToolCall before it, or after the call's end."""

    __slots__ = ()


@attrs.frozen
class Plan:
    """The whole plan (`entries`); replaces the one before."""

    raw: Json = attrs.field(repr=False)


@attrs.frozen
class AvailableCommands:
    """All slash commands (`availableCommands`); replaces the list before."""

    raw: Json = attrs.field(repr=False)


@attrs.frozen
class CurrentMode:
    """The agent has changed its mode."""

    mode_id: str
    raw: Json = attrs.field(repr=False)


@attrs.frozen
class ConfigOptionsUpdate:
    """All configuration options; replaces the list before."""

    options: tuple[ConfigOption, ...]
    raw: Json = attrs.field(repr=False)


@attrs.frozen
class SessionInfo:
    """The session's title, and when it last changed."""

    title: str | None
    updated_at: str | None
    raw: Json = attrs.field(repr=False)


@attrs.frozen
class UsageUpdate:
    """How full the context window is, in tokens, and what the session has cost so far.

    `cost` is in units of `currency` (ISO 4217); both are None if the agent reports no cost.
    """

    used: int | None
    size: int | None
    cost: float | None
    currency: str | None
    raw: Json = attrs.field(repr=False)


@attrs.frozen
class UnknownUpdate:
    """Any other update, kept verbatim."""

    raw: Any = attrs.field(repr=False)


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


Update = (
    ContentChunk
    | ToolCallFields
    | Plan
    | AvailableCommands
    | CurrentMode
    | ConfigOptionsUpdate
    | SessionInfo
    | UsageUpdate
    | UnknownUpdate
)


def parse_update(params: Any) -> tuple[str, Update]:
    """Read the parameters of `session/update`: the session id, empty when missing, and the update.

    Never raises.
    """
    params = as_object(params)
    session_id = params.get("sessionId")
    if type(session_id) is not str:
        session_id = identifier(params, "sessionId") or ""
    update = params.get("update")
    if not isinstance(update, dict):
        return session_id, UnknownUpdate(params)
    kind = update.get("sessionUpdate")
    reader = _READERS.get(kind) if type(kind) is str else None
    parsed = None if reader is None else reader(update)
    return session_id, UnknownUpdate(update) if parsed is None else parsed


def parse_permission(params: Any) -> PermissionRequest:
    """Read the parameters of a permission request. Raises RpcError (-32602) if they name no tool call."""
    raw = as_object(params)
    tool_call = _tool_call(ToolCallUpdate, member(raw, "toolCall"))
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


Chunk = TypeVar("Chunk", UserMessageChunk, AgentMessageChunk, AgentThoughtChunk)
Call = TypeVar("Call", ToolCall, ToolCallUpdate)


def _chunk(cls: type[Chunk], raw: Json) -> Chunk | None:
    content = raw.get("content")
    if isinstance(content, str):
        content = {"type": "text", "text": content}
    return cls(content, label_id(raw, "messageId"), raw) if isinstance(content, dict) else None


def _tool_call(cls: type[Call], raw: Json) -> Call | None:
    call_id = raw.get("toolCallId")
    if type(call_id) is str and 0 < len(call_id) <= ID_CHARS:
        return cls(call_id, raw)
    call_id = label_id(raw, "toolCallId")
    return None if call_id is None else cls(call_id, raw)


def _current_mode(raw: Json) -> CurrentMode | None:
    # The protocol's own example has the second spelling.
    mode_id = line(raw, "currentModeId", NAME_CHARS) or line(raw, "modeId", NAME_CHARS)
    return None if mode_id is None else CurrentMode(mode_id, raw)


def _config_options(raw: Json) -> ConfigOptionsUpdate | None:
    options = parse_config_options(raw)
    return None if options is None else ConfigOptionsUpdate(options, raw)


def _usage(raw: Json) -> UsageUpdate:
    cost = member(raw, "cost")
    amount = number(cost, "amount")
    currency = None if amount is None else line(cost, "currency", NAME_CHARS) or "USD"
    return UsageUpdate(integer(raw, "used"), integer(raw, "size"), amount, currency, raw)


_READERS: Final[dict[str, Callable[[Json], Update | None]]] = {
    "user_message_chunk": lambda raw: _chunk(UserMessageChunk, raw),
    "agent_message_chunk": lambda raw: _chunk(AgentMessageChunk, raw),
    "agent_thought_chunk": lambda raw: _chunk(AgentThoughtChunk, raw),
    "tool_call": lambda raw: _tool_call(ToolCall, raw),
    "tool_call_update": lambda raw: _tool_call(ToolCallUpdate, raw),
    "plan": lambda raw: Plan(raw) if isinstance(raw.get("entries"), list) else None,
    "available_commands_update": (
        lambda raw: AvailableCommands(raw) if isinstance(raw.get("availableCommands"), list) else None
    ),
    "current_mode_update": _current_mode,
    "config_option_update": _config_options,
    "session_info_update": (
        lambda raw: SessionInfo(line(raw, "title", WORDS_CHARS), line(raw, "updatedAt", NAME_CHARS), raw)
    ),
    "usage_update": _usage,
}
