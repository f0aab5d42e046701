"""Validates the events that the built-in agent reports, and passes them on unchanged.

Pure, except that it writes the last states to the record. It removes duplicates: an event with a known id,
and the end of a call that has already ended. Ostler closes the calls of a lost agent; the agent closes them,
too, when it returns.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from supervisor.acp import PermissionRequest, RpcError
from supervisor.acp.schema.extension import (
    Received,
    Reported,
    ReportedEvent,
    ReportedState,
    parse_reported,
    reported_action,
    reported_child,
    reported_risk,
    reported_status,
)
from supervisor.conversations.agent.kind import Ending, Heard, NotRecorded, Question, Unreadable, Voice
from supervisor.conversations.built_in.items import NativeItems
from supervisor.conversations.built_in.memory import is_agents
from supervisor.conversations.recording.effects import Effect, Recorded
from supervisor.conversations.recording.permission_log import shown_input
from supervisor.conversations.recording.tool_calls.events import interrupted_action
from supervisor.conversations.state.queue import Queued
from supervisor.conversations.state.record import ConversationRecord
from supervisor.conversations.state.status import ExecutionStatus
from supervisor.credentials.masking import Masker
from supervisor.events import (
    ActionEvent,
    AgentErrorEvent,
    ConversationErrorEvent,
    ConversationStateUpdateEvent,
    Event,
    FinishAction,
    MessageEvent,
    ObservationEvent,
    SecurityRisk,
    UserRejectObservation,
    decode_event,
    new_event_id,
)
from supervisor.events.payload import dumps
from supervisor.reading.model import Invalid
from supervisor.settings.built_in import DOCUMENT_BYTES, hidden

STATES: Final[Mapping[str, type]] = {
    "activated_knowledge_skills": list,
    "agent": dict,
    "blocked_actions": dict,
    "invoked_skills": list,
    "stats": dict,
}
"""The state properties that the built-in agent may report, and their types. Ostler writes the others."""

STATE_BYTES: Final = 256 * 1024
"""Largest value of such a property, bytes of JSON: the record contains it, and is stored with each change.
The property `agent` may be as large as a client's request."""

LISTS: Final = frozenset({"costs", "response_latencies", "token_usages"})
"""Members of `stats` with an item per model request, which are dropped: the sums remain."""

EXTENDED: Final = "message_extended"
"""The state key for what the agent added to a user's message, since the message is already in the log."""

IDS_MAX: Final = 10_000
"""How many event ids are remembered to detect duplicates."""

MESSAGES_MAX: Final = 200
"""How many ids of user-role messages written by the agent are kept: more than hooks and critics produce in a
conversation."""

ENDS: Final = (ObservationEvent, AgentErrorEvent, UserRejectObservation)


