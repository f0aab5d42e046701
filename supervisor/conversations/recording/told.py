"""The events of an agent that tells them itself (the built-in one): checked, and passed on as they are. Pure."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import attrs

from supervisor.acp.schema.extension import ItemAborted, ItemDelta, ItemStarted, Told, ToldEvent, ToldState
from supervisor.conversations.recording.tool_call_events import Recorded
from supervisor.conversations.recording.translate import Delta, Opened
from supervisor.events import ConversationStateUpdateEvent, decode_event, new_event_id
from supervisor.reading import Invalid

STATES: Final = frozenset({"stats", "activated_knowledge_skills", "invoked_skills", "blocked_actions"})
"""Properties of the state that such an agent tells. The others are Ostler's to tell."""

IDS_MAX: Final = 10_000
"""Ids of events that are remembered, so that one that comes twice is one."""


class NotTold(Exception):
    """It is not accepted. The message says why, in words for the log and for the conversation."""


@attrs.define
class ToldEvents:
    """Checks what one conversation's agent tells."""

    _ids: OrderedDict[str, None] = attrs.field(factory=OrderedDict)

    def take(self, told: Told) -> list[Recorded | Opened | Delta]:
        """What is to be recorded and streamed. Raises NotTold."""
        match told:
            case ToldEvent():
                return self._event(told)
            case ToldState():
                if told.key not in STATES:
                    raise NotTold(f"the state {told.key:.80} is not the agent's to tell")
                state = ConversationStateUpdateEvent(id=new_event_id(), key=told.key, value=told.value)
                return [Recorded(state)]
            case ItemStarted():
                return [Opened(told.item_id)]
            case ItemDelta():
                return [Delta(told.item_id, told.kind, told.content, told.order)]
            case ItemAborted():
                return []

    def _event(self, told: ToldEvent) -> list[Recorded | Opened | Delta]:
        try:
            event = decode_event(told.event)
        except Invalid as error:
            raise NotTold(f"an event is not valid: {error}") from error
        if isinstance(event, ConversationStateUpdateEvent):
            raise NotTold("the state is told apart from events")
        if event.source == "user":
            raise NotTold("what the user says is written when the user says it")
        if event.id in self._ids:
            return []
        self._ids[event.id] = None
        if len(self._ids) > IDS_MAX:
            self._ids.popitem(last=False)
        return [Recorded(event)]
