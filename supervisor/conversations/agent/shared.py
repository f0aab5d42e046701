"""What all parts of a live conversation work with."""

from __future__ import annotations

import attrs

from supervisor.conversations.agent.context import Context
from supervisor.conversations.agent.kind import AgentKind, Voice
from supervisor.conversations.recording.recorder import Recorder
from supervisor.conversations.recording.translate import Translator
from supervisor.conversations.resource.status_publisher import StatusPublisher
from supervisor.conversations.state.queue import TurnQueue
from supervisor.conversations.state.record import ConversationRecord


@attrs.frozen(kw_only=True)
class Shared:
    """Made once for each conversation that has or had an agent (`turns.wiring`)."""

    context: Context
    recorder: Recorder
    queue: TurnQueue
    kind: AgentKind
    voice: Voice
    translator: Translator
    publisher: StatusPublisher

    @property
    def record(self) -> ConversationRecord:
        """The conversation's record."""
        return self.recorder.record
