"""The SDK's conversation, extended by what Ostler needs."""

from __future__ import annotations

import threading
from collections.abc import Callable

from openhands.sdk.conversation.impl.local_conversation import LocalConversation
from openhands.sdk.event import Event, MessageEvent
from openhands.sdk.llm import Message

from .child_conversations import Start
from .children import Children


class Conversation(LocalConversation):
    """A conversation in which the ids of the user's messages may be given.

    Ostler has written such a message, with its id, before this process receives it; the SDK's event must have
    the same id.
    """

    children: Children
    """Its sub-agents; set by the code that makes it."""

    start_child: Start
    """Starts a child conversation; set by the code that makes this one."""

    def send(self, message: Message, sender: str | None, message_id: str | None) -> None:
        """Append the user's message. If its id is in the log already, continue from that message instead."""
        if message_id is not None and message_id in self._state.events:
            if all(event.id != message_id for event in self._state.active_branch()):
                self.navigate_to(message_id)
            return
        self._given.id = message_id
        try:
            self.send_message(message, sender)
        finally:
            self._given.id = None

    @property
    def _on_event(self) -> Callable[[Event], None]:
        return self._with_given_id

    @_on_event.setter
    def _on_event(self, callback: Callable[[Event], None]) -> None:
        # The SDK sets it again when it loads hooks, while it sends the first message.
        self._emit = callback
        if "_given" not in self.__dict__:
            self._given = threading.local()

    def _with_given_id(self, event: Event) -> None:
        given = getattr(self._given, "id", None)
        if given is not None and isinstance(event, MessageEvent) and event.source == "user":
            event = event.model_copy(update={"id": given})
            self._given.id = None
        self._emit(event)
