"""What an agent tells in the interface's own events (the built-in one): checked, and passed on as it is.

Pure, but for the record, which keeps the last states. Nothing appears twice: not an event whose id is known,
and not the end of a call that has one already. Ostler closes calls whose agent is gone; when that agent comes
back it closes them by itself, too.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from supervisor.acp import PermissionRequest, RpcError
from supervisor.acp.schema.extension import (
    Received,
    Told,
    ToldEvent,
    ToldState,
    parse_told,
    told_action,
    told_child,
    told_risk,
    told_status,
)
from supervisor.conversations.agent.kind import Ending, Heard, NotTold, Question, Unreadable, Voice
from supervisor.conversations.built_in.items import ToldItems
from supervisor.conversations.built_in.recalled import is_agents
from supervisor.conversations.recording.effects import Out
from supervisor.conversations.recording.permission_log import shown_input
from supervisor.conversations.recording.tool_calls.events import Recorded, interrupted_action
from supervisor.conversations.state.queue import Queued
from supervisor.conversations.state.record import ConversationRecord
from supervisor.conversations.state.status import ExecutionStatus
from supervisor.conversations.state.turn import Turn
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


class ToldEvents(Voice):
    """Checks what one conversation's agent tells."""

    by_updates = False

    def __init__(self, record: ConversationRecord) -> None:
        super().__init__(record)
        self.items = ToldItems()
        """What it is still making."""
        self._answer_id: str | None = None
        """The event of this turn that answers it so far."""
        self._failed = False
        """Whether this turn has told of an error that ends it."""
        self._known: frozenset[str] = frozenset()
        self._ids: OrderedDict[str, None] = OrderedDict()
        self._calls: dict[str, ActionEvent] = {}
        self._held: list[Out] = []
        """The last `stats`, told while items were open. Between the deltas of an item and its event clients
        would take it for the end of the item, and show its text a second time with the event."""

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
        action = self.action(told_action(call.raw) or "")
        if action is None:
            raise RpcError.invalid_params("the request names no action that waits (_meta.ostler.eventId)")
        if told_child(call.raw) is None:
            return Question(action, title=action.summary or "", risk=action.security_risk)
        said = told_risk(call.raw)
        risk = SecurityRisk(said) if said in tuple(SecurityRisk) else SecurityRisk.UNKNOWN
        given = shown_input(mask.value(call.raw.get("rawInput")))
        return Question(action, True, mask.text(call.title or ""), risk, given)

    def know(self, ids: frozenset[str]) -> None:
        """Events of these ids are in the log, after the last one that the agent is told of.

        They replace those of the session before."""
        self._known = ids

    def new_turn(self, item: Queued) -> None:
        record = self.record
        # It skips a message that it has: until it tells something, it may not have this one.
        record.retry_seq = None if item.goes_on else item.seq
        if not item.goes_on and item.event_id not in record.joined:
            record.joined.append(item.event_id)
        self._answer_id, self._failed, self.spoke = None, False, False
        self._keep(item.event_id)

    def handed_back(self, turn: Turn) -> None:
        """`new_turn` has said so."""

    def joined(self, message_id: str) -> None:
        self.record.joined.append(message_id)
        self.record.retry_seq = None  # the message of the turn is before it in the agent's memory
        self._keep(message_id)

    def ending(self, answer: Mapping[str, Any] | None) -> Ending:
        status = ExecutionStatus.PAUSED if answer is None else told_status(answer)
        return Ending(status, self._answer_id, self._failed)

    def reopen(self, actions: Iterable[ActionEvent]) -> None:
        for action in actions:
            self._keep(action.id)
            self._calls[action.tool_call_id] = action

    def close_items(self) -> list[Out]:
        return self.items.close()

    def close(self, asked: Collection[str]) -> list[Out]:
        calls, self._calls = self._calls, {}
        ended = [
            interrupted_action(new_event_id(), action.tool_name, call_id, begun=action.id not in asked)
            for call_id, action in calls.items()
        ]
        return [*self.items.close(), *map(Recorded, ended), *self._released()]

    def take(self, method: str, params: Any, session_id: str | None) -> Heard:
        return self.heard(parse_told(method, params), session_id)

    def heard(self, told: Told, session_id: str | None) -> Heard:
        """The same for what was read. Raises NotTold."""
        if session_id not in (None, told.session_id):
            raise NotTold("it is about another session")
        outs = self._taken(told, session_id)
        if isinstance(told, ToldEvent) and is_agents(told.event.get("kind"), told.event.get("source")):
            self.record.joined.clear()  # it is behind these in the agent's memory
        if isinstance(told, ToldState) and told.key == STATS and outs and self.items.open:
            self._held, outs = outs, []
        else:
            outs = [*outs, *self._released()]
        return Heard(
            outs=outs,
            work=isinstance(told, ToldEvent),
            joins=told.message_id if isinstance(told, Received) else None,
            changed=isinstance(told, ToldState),
            # With whom a message is from: see `ConversationRecord.told_messages`.
            at_once=any(isinstance(each, Recorded) and _is_message(each.event) for each in outs),
        )

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
                self._answer_id = event.id
        elif _is_message(event):
            # It is no message that waits for an agent, whatever becomes of this server.
            self.record.told_messages = [*self.record.told_messages, event.id][-MESSAGES_MAX:]
        elif isinstance(event, MessageEvent) and event.source == "agent":
            self._answer_id = event.id
        elif isinstance(event, ConversationErrorEvent):
            self._failed = True

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


def _is_message(event: Event) -> bool:
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
