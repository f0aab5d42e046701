"""Sends mid-turn messages to an agent that reads them before its next step."""

from __future__ import annotations

from typing import Final

from supervisor.conversations.agent.incarnation import Incarnation
from supervisor.conversations.agent.shared import Shared
from supervisor.conversations.history import inbox
from supervisor.conversations.history.prompt import MCP_COMMAND, is_command
from supervisor.conversations.state.errors import AgentFailure, NotAccepted
from supervisor.conversations.state.turn import Turn
from supervisor.journal.errors import JournalError

JOINED_MAX: Final = 1_000
"""The most mid-turn messages that the agent may accept without reporting anything, since the record has their
ids. More wait for the end of the turn."""


class MidTurnMessages:
    """Offers the agent the waiting messages during a turn, one after another, in order.

    A message stays in the queue until the agent confirms it (`Turns.join`). If the turn or the agent ends, or
    the server dies before that, it is prompted afterwards; an agent that already has it skips it by its id.
    """

    def __init__(self, shared: Shared) -> None:
        self._kind = shared.kind
        self._queue = shared.queue
        self._recorder = shared.recorder
        self._logger = shared.recorder.logger

    def applies(self, agent: Incarnation) -> bool:
        """Whether the agent takes messages during its turn."""
        return self._kind.takes_messages(agent.plan.descriptor)

    async def send(self, agent: Incarnation, turn: Turn) -> None:
        """Hand over what comes during the turn, until the agent refuses something: its turn is over then.

        For an agent to which this `applies`. Cancellation, at the end of the turn, leaves a message with it.
        """
        try:
            while await self._next(agent, turn):
                pass
        except (AgentFailure, NotAccepted) as error:
            self._logger.info("agent did not take a message during its turn", reason=str(error))
        except JournalError:
            return  # the recording of the turn raises it, too

    async def _next(self, agent: Incarnation, turn: Turn) -> bool:
        """Offer the next message; whether another one may follow in this turn."""
        await self._queue.more_comes()
        item = self._queue.waiting[0]
        await self._recorder.log.flushed()  # an agent works on nothing that could be lost
        if not self._queue.more or self._queue.waiting[0] is not item:
            return True  # paused meanwhile
        if item.resumes or is_command(item.message, MCP_COMMAND):
            return False  # for after the turn, and so is what is behind it
        if self._queue.turn is not turn or turn.cancelling:
            return False
        if len(self._recorder.record.now.joined) >= JOINED_MAX:
            return False
        enclosed = await inbox.enclosed(self._recorder.log, item)
        await self._kind.send_mid_turn(agent, item, enclosed)
        return item not in self._queue.waiting
