"""The event kinds: the fourteen of the interface specification and six of the agent-server wire alone."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import attrs

from supervisor.events.families import Action, Observation, ToolDefinition
from supervisor.events.ids import new_event_id, timestamp_now
from supervisor.events.parts import (
    CriticResult,
    ErrorClassification,
    HookSource,
    Message,
    MessageToolCall,
    ReasoningItemModel,
    RedactedThinkingBlock,
    SecurityRisk,
    Source,
    TextContent,
    ThinkingBlock,
)
from supervisor.events.vocabulary import EXTENDED
from supervisor.reading.model import Variant
from supervisor.reading.rules import Limit

RejectionSource = Literal["user", "hook"]
HookEventType = Literal["PreToolUse", "PostToolUse", "UserPromptSubmit", "SessionStart", "SessionEnd", "Stop"]


@attrs.frozen(kw_only=True)
class Event(Variant):
    """The family of events, and what they all have.

    Every kind has a `source` too, which each declares itself since the defaults differ. `parent_id` links
    the events of a conversation to a tree.
    """

    variants: ClassVar[dict[str, type[Any]]] = {}

    id: str = attrs.field(factory=new_event_id)
    timestamp: str = attrs.field(factory=timestamp_now)
    source: HookSource
    parent_id: str | None = attrs.field(default=None, metadata=EXTENDED)


@attrs.frozen(kw_only=True)
class MessageEvent(Event):
    """The user or the agent sends a message. `llm_response_id` is null unless the agent does."""

    source: Source
    llm_message: Message
    llm_response_id: str | None = None
    activated_skills: tuple[str, ...] = ()
    extended_content: tuple[TextContent, ...] = ()
    sender: str | None = None
    critic_result: CriticResult | None = None


@attrs.frozen(kw_only=True)
class ActionEvent(Event):
    """The model calls a tool. `action` is null when the call cannot be carried out.

    `llm_response_id` groups the calls of one response; `summary` describes the action in about ten words.
    """

    source: Source = "agent"
    thought: tuple[TextContent, ...]
    reasoning_content: str | None = None
    thinking_blocks: tuple[ThinkingBlock | RedactedThinkingBlock, ...] = ()
    responses_reasoning_item: ReasoningItemModel | None = None
    action: Action | None = None
    tool_name: str
    tool_call_id: str
    tool_call: MessageToolCall
    llm_response_id: str
    security_risk: SecurityRisk = SecurityRisk.UNKNOWN
    critic_result: CriticResult | None = None
    summary: str | None = None


@attrs.frozen(kw_only=True)
class ObservationEvent(Event):
    """A tool call gives its result."""

    source: Source = "environment"
    tool_name: str
    tool_call_id: str
    observation: Observation
    action_id: str
    extended_content: tuple[TextContent, ...] = attrs.field(default=(), metadata=EXTENDED)


@attrs.frozen(kw_only=True)
class UserRejectObservation(Event):
    """A person rejects an action, or a hook blocks it."""

    source: Source = "environment"
    tool_name: str
    tool_call_id: str
    rejection_reason: str = "User rejected the action"
    rejection_source: RejectionSource = "user"
    action_id: str


@attrs.frozen(kw_only=True)
class AgentErrorEvent(Event):
    """A tool call failed in a way that the agent may learn of; the conversation can continue."""

    source: Source = "agent"
    tool_name: str
    tool_call_id: str
    error: str
    classification: ErrorClassification | None = attrs.field(default=None, metadata=EXTENDED)


@attrs.frozen(kw_only=True)
class SystemPromptEvent(Event):
    """The agent's system prompt. `dynamic_context` is the part of it that is this conversation's own."""

    source: Source = "agent"
    system_prompt: TextContent
    tools: tuple[ToolDefinition, ...]
    dynamic_context: TextContent | None = None


@attrs.frozen(kw_only=True)
class ACPToolCallEvent(Event):
    """A tool call of an external agent, at its start or at its end; the later one replaces the earlier.

    `status`, `tool_kind` and the items of `content` are the agent's, unchecked.
    """

    source: Source = "agent"
    tool_call_id: str
    title: str
    status: str | None = None
    tool_kind: str | None = None
    raw_input: Any | None = None
    raw_output: Any | None = None
    content: tuple[Any, ...] | None = None
    is_error: bool = False


@attrs.frozen(kw_only=True)
class StreamingDeltaEvent(Event):
    """A piece of text or of thinking as it is written. Never stored."""

    source: Source = "agent"
    content: str | None = None
    reasoning_content: str | None = None


@attrs.frozen(kw_only=True)
class ConversationStateUpdateEvent(Event):
    """A part of the conversation's state changed: `key` names it, `value` is what it is now."""

    source: Source = "environment"
    key: str = attrs.field(factory=new_event_id)
    value: Any = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class ConversationErrorEvent(Event):
    """A run ended with an error. `code` is usually the name of an error type."""

    source: Source
    code: str
    detail: str
    classification: ErrorClassification | None = attrs.field(default=None, metadata=EXTENDED)


@attrs.frozen(kw_only=True)
class ServerErrorEvent(Event):
    """What a client sent on a socket could not be read. Never stored."""

    source: Source
    code: str
    detail: str


@attrs.frozen(kw_only=True)
class PauseEvent(Event):
    """The user pauses the agent."""

    source: Source = "user"


@attrs.frozen(kw_only=True)
class InterruptEvent(Event):
    """The user stops the agent at once."""

    source: Source = "user"


@attrs.frozen(kw_only=True)
class Condensation(Event):
    """The history is condensed: these events are gone from the model's view.

    `summary_offset` is the position of the summary in the resulting view; without one it is not inserted.
    """

    source: Source = "environment"
    forgotten_event_ids: tuple[str, ...] = ()
    summary: str | None = None
    summary_offset: int | None = attrs.field(default=None, validator=Limit(ge=0))
    llm_response_id: str


@attrs.frozen(kw_only=True)
class CondensationRequest(Event):
    """The history is asked to be condensed."""

    source: Source = "environment"


@attrs.frozen(kw_only=True)
class CondensationSummaryEvent(Event):
    """The summary that a condenser wrote."""

    source: Source = "environment"
    summary: str


@attrs.frozen(kw_only=True)
class HookExecutionEvent(Event):
    """A hook ran. The only kind whose source may be `hook`."""

    source: HookSource = "hook"
    hook_event_type: HookEventType
    hook_command: str
    tool_name: str | None = None
    success: bool
    blocked: bool = False
    exit_code: int
    stdout: str = ""
    stderr: str = ""
    reason: str | None = None
    additional_context: str | None = None
    error: str | None = None
    action_id: str | None = None
    message_id: str | None = None
    hook_input: dict[str, Any] | None = None


@attrs.frozen(kw_only=True)
class LLMCompletionLogEvent(Event):
    """A log of a model's completion, for the client's disk: `log_data` is JSON, `filename` relative."""

    source: Source = "environment"
    filename: str
    log_data: str
    model_name: str = "unknown"
    usage_id: str = "default"


@attrs.frozen(kw_only=True)
class SecurityAnalysisEvent(Event):
    """What a security analyzer thinks of pending actions, by action id."""

    source: Source = "environment"
    analyzer: str
    policy: str
    risks: dict[str, SecurityRisk]
    details: dict[str, dict[str, Any]] = attrs.field(factory=dict)


@attrs.frozen(kw_only=True)
class TokenEvent(Event):
    """The token ids of one exchange with an inference engine."""

    source: Source
    prompt_token_ids: tuple[int, ...]
    response_token_ids: tuple[int, ...]
