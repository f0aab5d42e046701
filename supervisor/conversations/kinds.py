"""Which kind of agent a conversation has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from supervisor.conversations.state.record import ConversationRecord
from supervisor.settings.agent import BuiltInSettings

if TYPE_CHECKING:  # loaded with the first conversation
    from supervisor.conversations.agent.kind import AgentKind


def kind_of(record: ConversationRecord) -> AgentKind:
    """The kind of this conversation's agent, which never changes."""
    if isinstance(record.agent, BuiltInSettings):
        from supervisor.conversations.built_in.kind import BuiltIn

        return BuiltIn(record)
    from supervisor.conversations.external.kind import External

    return External(record)
