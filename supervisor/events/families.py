"""The three families of events' parts that `kind` distinguishes: actions, observations, tool definitions.

Here is what external agents use. What the built-in agent alone uses is in the builtin modules: they are
imported when one of their kinds is looked up.
"""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from supervisor.events.parts import ImageContent, TextContent
from supervisor.reading.model import Model, Variant, wire_name


class Action(Variant):
    """The family of actions."""

    __slots__ = ()
    variants: ClassVar[dict[str, type[Any]]] = {}
    ELSEWHERE: ClassVar[tuple[str, ...]] = ("supervisor.events.builtin_actions",)


@attrs.frozen(kw_only=True)
class MCPToolAction(Action):
    """A call of a tool with untyped arguments: an MCP server's, or an external agent's."""

    data: dict[str, Any] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class FinishAction(Action):
    """The end of the task, with the answer."""

    message: str


@attrs.frozen(kw_only=True)
class ThinkAction(Action):
    """A thought that is written down."""

    thought: str


@attrs.frozen(kw_only=True)
class Observation(Variant):
    """The family of observations, and what they all have."""

    variants: ClassVar[dict[str, type[Any]]] = {}
    ELSEWHERE: ClassVar[tuple[str, ...]] = ("supervisor.events.builtin_observations",)

    content: tuple[TextContent | ImageContent, ...] = ()
    is_error: bool = False


@attrs.frozen(kw_only=True)
class MCPToolObservation(Observation):
    """The result of a tool that has no type here."""

    tool_name: str


@attrs.frozen(kw_only=True)
class FinishObservation(Observation):
    """Answers FinishAction."""


@attrs.frozen(kw_only=True)
class ThinkObservation(Observation):
    """Answers ThinkAction."""


@attrs.frozen(kw_only=True)
class ToolAnnotations(Model):
    """A tool's hints about its effects."""

    title: str | None = None
    read_only_hint: bool = attrs.field(default=False, metadata=wire_name("readOnlyHint"))
    destructive_hint: bool = attrs.field(default=True, metadata=wire_name("destructiveHint"))
    idempotent_hint: bool = attrs.field(default=False, metadata=wire_name("idempotentHint"))
    open_world_hint: bool = attrs.field(default=True, metadata=wire_name("openWorldHint"))


@attrs.frozen(kw_only=True)
class ToolDefinition(Variant):
    """The family of tool definitions, and what they all have.

    `action_type` and `observation_type` are the kinds of what goes in and comes out.
    """

    FORBID: ClassVar[bool] = False
    variants: ClassVar[dict[str, type[Any]]] = {}
    ELSEWHERE: ClassVar[tuple[str, ...]] = ("supervisor.events.builtin_tools",)

    description: str
    action_type: str
    observation_type: str | None = None
    annotations: ToolAnnotations | None = None
    meta: dict[str, Any] | None = None
    title: str
