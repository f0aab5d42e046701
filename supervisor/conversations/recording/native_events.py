"""What an agent tells in the interface's own events (the built-in one): checked, and passed on as it is.

Pure, but for the record, which keeps the last states. Nothing appears twice: not an event whose id is known,
and not the end of a call that has one already. Ostler closes calls whose agent is gone; when that agent comes
back it closes them by itself, too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

import attrs

from supervisor.acp.schema.extension import Received, Told, ToldEvent, ToldState
from supervisor.conversations.recording.effects import Out
from supervisor.conversations.recording.native_items import ToldItems
from supervisor.conversations.recording.tool_calls.events import Recorded, interrupted_action
from supervisor.conversations.state.record import ConversationRecord
from supervisor.events import (
    ActionEvent,
    AgentErrorEvent,
    ConversationErrorEvent,
    ConversationStateUpdateEvent,
    Event,
    FinishAction,
    MessageEvent,
    ObservationEvent,
    UserRejectObservation,
    decode_event,
    new_event_id,
)
from supervisor.events.payload import dumps
from supervisor.reading import Invalid
from supervisor.settings import DOCUMENT_BYTES, hidden

STATS: Final = "stats"

STATES: Final[Mapping[str, type]] = {
    "activated_knowledge_skills": list,
    "agent": dict,
    "blocked_actions": dict,
    "invoked_skills": list,
    STATS: dict,
}
"""The properties of the state that such an agent tells, and their types. The others are Ostler's to tell."""

STATE_BYTES: Final = 256 * 1024
"""Most of one of these, bytes of JSON: the record has it, and is stored with each of its changes. The agent
itself may have as many as its client may send."""

LISTS: Final = frozenset({"costs", "response_latencies", "token_usages"})
"""What of `stats` has an item for each request of a model: the state has the sums."""

EXTENDED: Final = "message_extended"
"""The key of the state that tells what the agent has put beside a user's message: that one is in the log
before the agent has it."""

IDS_MAX: Final = 10_000
"""Ids of events that are remembered, so that one that comes twice is one."""

MESSAGES_MAX: Final = 200
"""Ids of messages in the role of a user that the agent wrote itself: more than hooks and critics send it back
in a conversation."""

ENDS: Final = (ObservationEvent, AgentErrorEvent, UserRejectObservation)


class NotTold(Exception):
    """It is not accepted. The message says why, in words for the log."""


class Unreadable(NotTold):
    """It is an event, and cannot be read: what happened would be missing in the log."""


