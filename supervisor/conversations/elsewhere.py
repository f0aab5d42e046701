"""A conversation as it is stored, for reading: another server has it, or none."""

from __future__ import annotations

from typing import Any

import attrs

from supervisor.conversations.agent.context import Context
from supervisor.conversations.history.history import final_response
from supervisor.conversations.resource.resource import conversation_info
from supervisor.conversations.state.branch import active
from supervisor.conversations.state.record import ConversationRecord
from supervisor.events import Vocabulary
from supervisor.journal.log import Log


@attrs.frozen
class StoredConversation:
    """Its record and its log as they were on the disk when this was made. Nothing of it changes either."""

    _context: Context
    record: ConversationRecord
    log: Log

    @property
    def id(self) -> str:
        """The conversation's id, in dashed form."""
        return self.record.id

    @property
    def vocabulary(self) -> Vocabulary:
        """See `Conversation.vocabulary`."""
        return self.record.start.vocabulary

    async def durable_info(self) -> dict[str, Any]:
        """The conversation resource."""
        kind = self._context.kinds(self.record)
        return conversation_info(kind, self._context.launcher.data, hooks=self._context.hooks)

    async def final_response(self) -> str:
        """See `Conversation.final_response`. Raises JournalError."""
        moves = self.record.moves
        return await final_response(self.log, active(moves, self.log.last_seq) if moves else None)
