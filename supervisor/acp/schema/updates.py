"""The types of `session/update`: what an agent reports during a turn and between turns.

`raw` is the update as received. Treat all of them as immutable. The frequent ones are not frozen, since attrs
takes three times as long to create frozen objects.
"""

from __future__ import annotations

from typing import Any, Final

import attrs

from supervisor.acp.schema.bounds import ITEMS_MAX, NAME_CHARS, WORDS_CHARS
from supervisor.acp.schema.read import Json, integer, line, objects, text
from supervisor.acp.schema.session import ConfigOption


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


@attrs.frozen
class Location:
    """A file that a tool call is about; `line` counts from 1."""

    path: str
    line: int | None


BLOCK_TYPES: Final = frozenset({"text", "image", "audio", "resource", "resource_link"})
"""The content blocks of the protocol. In a tool call they must be wrapped in an object of type `content`;
some agents omit it."""


def _tool_content(content: Any) -> tuple[Json, ...] | None:
    if isinstance(content, str | dict):
        content = [content]
    if not isinstance(content, list):
        return None
    items: list[Json] = []
    for item in content[:ITEMS_MAX]:
        block = {"type": "text", "text": item} if isinstance(item, str) else item
        if isinstance(block, dict):
            items.append(
                {"type": "content", "content": block} if text(block, "type") in BLOCK_TYPES else block
            )
    return tuple(items)


def _locations(items: tuple[Json, ...]) -> tuple[Location, ...]:
    return tuple(
        Location(path, integer(item, "line"))
        for item in items
        if (path := line(item, "path", WORDS_CHARS)) is not None
    )


@attrs.define
class ToolCallFields:
    """The members of a tool call and of its updates. None means unchanged.

    `content` holds objects of type content, diff or terminal (a bare content block has been wrapped);
    `raw_input` and `raw_output` are any JSON. Arrays replace those of earlier updates as a whole. Members are
    parsed lazily: most updates are about tool calls, and the recorder reads `raw`.
    """

    tool_call_id: str
    raw: Json = attrs.field(repr=False)

    @property
    def title(self) -> str | None:
        """A description of the call for people."""
        return line(self.raw, "title", WORDS_CHARS)

    @property
    def name(self) -> str | None:
        """The tool's programmatic name."""
        return line(self.raw, "name", NAME_CHARS)

    @property
    def kind(self) -> str | None:
        """The call's category, as the agent wrote it."""
        return line(self.raw, "kind", NAME_CHARS)

    @property
    def status(self) -> str | None:
        """The call's progress, as the agent wrote it."""
        return line(self.raw, "status", NAME_CHARS)

    @property
    def content(self) -> tuple[Json, ...] | None:
        """The content that the call produced."""
        return _tool_content(self.raw.get("content"))

    @property
    def locations(self) -> tuple[Location, ...] | None:
        """The files that it is about."""
        items = objects(self.raw, "locations")
        return None if items is None else _locations(items)

    @property
    def raw_input(self) -> Any:
        """Its input."""
        return self.raw.get("rawInput")

    @property
    def raw_output(self) -> Any:
        """Its output."""
        return self.raw.get("rawOutput")


class ToolCall(ToolCallFields):
    """A tool call begins."""

    __slots__ = ()


class ToolCallUpdate(ToolCallFields):
    """An update of a tool call. It may come without a ToolCall before it, or after the call's end."""

    __slots__ = ()


@attrs.frozen
class PlanEntry:
    """One step of a plan: `priority` high, medium, low; `status` pending, in_progress, completed."""

    content: str
    priority: str
    status: str


@attrs.frozen
class Plan:
    """The whole plan; replaces the one before."""

    entries: tuple[PlanEntry, ...]
    raw: Json = attrs.field(repr=False)


@attrs.frozen
class Command:
    """A slash command. `hint` describes its input; None: it takes none."""

    name: str
    description: str
    hint: str | None


@attrs.frozen
class AvailableCommands:
    """All slash commands; replaces the list before."""

    commands: tuple[Command, ...]
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
    """A patch of the session's title. `title` is valid only if `has_title`; None then clears it."""

    has_title: bool
    title: str | None
    updated_at: str | None
    raw: Json = attrs.field(repr=False)


@attrs.frozen
class Cost:
    """The cost of the session so far as the agent reports it, in units of `currency` (ISO 4217)."""

    amount: float
    currency: str


@attrs.frozen
class UsageUpdate:
    """How full the context window is, in tokens, and what the session has cost."""

    used: int | None
    size: int | None
    cost: Cost | None
    raw: Json = attrs.field(repr=False)


@attrs.frozen
class Notice:
    """A message for people. `severity` is info, warning, error, or another string. Never replayed."""

    severity: str
    title: str
    description: str | None
    raw: Json = attrs.field(repr=False)


@attrs.frozen
class Compaction:
    """The agent summarises its history: a patch by `compaction_id`.

    `status` is in_progress, completed, failed or cancelled.
    """

    compaction_id: str
    status: str | None
    summary: Any
    error: Any
    raw: Json = attrs.field(repr=False)


@attrs.frozen
class CompactionSummaryChunk:
    """A piece of a compaction's summary, to be appended: a content block."""

    compaction_id: str
    content: Json
    raw: Json = attrs.field(repr=False)

    @property
    def text(self) -> str | None:
        """The text of a text block; None for other kinds of content."""
        return text_of(self.content)


@attrs.frozen
class UnknownUpdate:
    """An unknown update, kept verbatim. `kind` is the agent's name for it, or empty."""

    kind: str
    raw: Any = attrs.field(repr=False)


Update = (
    UserMessageChunk
    | AgentMessageChunk
    | AgentThoughtChunk
    | ToolCall
    | ToolCallUpdate
    | Plan
    | AvailableCommands
    | CurrentMode
    | ConfigOptionsUpdate
    | SessionInfo
    | UsageUpdate
    | Notice
    | Compaction
    | CompactionSummaryChunk
    | UnknownUpdate
)
