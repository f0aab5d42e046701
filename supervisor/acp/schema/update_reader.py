"""Decodes the parameters of `session/update` into one of the update types.

An update of an unknown kind, or without a required member, becomes UnknownUpdate with everything the agent
wrote.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from supervisor.acp.schema.bounds import ID_CHARS, NAME_CHARS, WORDS_CHARS
from supervisor.acp.schema.read import (
    Json,
    as_object,
    identifier,
    integer,
    label_id,
    line,
    member,
    number,
    objects,
)
from supervisor.acp.schema.session import parse_config_options
from supervisor.acp.schema.updates import (
    AgentMessageChunk,
    AgentThoughtChunk,
    AvailableCommands,
    Command,
    Compaction,
    CompactionSummaryChunk,
    ConfigOptionsUpdate,
    Cost,
    CurrentMode,
    Notice,
    Plan,
    PlanEntry,
    SessionInfo,
    ToolCall,
    ToolCallUpdate,
    UnknownUpdate,
    Update,
    UsageUpdate,
    UserMessageChunk,
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
        return session_id, UnknownUpdate("", params)
    kind = update.get("sessionUpdate")
    reader = _READERS.get(kind) if type(kind) is str else None
    parsed = None if reader is None else reader(update)
    if parsed is None:
        return session_id, UnknownUpdate(line(update, "sessionUpdate", NAME_CHARS) or "", update)
    return session_id, parsed


def parse_tool_call_update(raw: Json) -> ToolCallUpdate | None:
    """Read a tool call as permission requests embed it; None when it has no id."""
    return _tool_call(ToolCallUpdate, raw)


Chunk = TypeVar("Chunk", UserMessageChunk, AgentMessageChunk, AgentThoughtChunk)
Call = TypeVar("Call", ToolCall, ToolCallUpdate)


def _content(raw: Json) -> Json | None:
    content = raw.get("content")
    if isinstance(content, str):
        return {"type": "text", "text": content}
    return content if isinstance(content, dict) else None


def _chunk(cls: type[Chunk], raw: Json) -> Chunk | None:
    content = _content(raw)
    return None if content is None else cls(content, label_id(raw, "messageId"), raw)


def _tool_call(cls: type[Call], raw: Json) -> Call | None:
    call_id = raw.get("toolCallId")
    if type(call_id) is str and 0 < len(call_id) <= ID_CHARS:
        return cls(call_id, raw)
    call_id = label_id(raw, "toolCallId")
    return None if call_id is None else cls(call_id, raw)


def _plan(raw: Json) -> Plan | None:
    entries = objects(raw, "entries")
    if entries is None:
        return None
    return Plan(
        tuple(
            PlanEntry(
                line(entry, "content", WORDS_CHARS) or "",
                line(entry, "priority", NAME_CHARS) or "medium",
                line(entry, "status", NAME_CHARS) or "pending",
            )
            for entry in entries
        ),
        raw,
    )


def _commands(raw: Json) -> AvailableCommands | None:
    commands = objects(raw, "availableCommands")
    if commands is None:
        return None
    return AvailableCommands(
        tuple(
            Command(
                name,
                line(command, "description", WORDS_CHARS) or "",
                line(member(command, "input"), "hint", WORDS_CHARS),
            )
            for command in commands
            if (name := line(command, "name", NAME_CHARS))
        ),
        raw,
    )


def _current_mode(raw: Json) -> CurrentMode | None:
    # The protocol's own example has the second spelling.
    mode_id = line(raw, "currentModeId", NAME_CHARS) or line(raw, "modeId", NAME_CHARS)
    return None if mode_id is None else CurrentMode(mode_id, raw)


def _config_options(raw: Json) -> ConfigOptionsUpdate | None:
    options = parse_config_options(raw)
    return None if options is None else ConfigOptionsUpdate(options, raw)


def _session_info(raw: Json) -> SessionInfo:
    has_title = "title" in raw and (raw["title"] is None or isinstance(raw["title"], str))
    return SessionInfo(has_title, line(raw, "title", WORDS_CHARS), line(raw, "updatedAt", NAME_CHARS), raw)


def _usage(raw: Json) -> UsageUpdate:
    cost = member(raw, "cost")
    amount = number(cost, "amount")
    return UsageUpdate(
        used=integer(raw, "used"),
        size=integer(raw, "size"),
        cost=None if amount is None else Cost(amount, line(cost, "currency", NAME_CHARS) or "USD"),
        raw=raw,
    )


def _notice(raw: Json) -> Notice | None:
    title, description = line(raw, "title", WORDS_CHARS), line(raw, "description", WORDS_CHARS)
    if title is None and description is None:
        return None
    return Notice(line(raw, "severity", NAME_CHARS) or "info", title or "", description, raw)


def _compaction(raw: Json) -> Compaction | None:
    compaction_id = label_id(raw, "compactionId")
    if compaction_id is None:
        return None
    return Compaction(
        compaction_id, line(raw, "status", NAME_CHARS), raw.get("summary"), raw.get("error"), raw
    )


def _compaction_chunk(raw: Json) -> CompactionSummaryChunk | None:
    compaction_id, content = label_id(raw, "compactionId"), _content(raw)
    if compaction_id is None or content is None:
        return None
    return CompactionSummaryChunk(compaction_id, content, raw)


_READERS: Final[dict[str, Callable[[Json], Update | None]]] = {
    "user_message_chunk": lambda raw: _chunk(UserMessageChunk, raw),
    "agent_message_chunk": lambda raw: _chunk(AgentMessageChunk, raw),
    "agent_thought_chunk": lambda raw: _chunk(AgentThoughtChunk, raw),
    "tool_call": lambda raw: _tool_call(ToolCall, raw),
    "tool_call_update": lambda raw: _tool_call(ToolCallUpdate, raw),
    "plan": _plan,
    "available_commands_update": _commands,
    "current_mode_update": _current_mode,
    "config_option_update": _config_options,
    "session_info_update": _session_info,
    "usage_update": _usage,
    "notice": _notice,
    "compaction_update": _compaction,
    "compaction_summary_chunk": _compaction_chunk,
}
