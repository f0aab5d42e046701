"""The actions of external agents: the possible values of `ActionEvent.action`, distinguished by `kind`.

Those of the built-in agent are in builtin_actions.py.
"""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from supervisor.reading.model import Variant


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
