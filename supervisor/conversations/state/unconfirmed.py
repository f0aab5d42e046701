"""Messages whose senders do not know whether they were stored: a repeated one is not stored twice."""

from __future__ import annotations

from typing import Final

import attrs
import trio

from supervisor.conversations.state.queue import Queued
from supervisor.events import Message

REMEMBERED_SECONDS: Final = 300.0
"""How long a message is known for one that was sent before, since it was sent last. Clients that try again do
so within seconds or minutes; what a person writes later is meant."""

REMEMBERED_MOST: Final = 16
"""Such messages of one conversation. Who sends another while the journal cannot be written is refused, so
that there are a few at most."""


@attrs.frozen(eq=False)
class _Sent:
    queued: Queued
    message: Message
    sender: str | None
    until: float


@attrs.define(eq=False)
class Unconfirmed:
    """Those of one conversation. Times are on Trio's clock."""

    _sent: list[_Sent] = attrs.field(factory=list)

    def add(self, queued: Queued, message: Message, sender: str | None) -> None:
        """Its sender was told that it is queued, or went away before it was told anything."""
        self.remove(queued)
        self._sent.append(_Sent(queued, message, sender, trio.current_time() + REMEMBERED_SECONDS))
        del self._sent[:-REMEMBERED_MOST]

    def find(self, message: Message, sender: str | None) -> Queued | None:
        """The message that this one repeats."""
        if not self._sent:
            return None
        now = trio.current_time()
        self._sent = [sent for sent in self._sent if sent.until > now]
        for sent in self._sent:
            if sent.message == message and sent.sender == sender:
                return sent.queued
        return None

    def remove(self, queued: Queued) -> None:
        """Its sender knows."""
        self._sent = [sent for sent in self._sent if sent.queued.event_id != queued.event_id]
