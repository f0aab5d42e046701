"""The SDK's events of a conversation, as the notifications that Ostler accepts from its built-in agent.

`_ostler/event`   `event`: an event that belongs in the log, as JSON in the SDK's form. It is on the disk
                  already. An event may come again, with its id, after a restart: the first one counts. Some
                  have the source `user` although no user wrote them: the SDK's reply to a malformed call or a
                  refusal of the model, and the next round of an iterative refinement.
`_ostler/stream`  a piece of an item that will become the event with its id: `item_started`, `delta` (`order`
                  counts from 0, `kind` is text, reasoning or arguments), `item_aborted` (with `reason`).
                  `attempt` counts from 1: a higher one restarts the item, with `item_started` and an order
                  from 0, and what came before is void. Arguments have `tool_call_id` and `tool_name`.
`_ostler/state`   one property of the conversation's state (`key`, `value`), when it has changed.
`_ostler/received` the user's message `message_id` is on the disk now, and the next step reads it; with its
                  stored `activated_skills` and `extended_content`. Events that follow from it come later.

Text that is too long for a line is cut in its middle (wire.py).
"""

from __future__ import annotations

import logging
from collections.abc import Set
from typing import Any

from openhands.sdk.agent.stream_context import StreamAborted, StreamDelta, StreamProgress, StreamStarted
from openhands.sdk.event import Event, MessageEvent
from openhands.sdk.event.conversation_state import ConversationStateUpdateEvent
from openhands.sdk.event.user_action import InterruptEvent, PauseEvent

from .streams import ArgumentsDelta
from .wire import Wire

EVENT = "_ostler/event"
STREAM = "_ostler/stream"
STATE = "_ostler/state"
RECEIVED = "_ostler/received"

STATES = frozenset({"agent", "stats", "activated_knowledge_skills", "invoked_skills", "blocked_actions"})
"""Properties that clients get. Ostler keeps the others itself: status, policies, title, secrets."""

OSTLERS_OWN = (PauseEvent, InterruptEvent)
"""Ostler writes these itself, when the client asks for it."""

log = logging.getLogger(__name__)


class Reporter:
    """Reports the events of one session. May be called from any thread.

    `known`: ids of events that Ostler has already, its user's messages among them; these are not sent.
    """

    def __init__(self, wire: Wire, session_id: str, known: Set[str]) -> None:
        self._wire = wire
        self._session_id = session_id
        self._known = known

    def event(self, event: Event) -> None:
        """Send an event of the SDK, in the order of its log."""
        if isinstance(event, ConversationStateUpdateEvent):
            if event.key in STATES:
                self._send(STATE, key=event.key, value=event.model_dump(mode="json")["value"])
        elif event.id not in self._known:
            if not isinstance(event, OSTLERS_OWN):
                self._send(EVENT, event=event.model_dump(mode="json", exclude_none=True))
        elif isinstance(event, MessageEvent):
            self._send(
                RECEIVED,
                message_id=event.id,
                activated_skills=list(event.activated_skills),
                extended_content=[each.model_dump(mode="json") for each in event.extended_content],
            )

    def state(self, key: str, value: Any) -> None:
        """Send a property of the state, as the SDK's own server does."""
        self.event(ConversationStateUpdateEvent(key=key, value=value))

    def progress(self, frame: StreamProgress) -> None:
        """Send a piece of an item that is streamed."""
        place = {"item_id": frame.item_id, "attempt": frame.attempt}
        if isinstance(frame, StreamStarted):
            self._send(STREAM, type="item_started", **place)
        elif isinstance(frame, StreamDelta):
            piece = {**place, "order": frame.order, "kind": frame.kind, "content": frame.content}
            if isinstance(frame, ArgumentsDelta):
                piece |= {"tool_call_id": frame.tool_call_id, "tool_name": frame.tool_name}
            self._send(STREAM, type="delta", **piece)
        elif isinstance(frame, StreamAborted):
            self._send(STREAM, type="item_aborted", **place, reason=frame.reason)

    def _send(self, method: str, **fields: Any) -> None:
        try:
            self._wire.notify(method, {"sessionId": self._session_id, **fields})
        except ValueError as error:
            log.warning("%s is not reported: %s", method, error)
