"""Resuming a conversation: cleans up what a killed process left unfinished."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from openhands.sdk.agent import Agent
from openhands.sdk.conversation.persistence_const import BASE_STATE
from openhands.sdk.conversation.state import ConversationExecutionStatus, ConversationState
from openhands.sdk.event import ActionEvent, AgentErrorEvent, Event, ObservationBaseEvent
from openhands.sdk.event.error_classification import ErrorClassification, FailureKind
from openhands.sdk.utils.files import atomic_write_text
from pydantic import ValidationError

from .turn import Conversation

KILLED = (
    "A restart occurred while this tool was in progress. "
    "This may indicate a fatal memory error or system crash. "
    "The tool execution was interrupted and did not complete."
)
"""The text that the SDK's own server uses."""

UNFINISHED = (ConversationExecutionStatus.RUNNING, ConversationExecutionStatus.WAITING_FOR_CONFIRMATION)


def is_stored(directory: Path) -> bool:
    """Whether a conversation has begun there, even if its `session/new` was not answered."""
    return (directory / BASE_STATE).exists()


def use_agent(directory: Path, agent: Agent) -> None:
    """Overwrite the stored agent with the one that was sent, without its keys.

    The SDK refuses to resume a conversation whose agent has lost a tool, for example because the browser is
    gone. The agent that Ostler sends is the right one; a model that calls a missing tool gets an error.
    """
    stored = directory / BASE_STATE
    state = json.loads(stored.read_text())
    state["agent"] = agent.model_dump(mode="json", exclude_none=True)
    atomic_write_text(stored, json.dumps(state))


def settle(
    conversation: Conversation,
    closed: Sequence[Mapping[str, Any]],
    known: set[str],
    waiting: Collection[str] = (),
) -> None:
    """Close what a process that died left open: actions whose results will never be written.

    `closed`: results that Ostler has written meanwhile; they are taken over as they are. Their ids are added
    to `known`. `waiting`: actions that a person is still asked about; they stay open if nothing else is open.
    """
    state = conversation.state
    with state:
        if state.execution_status in UNFINISHED:
            _advance(state)
        unmatched = ConversationState.get_unmatched_actions(state.active_branch())
        if (
            state.execution_status is ConversationExecutionStatus.WAITING_FOR_CONFIRMATION
            and unmatched
            and all(action.id in waiting for action in unmatched)
        ):
            state.rebuild_view()
            for action in unmatched:  # the view omits them, and their later results need their actions
                state.view.append_event(action)
            return
        for action in unmatched:
            result = _result_of(action, closed)
            if result is not None:
                known.add(result.id)
            conversation._on_event(result or _killed(action))
        # The view was built without actions that had no result, and now contains only the results.
        state.rebuild_view()
        if state.execution_status in UNFINISHED:
            state.execution_status = ConversationExecutionStatus.IDLE


def later_events(conversation: Conversation, last_known: str | None) -> list[Event]:
    """Return the events after the last that Ostler has: it was killed before it could write them."""
    events = conversation.state.events
    if last_known is None or last_known not in events:
        return []
    return list(events[events.get_index(last_known) + 1 :])


def _advance(state: ConversationState) -> None:
    """Advance the head, which may lag behind the log: it is written at the end of a step, events at once."""
    if len(state.events) == 0:
        return
    last, head = state.events[-1], state.leaf_event_id
    if last.id == head:
        return
    if head is None or any(event.id == head for event in state.events.path_to_root(last.id)):
        state.leaf_event_id = last.id
        state.rebuild_view()


def _result_of(action: ActionEvent, closed: Sequence[Mapping[str, Any]]) -> Event | None:
    for given in closed:
        if given.get("tool_call_id") == action.tool_call_id:
            try:
                event = Event.model_validate({**given, "parent_id": None})
            except ValidationError:
                return None
            if isinstance(event, ObservationBaseEvent):
                return event
    return None


def _killed(action: ActionEvent) -> AgentErrorEvent:
    return AgentErrorEvent(
        tool_name=action.tool_name,
        tool_call_id=action.tool_call_id,
        error=KILLED,
        classification=ErrorClassification(kind=FailureKind.INTERNAL, retryable=False),
    )
