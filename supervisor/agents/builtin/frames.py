"""What the SDK tells of a conversation, as the notifications that Ostler accepts from its built-in agent.

`_ostler/event`   an event that belongs in the log, as JSON of its own kind
`_ostler/stream`  a piece of an item that will become the event with its id
`_ostler/state`   one property of the conversation's state
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from openhands.sdk.agent.stream_context import StreamAborted, StreamDelta, StreamProgress, StreamStarted
from openhands.sdk.event import Event
from openhands.sdk.event.conversation_state import ConversationStateUpdateEvent
from openhands.sdk.event.user_action import InterruptEvent, PauseEvent

from .wire import Wire

EVENT = "_ostler/event"
STREAM = "_ostler/stream"
STATE = "_ostler/state"

STATES = frozenset({"stats", "activated_knowledge_skills", "invoked_skills", "blocked_actions"})
"""Properties that clients are told. Ostler keeps the others by itself: status, policies, title, secrets."""

OSTLERS_OWN = (PauseEvent, InterruptEvent)
"""Ostler writes these itself, when the client asks for it."""


class Teller:
    """Sends what happens in one session."""

    def __init__(self, wire: Wire, session_id: str) -> None:
        self._wire = wire
        self._session_id = session_id
        self._known: Callable[[str], bool] = lambda _: False

    def leave_out(self, known: Callable[[str], bool]) -> None:
        """Events whose ids are known to Ostler already are not sent: its user's messages."""
        self._known = known

    def event(self, event: Event) -> None:
        """Send an event of the SDK, in the order of its log."""
        if isinstance(event, ConversationStateUpdateEvent):
            self.state(event.key, event.value)
        elif not isinstance(event, OSTLERS_OWN) and not self._known(event.id):
            self._send(EVENT, event=event.model_dump(mode="json", exclude_none=True))

    def state(self, key: str, value: Any) -> None:
        """Send a property of the state, if clients are told it."""
        if key in STATES:
            dump = getattr(value, "model_dump", None)
            self._send(STATE, key=key, value=value if dump is None else dump(mode="json"))

    def progress(self, frame: StreamProgress) -> None:
        """Send a piece of an item that is being made."""
        if isinstance(frame, StreamStarted):
            self._send(STREAM, type="item_started", item_id=frame.item_id, attempt=frame.attempt)
        elif isinstance(frame, StreamDelta):
            self._send(
                STREAM,
                type="delta",
                item_id=frame.item_id,
                attempt=frame.attempt,
                order=frame.order,
                kind=frame.kind,
                content=frame.content,
            )
        elif isinstance(frame, StreamAborted):
            self._send(
                STREAM, type="item_aborted", item_id=frame.item_id, attempt=frame.attempt, reason=frame.reason
            )

    def _send(self, method: str, **fields: Any) -> None:
        self._wire.notify(method, {"sessionId": self._session_id, **fields})