class NativeEvents(Voice):
    """Validates what one conversation's agent reports."""

    by_updates = False

    def __init__(self, record: ConversationRecord) -> None:
        super().__init__(record)
        self.items = NativeItems()
        """The events that are still streaming."""
        self._answer_id: str | None = None
        """The id of the event that is the turn's answer so far."""
        self._failed = False
        """Whether the agent reported an error that ends this turn."""
        self._known: frozenset[str] = frozenset()
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._calls: dict[str, ActionEvent] = {}

    @property
    def calling(self) -> bool:  # type: ignore[override]
        return bool(self._calls)

    def new_mask(self, mask: Masker) -> None:
        self.items.mask = mask

    def action(self, event_id: str) -> ActionEvent | None:
        """The action of an open call."""
        return next((each for each in self._calls.values() if each.id == event_id), None)

    def question(self, request: PermissionRequest, mask: Masker) -> Question:
        call = request.tool_call
        action = self.action(reported_action(call.raw) or "")
        if action is None:
            raise RpcError.invalid_params("the request names no action that waits (_meta.ostler.eventId)")
        if reported_child(call.raw) is None:
            return Question(action, title=action.summary or "", risk=action.security_risk)
        said = reported_risk(call.raw)
        risk = SecurityRisk(said) if said in tuple(SecurityRisk) else SecurityRisk.UNKNOWN
        given = shown_input(mask.value(call.raw.get("rawInput")))
        return Question(action, True, mask.text(call.title or ""), risk, given)

    def know(self, ids: frozenset[str]) -> None:
        """Set the ids of events that are in the log after the `last_event_id` sent to the agent.

        They replace those of the previous session."""
        self._known = ids

    def new_turn(self, item: Queued) -> None:
        self._answer_id, self._failed, self.spoke = None, False, False
        self._keep(item.event_id)

    def joined(self, message_id: str) -> None:
        self._keep(message_id)

    def ending(self, answer: Mapping[str, Any] | None) -> Ending:
        status = ExecutionStatus.PAUSED if answer is None else reported_status(answer)
        return Ending(status, self._answer_id, self._failed)

    def reopen(self, actions: Iterable[ActionEvent]) -> None:
        for action in actions:
            self._keep(action.id)
            self._calls[action.tool_call_id] = action

    def close_items(self) -> list[Effect]:
        return self.items.close()

    def close(self, asked: Collection[str]) -> list[Effect]:
        calls, self._calls = self._calls, {}
        ended = [
            interrupted_action(action.tool_name, call_id, begun=action.id not in asked)
            for call_id, action in calls.items()
        ]
        return [*self.items.close(), *map(Recorded, ended)]

    def take(self, method: str, params: Any, session_id: str | None) -> Heard:
        return self.heard(parse_reported(method, params), session_id)

    def heard(self, reported: Reported, session_id: str | None) -> Heard:
        """The same for what was read. Raises NotRecorded."""
        if session_id not in (None, reported.session_id):
            raise NotRecorded("it is about another session")
        effects = self._taken(reported, session_id)
        return Heard(
            effects=effects,
            work=isinstance(reported, ReportedEvent),
            has_messages=isinstance(reported, ReportedEvent)
            and is_agents(reported.event.get("kind"), reported.event.get("source")),
            joins=reported.message_id if isinstance(reported, Received) else None,
            changed=isinstance(reported, ReportedState),
            # With whom a message is from: see `ConversationRecord.native_messages`.
            at_once=any(isinstance(each, Recorded) and _is_message(each.event) for each in effects),
        )

    def _taken(self, reported: Reported, session_id: str | None) -> list[Effect]:
        match reported:
            case ReportedEvent():
                return self._event(reported)
            case ReportedState():
                states = self._state(reported.key, reported.value)
                # The agent's description at the opening of its session is not a change.
                return [] if reported.key == "agent" and session_id is None else states
            case Received(activated_skills=skills, extended_content=content):
                if not (skills or content):
                    return []
                value = {
                    "message_id": reported.message_id,
                    "activated_skills": list(skills),
                    "extended_content": [{"type": "text", "text": text} for text in content],
                }
                return [_state_update(EXTENDED, value)]
            case _:
                try:
                    return self.items.take(reported)
                except ValueError as error:
                    raise NotRecorded(str(error)) from error

    def _event(self, reported: ReportedEvent) -> list[Effect]:
        try:
            event = decode_event(reported.event)
        except Invalid as error:
            raise Unreadable(
                f"an event of kind {reported.event.get('kind')!s:.80} is not valid: {error}"
            ) from error
        if isinstance(event, ConversationStateUpdateEvent):
            raise NotRecorded("a state is not sent as an event")
        if event.id in self._ids or event.id in self._known:
            return []
        call_id = getattr(event, "tool_call_id", None)
        if isinstance(event, ENDS) and self._calls.pop(str(call_id), None) is None:
            raise NotRecorded(f"the call {call_id!s:.80} has ended, or never began")
        self._remember(event)
        return [*self.items.becomes(event.id), Recorded(event)]

    def _remember(self, event: Event) -> None:
        self._keep(event.id)
        self.spoke = True
        if isinstance(event, ActionEvent):
            self._calls[event.tool_call_id] = event
            if isinstance(event.action, FinishAction):
                self._answer_id = event.id
        elif _is_message(event):
            # Persisted, so that after a restart it does not count as a message waiting for the agent.
            self.record.reported.native_messages = [*self.record.reported.native_messages, event.id][
                -MESSAGES_MAX:
            ]
        elif isinstance(event, MessageEvent) and event.source == "agent":
            self._answer_id = event.id
        elif isinstance(event, ConversationErrorEvent):
            self._failed = True

    def _keep(self, event_id: str) -> None:
        self._ids[event_id] = None
        if len(self._ids) > IDS_MAX:
            self._ids.popitem(last=False)

    def _state(self, key: str, value: Any) -> list[Effect]:
        wanted = STATES.get(key)
        if wanted is None:
            raise NotRecorded(f"the state {key:.80} is not the agent's to tell")
        if not isinstance(value, wanted):
            raise NotRecorded(f"the state {key} is not of the type {wanted.__name__}")
        if key in CLEANED:
            value = CLEANED[key](value)
        if self.record.reported.native_states.get(key) == value:
            return []
        if len(dumps(value)) > (DOCUMENT_BYTES if key == "agent" else STATE_BYTES):
            raise NotRecorded(f"the state {key} is too large")
        self.record.reported.native_states[key] = value
        return [_state_update(key, value)]


def _state_update(key: str, value: Any) -> Recorded:
    return Recorded(ConversationStateUpdateEvent(id=new_event_id(), key=key, value=value))


def _is_message(event: Event) -> bool:
    """Whether an event is a message in the role of a user."""
    return isinstance(event, MessageEvent) and event.source != "agent" and event.llm_message.role == "user"


def _sums(stats: Mapping[str, Any]) -> dict[str, Any]:
    """The statistics without their growing history, which each state would repeat."""
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


CLEANED: Final[Mapping[str, Callable[[Any], Any]]] = {"agent": hidden, "stats": _sums}
"""How a value is reduced before it is stored, by key."""
