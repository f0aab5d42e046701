"""The observations of external agents: the possible values of `ObservationEvent.observation`, by `kind`.

Those of the built-in agent are in builtin_observations.py.
"""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from supervisor.events.parts import ImageContent, TextContent
from supervisor.reading.model import Variant


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
