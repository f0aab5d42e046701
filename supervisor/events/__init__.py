"""The event vocabulary: attrs types by kind, and how they are written. Knows the strict reader alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.first_use import names_of

if TYPE_CHECKING:
    from supervisor.events.actions import (
        Action,
        FinishAction,
        MCPToolAction,
        ThinkAction,
    )
    from supervisor.events.decode import decode_event, decode_message
    from supervisor.events.encode import (
        completed,
        dump_event,
        dump_stamped,
        with_nulls,
    )
    from supervisor.events.ids import (
        new_event_id,
        timestamp_now,
    )
    from supervisor.events.observations import (
        FinishObservation,
        MCPToolObservation,
        Observation,
        ThinkObservation,
    )
    from supervisor.events.parts import (
        CriticResult,
        Enclosed,
        ErrorClassification,
        FailureKind,
        HookSource,
        ImageContent,
        Message,
        MessageToolCall,
        Origin,
        ReasoningItemModel,
        RedactedThinkingBlock,
        Role,
        SecurityRisk,
        Source,
        TextContent,
        ThinkingBlock,
        UserAction,
    )
    from supervisor.events.payload import dumps
    from supervisor.events.schema import (
        json_schema,
    )
    from supervisor.events.tools import (
        ToolAnnotations,
        ToolDefinition,
    )
    from supervisor.events.types import (
        ACPToolCallEvent,
        ActionEvent,
        AgentErrorEvent,
        Condensation,
        CondensationRequest,
        CondensationSummaryEvent,
        ConversationErrorEvent,
        ConversationStateUpdateEvent,
        Event,
        HookEventType,
        HookExecutionEvent,
        InterruptEvent,
        LLMCompletionLogEvent,
        MessageEvent,
        ObservationEvent,
        PauseEvent,
        RejectionSource,
        SecurityAnalysisEvent,
        ServerErrorEvent,
        StreamingDeltaEvent,
        SystemPromptEvent,
        TokenEvent,
        UserRejectObservation,
    )
    from supervisor.events.vocabulary import Vocabulary
else:
    homes = {
        "actions": "Action FinishAction MCPToolAction ThinkAction",
        "decode": "decode_event decode_message",
        "encode": "completed dump_event dump_stamped with_nulls",
        "ids": "new_event_id timestamp_now",
        "observations": "FinishObservation MCPToolObservation Observation ThinkObservation",
        "parts": (
            "CriticResult Enclosed ErrorClassification FailureKind HookSource ImageContent Message "
            "MessageToolCall Origin ReasoningItemModel RedactedThinkingBlock Role SecurityRisk Source "
            "TextContent ThinkingBlock UserAction"
        ),
        "payload": "dumps",
        "schema": "json_schema",
        "tools": "ToolAnnotations ToolDefinition",
        "types": (
            "ACPToolCallEvent ActionEvent AgentErrorEvent Condensation CondensationRequest "
            "CondensationSummaryEvent ConversationErrorEvent ConversationStateUpdateEvent Event "
            "HookEventType HookExecutionEvent InterruptEvent LLMCompletionLogEvent MessageEvent "
            "ObservationEvent PauseEvent RejectionSource SecurityAnalysisEvent ServerErrorEvent "
            "StreamingDeltaEvent SystemPromptEvent TokenEvent UserRejectObservation"
        ),
        "vocabulary": "Vocabulary",
    }
    __getattr__ = names_of(__name__, homes)

__all__ = [
    "ACPToolCallEvent",
    "Action",
    "ActionEvent",
    "AgentErrorEvent",
    "Condensation",
    "CondensationRequest",
    "CondensationSummaryEvent",
    "ConversationErrorEvent",
    "ConversationStateUpdateEvent",
    "CriticResult",
    "Enclosed",
    "ErrorClassification",
    "Event",
    "FailureKind",
    "FinishAction",
    "FinishObservation",
    "HookEventType",
    "HookExecutionEvent",
    "HookSource",
    "ImageContent",
    "InterruptEvent",
    "LLMCompletionLogEvent",
    "MCPToolAction",
    "MCPToolObservation",
    "Message",
    "MessageEvent",
    "MessageToolCall",
    "Observation",
    "ObservationEvent",
    "Origin",
    "PauseEvent",
    "ReasoningItemModel",
    "RedactedThinkingBlock",
    "RejectionSource",
    "Role",
    "SecurityAnalysisEvent",
    "SecurityRisk",
    "ServerErrorEvent",
    "Source",
    "StreamingDeltaEvent",
    "SystemPromptEvent",
    "TextContent",
    "ThinkAction",
    "ThinkObservation",
    "ThinkingBlock",
    "TokenEvent",
    "ToolAnnotations",
    "ToolDefinition",
    "UserAction",
    "UserRejectObservation",
    "Vocabulary",
    "completed",
    "decode_event",
    "decode_message",
    "dump_event",
    "dump_stamped",
    "dumps",
    "json_schema",
    "new_event_id",
    "timestamp_now",
    "with_nulls",
]
