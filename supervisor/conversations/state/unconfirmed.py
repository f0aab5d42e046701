"""Messages whose senders do not know whether they were stored: a repeated one is not stored twice."""

from __future__ import annotations

from typing import Final

import attrs
import trio

from supervisor.conversations.state.queue import Queued
from supervisor.events import Message

REMEMBERED_SECONDS: Final = 300.0
"""Seconds for which a repeated message counts as the one sent before, since that was last sent.

Clients retry within seconds or minutes; what a person writes later is meant.
"""

REMEMBERED_MOST: Final = 16
"""The most such messages of one conversation.

While the journal is not writable, further messages are refused, so that there are few.
"""


@attrs.frozen(eq=False)
class _Sent:
    queued: Queued
    message: Message
    sender: str | None
    until: float


@attrs.define(eq=False)
class Unconfirmed:
    """The unconfirmed messages of one conversation. Times are on Trio's clock."""

    _sent: list[_Sent] = attrs.field(factory=list)

    def add(self, queued: Queued, message: Message, sender: str | None) -> None:
        """Add a message whose sender got an error that it is only queued, or left without an answer."""
        self.remove(queued)
        self._sent.append(_Sent(queued, message, sender, trio.current_time() + REMEMBERED_SECONDS))
        del self._sent[:-REMEMBERED_MOST]

    def find(self, message: Message, sender: str | None) -> Queued | None:
        """Find the message that this one repeats."""
        if not self._sent:
            return None
        now = trio.current_time()
        self._sent = [sent for sent in self._sent if sent.until > now]
        for sent in self._sent:
            if sent.message == message and sent.sender == sender:
                return sent.queued
        return None

    def remove(self, queued: Queued) -> None:
        """Remove a message whose sender knows that it was stored."""
        self._sent = [sent for sent in self._sent if sent.queued.event_id != queued.event_id]
