"""What events are made of: message contents, tool calls, thinking, risk, verdicts.

Which of them reject unknown properties (`FORBID`) is what the agent-server wire does; the rest ignore them.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import attrs

from supervisor.events.vocabulary import EXTENDED
from supervisor.reading.model import Model
from supervisor.reading.rules import Limit

Source = Literal["agent", "user", "environment"]
HookSource = Literal["agent", "user", "environment", "hook"]
Role = Literal["user", "system", "assistant", "tool"]
Origin = Literal["completion", "responses"]
FailureKind = Literal[
    "auth", "quota", "rate_limit", "config", "transient", "agent_action", "internal", "unknown"
]
UserAction = Literal["none", "retry", "settings"]


class SecurityRisk(enum.StrEnum):
    """How dangerous an action is thought to be; ordered UNKNOWN < LOW < MEDIUM < HIGH."""

    UNKNOWN = "UNKNOWN"
    LOW = "LOW"
    MEDIUM = "MEDIUM"
    HIGH = "HIGH"

    @property
    def _rank(self) -> int:
        return list(SecurityRisk).index(self)

    # A string compares by its letters, so all four are ours.
    def __lt__(self, other: object) -> bool:
        return self._rank < other._rank if isinstance(other, SecurityRisk) else NotImplemented

    def __le__(self, other: object) -> bool:
        return self._rank <= other._rank if isinstance(other, SecurityRisk) else NotImplemented

    def __gt__(self, other: object) -> bool:
        return self._rank > other._rank if isinstance(other, SecurityRisk) else NotImplemented

    def __ge__(self, other: object) -> bool:
        return self._rank >= other._rank if isinstance(other, SecurityRisk) else NotImplemented


@attrs.frozen(kw_only=True)
class TextContent(Model):
    """A piece of text. The one content type that rejects unknown properties."""

    TAG: ClassVar[str | None] = "type"
    FORBID: ClassVar[bool] = True
    type: ClassVar[str] = "text"

    cache_prompt: bool = False
    text: str


@attrs.frozen(kw_only=True)
class Enclosed(TextContent):
    """In a message that is sent, a text that stands for a block of ACP's, which clients do not know.

    Its event has the text alone; the agent gets the block.
    """

    block: Mapping[str, Any] = attrs.field(repr=False)


@attrs.frozen(kw_only=True)
class ImageContent(Model):
    """Images, as data URLs or http URLs."""

    TAG: ClassVar[str | None] = "type"
    type: ClassVar[str] = "image"

    cache_prompt: bool = False
    image_urls: tuple[str, ...]


@attrs.frozen(kw_only=True)
class ThinkingBlock(Model):
    """What a model thought, with the provider's signature over it."""

    TAG: ClassVar[str | None] = "type"
    type: ClassVar[str] = "thinking"

    thinking: str
    signature: str | None = None


@attrs.frozen(kw_only=True)
class RedactedThinkingBlock(Model):
    """What a model thought, readable by its provider alone."""

    TAG: ClassVar[str | None] = "type"
    type: ClassVar[str] = "redacted_thinking"

    data: str


@attrs.frozen(kw_only=True)
class ReasoningItemModel(Model):
    """A reasoning item of a provider. `encrypted_content` is never shown, not even by repr."""

    id: str | None = None
    summary: tuple[str, ...] = ()
    content: tuple[str, ...] | None = None
    encrypted_content: str | None = attrs.field(default=None, repr=False)
    status: str | None = None


@attrs.frozen(kw_only=True)
class MessageToolCall(Model):
    """A tool call as the model wrote it. `arguments` is a string that holds JSON, unchecked."""

    id: str
    responses_item_id: str | None = attrs.field(default=None, metadata=EXTENDED)
    name: str
    arguments: str
    origin: Origin


@attrs.frozen(kw_only=True)
class CriticResult(Model):
    """A critic's verdict; `score` is between 0 and 1."""

    score: float = attrs.field(validator=Limit(ge=0, le=1))
    message: str | None
    metadata: dict[str, Any] | None = None


@attrs.frozen(kw_only=True)
class Message(Model):
    """A message to or from a model."""

    role: Role
    content: tuple[TextContent | ImageContent, ...] = ()
    tool_calls: tuple[MessageToolCall, ...] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None
    thinking_blocks: tuple[ThinkingBlock | RedactedThinkingBlock, ...] = ()
    responses_reasoning_item: ReasoningItemModel | None = None


@attrs.frozen(kw_only=True)
class ErrorClassification(Model):
    """What a person can do about an error. `kind` is an ordinary property here: the sort of failure."""

    FORBID: ClassVar[bool] = True
    kind: FailureKind
    retryable: bool
    user_action: UserAction = "none"
    error_id: str | None = None
