"""The base of tool definitions: the possible items of `SystemPromptEvent.tools`, distinguished by `kind`.

Only the built-in agent reports its tools; they are in builtin_tools.py.
"""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from supervisor.reading.model import Model, Variant, wire_name


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
