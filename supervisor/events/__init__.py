"""The event vocabulary: attrs types by kind, and how they are written. Knows the strict reader alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.first_use import names_of

if TYPE_CHECKING:
    from supervisor.events.decode import *  # noqa: F403
    from supervisor.events.encode import *  # noqa: F403
    from supervisor.events.families import *  # noqa: F403
    from supervisor.events.ids import *  # noqa: F403
    from supervisor.events.parts import *  # noqa: F403
    from supervisor.events.payload import *  # noqa: F403
    from supervisor.events.types import *  # noqa: F403
    from supervisor.events.vocabulary import *  # noqa: F403
else:
    homes = {
        "decode": "decode_event decode_message json_schema",
        "encode": "completed dump_event dump_stamped with_nulls",
        "families": (
            "Action FinishAction FinishObservation MCPToolAction MCPToolObservation Observation ThinkAction "
            "ThinkObservation ToolAnnotations ToolDefinition"
        ),
        "ids": "new_event_id timestamp_now",
        "parts": (
            "CriticResult Enclosed ErrorClassification FailureKind HookSource ImageContent Message "
            "MessageToolCall Origin ReasoningItemModel RedactedThinkingBlock Role SecurityRisk Source "
            "TextContent ThinkingBlock UserAction"
        ),
        "payload": "dumps",
        "types": (
            "ACPToolCallEvent ActionEvent AgentErrorEvent Condensation CondensationRequest "
            "CondensationSummaryEvent ConversationErrorEvent ConversationStateUpdateEvent Event "
            "HookEventType HookExecutionEvent InterruptEvent LLMCompletionLogEvent MessageEvent "
            "ObservationEvent PauseEvent RejectionSource SecurityAnalysisEvent ServerErrorEvent "
            "StreamingDeltaEvent SystemPromptEvent TokenEvent UserRejectObservation"
        ),
        "vocabulary": "Vocabulary",
    }
    __all__ = " ".join(homes.values()).split()
    __getattr__ = names_of(__name__, homes)