@attrs.define
class ToldEvents:
    """Checks what one conversation's agent tells."""

    record: ConversationRecord
    answer_id: str | None = None
    """The event of this turn that answers it so far."""
    failed: bool = False
    """Whether this turn has told of an error that ends it."""
    spoke: bool = False
    """Whether anything was told in this turn."""
    items: ToldItems = attrs.field(factory=ToldItems)
    """What it is still making."""
    _known: frozenset[str] = frozenset()
    _ids: OrderedDict[str, None] = attrs.field(factory=OrderedDict)
    _calls: dict[str, ActionEvent] = attrs.field(factory=dict)
    _held: list[Out] = attrs.field(factory=list)
    """The last `stats`, told while items were open. Between the deltas of an item and its event clients
    would take it for the end of the item, and show its text a second time with the event."""

    @property
    def calling(self) -> bool:
        """Whether a call is open."""
        return bool(self._calls)

    def action(self, event_id: str) -> ActionEvent | None:
        """The action of an open call."""
        return next((each for each in self._calls.values() if each.id == event_id), None)

    def know(self, ids: frozenset[str]) -> None:
        """Events of these ids are in the log, after the last one that the agent is told of.

        They replace those of the session before."""
        self._known = ids

    def handed(self, event_id: str) -> None:
        """The agent gets this message, which is in the log."""
        self._keep(event_id)

    def new_turn(self) -> None:
        """A turn begins."""
        self.answer_id, self.failed, self.spoke = None, False, False

    def reopen(self, actions: Iterable[ActionEvent]) -> None:
        """Calls that an earlier process left open wait on: the agent will tell how they end."""
        for action in actions:
            self._keep(action.id)
            self._calls[action.tool_call_id] = action

    def close(self, *, asked: Collection[str] = ()) -> list[Out]:
        """End the calls that are open, as interrupted: a turn is over, and nobody will end them. What was
        streamed becomes nothing. `asked`: ids of the actions that a person was asked about."""
        calls, self._calls = self._calls, {}
        ended = self.items.close()
        return [
            *ended,
            *(
                Recorded(
                    interrupted_action(
                        new_event_id(), action.tool_name, call_id, begun=action.id not in asked
                    )
                )
                for call_id, action in calls.items()
            ),
            *self._released(),
        ]

    def take(self, told: Told, session_id: str | None = None) -> list[Out]:
        """What is to be recorded and streamed. `session_id`: the open session. Raises NotTold."""
        if session_id not in (None, told.session_id):
            raise NotTold("it is about another session")
        outs = self._taken(told, session_id)
        if isinstance(told, ToldState) and told.key == STATS and outs and self.items.open:
            self._held = outs
            return []
        return [*outs, *self._released()]

    def _released(self) -> list[Out]:
        if self.items.open:
            return []
        held, self._held = self._held, []
        return held

    def _taken(self, told: Told, session_id: str | None) -> list[Out]:
        match told:
            case ToldEvent():
                return self._event(told)
            case ToldState():
                states = self._state(told.key, told.value)
                # What the agent is when its session opens is no change.
                return [] if told.key == "agent" and session_id is None else states
            case Received():
                return _extended(told)
            case _:
                try:
                    return self.items.take(told)
                except ValueError as error:
                    raise NotTold(str(error)) from error

    def _event(self, told: ToldEvent) -> list[Out]:
        try:
            event = decode_event(told.event)
        except Invalid as error:
            raise Unreadable(
                f"an event of kind {told.event.get('kind')!s:.80} is not valid: {error}"
            ) from error
        if isinstance(event, ConversationStateUpdateEvent):
            raise NotTold("the state is told apart from events")
        if event.id in self._ids or event.id in self._known:
            return []
        call_id = getattr(event, "tool_call_id", None)
        if isinstance(event, ENDS) and self._calls.pop(str(call_id), None) is None:
            raise NotTold(f"the call {call_id!s:.80} has ended, or never began")
        self._remember(event)
        return [*self.items.becomes(event.id), Recorded(event)]

    def _remember(self, event: Event) -> None:
        self._keep(event.id)
        self.spoke = True
        if isinstance(event, ActionEvent):
            self._calls[event.tool_call_id] = event
            if isinstance(event.action, FinishAction):
                self.answer_id = event.id
        elif is_message(event):
            # It is no message that waits for an agent, whatever becomes of this server.
            self.record.told_messages = [*self.record.told_messages, event.id][-MESSAGES_MAX:]
        elif isinstance(event, MessageEvent) and event.source == "agent":
            self.answer_id = event.id
        elif isinstance(event, ConversationErrorEvent):
            self.failed = True

    def _keep(self, event_id: str) -> None:
        self._ids[event_id] = None
        if len(self._ids) > IDS_MAX:
            self._ids.popitem(last=False)

    def _state(self, key: str, value: Any) -> list[Out]:
        wanted = STATES.get(key)
        if wanted is None:
            raise NotTold(f"the state {key:.80} is not the agent's to tell")
        if not isinstance(value, wanted):
            raise NotTold(f"the state {key} is not of the type {wanted.__name__}")
        if key in CLEANED:
            value = CLEANED[key](value)
        if self.record.told.get(key) == value:
            return []
        if len(dumps(value)) > (DOCUMENT_BYTES if key == "agent" else STATE_BYTES):
            raise NotTold(f"the state {key} is too large")
        self.record.told[key] = value
        return [Recorded(ConversationStateUpdateEvent(id=new_event_id(), key=key, value=value))]


def _extended(told: Received) -> list[Out]:
    if not (told.activated_skills or told.extended_content):
        return []
    value = {
        "message_id": told.message_id,
        "activated_skills": list(told.activated_skills),
        "extended_content": [{"type": "text", "text": text} for text in told.extended_content],
    }
    return [Recorded(ConversationStateUpdateEvent(id=new_event_id(), key=EXTENDED, value=value))]


def is_message(event: Event) -> bool:
    """Whether an event is a message in the role of a user."""
    return isinstance(event, MessageEvent) and event.source != "agent" and event.llm_message.role == "user"


def _sums(stats: Mapping[str, Any]) -> dict[str, Any]:
    """The figures without their history, which would be in each of these states as a whole."""
    metrics = stats.get("usage_to_metrics")
    if not isinstance(metrics, Mapping):
        return dict(stats)
    return {
        **stats,
        "usage_to_metrics": {
            name: {key: item for key, item in each.items() if key not in LISTS}
            for name, each in metrics.items()
            if isinstance(each, Mapping)
        },
    }


CLEANED: Final[Mapping[str, Callable[[Any], Any]]] = {"agent": hidden, STATS: _sums}
"""What becomes of a value before it is stored."""
