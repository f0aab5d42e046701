"""The queue of a conversation: the messages that wait, whether to run them, and the current one."""

from __future__ import annotations

import enum
from typing import Final

import attrs
import trio

from supervisor.conversations.state.turn import FileReader, Turn
from supervisor.events import Message, TextContent

REMEMBERED_SECONDS: Final = 300.0
"""Seconds for which a repeated message counts as the one sent before, since that was last sent.

Clients retry within seconds or minutes; what a person writes later is meant.
"""

REMEMBERED_MOST: Final = 16
"""The most such messages of one conversation.

While the journal is not writable, further messages are refused, so that there are few.
"""


@attrs.frozen
class Queued:
    """A message that has not been handed to the agent yet: a person's, or else Ostler's in their place.

    `resumes`: there is none, and the agent resumes where it stopped. `reads`: reads files for the agent
    during its turn; it does not outlive the server.
    """

    seq: int
    event_id: str
    message: Message
    by_user: bool = True
    resumes: bool = False
    reads: FileReader | None = attrs.field(default=None, eq=False, repr=False)

    @property
    def size(self) -> int:
        """Its approximate size in bytes."""
        return message_size(self.message)


def message_size(message: Message) -> int:
    """The approximate size of a message in bytes: its texts and images."""
    return sum(
        len(part.text) if isinstance(part, TextContent) else sum(map(len, part.image_urls))
        for part in message.content
    )


@attrs.frozen(eq=False)
class _Sent:
    """A message whose sender does not know whether it was stored: a repeated one is not stored twice."""

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


class Phase(enum.IntEnum):
    """The phase of the message that is taken up. It only goes up, until the message has ended."""

    NONE = 0
    """There is none."""
    TAKEN = 1
    """It is taken up, which may first start an agent, or the agent has it."""
    INTERRUPTED = 2
    """It is to be given up."""
    INTERRUPT_SHOWN = 3
    """It is to be given up, and an event says so."""
    CLOSED = 4
    """The end of its run is recorded: it is active for a moment longer."""


@attrs.define(eq=False)
class TurnQueue:
    """The queue of one conversation. The messages in `waiting` are taken up in order while `wanted` is true.

    `phase` is that of the message that is taken up. `turn` is set from the hand-over to the agent until that
    turn has ended. Each message that is taken up has its own `called_off`, for tasks that would wait on for
    it, and `settled`. `turns` counts the messages handed over.

    `changed` is set when the task that takes up the queue has to check it again.
    """

    waiting: list[Queued] = attrs.field(factory=list)
    phase: Phase = Phase.NONE
    called_off: trio.Event = attrs.field(factory=trio.Event)
    settled: trio.Event = attrs.field(factory=trio.Event)
    turn: Turn | None = None
    turns: int = 0
    changed: trio.Event = attrs.field(factory=trio.Event)
    _wanted: bool = False
    _moved: trio.Event = attrs.field(factory=trio.Event)

    @property
    def wanted(self) -> bool:
        """Whether the waiting messages are to be taken up."""
        return self._wanted

    @wanted.setter
    def wanted(self, wanted: bool) -> None:
        self._wanted = wanted
        self._move()

    async def idle(self) -> None:
        """Wait until no message is active or about to be. Cancellation changes nothing."""
        while self.busy:
            await self._moved.wait()

    async def more_comes(self) -> None:
        """Wait until another message is to be taken up. Cancellation changes nothing."""
        while not self.more:
            await self._moved.wait()

    def _move(self) -> None:
        self._moved.set()
        self._moved = trio.Event()

    @property
    def active(self) -> bool:
        """Whether a message is taken up."""
        return self.phase is not Phase.NONE

    @property
    def interrupted(self) -> bool:
        """Whether the message that is taken up is to be given up."""
        return self.phase in (Phase.INTERRUPTED, Phase.INTERRUPT_SHOWN)

    @property
    def interrupt_shown(self) -> bool:
        """Whether an event says so."""
        return self.phase is Phase.INTERRUPT_SHOWN

    @property
    def ending(self) -> bool:
        """Whether the active message no longer belongs to a run, or is being given up with an empty queue: it
        is too late to change its course."""
        return self.phase is Phase.CLOSED or (self.interrupted and not self.waiting)

    async def ended(self) -> None:
        """Wait until such a message is active no longer. Cancellation changes nothing."""
        while self.ending:
            await self.settled.wait()

    @property
    def more(self) -> bool:
        """Whether another message is to be taken up."""
        return self.wanted and bool(self.waiting)

    @property
    def busy(self) -> bool:
        """Whether a message is active or about to be."""
        return self.active or self.more

    def put(self, item: Queued) -> None:
        """Append a message; a current run will prompt it."""
        self.waiting.append(item)
        self._move()

    def join(self, message_id: str) -> Queued | None:
        """Remove the first message, which the agent reads in the current turn. None if it has another id, or
        no turn runs."""
        item = next((each for each in self.waiting if not each.resumes), None)
        if self.turn is None or item is None or item.event_id != message_id:
            return None
        self.waiting.remove(item)
        return item

    def withdraw(self, message_id: str) -> Queued | None:
        """Remove a message that waits. None if none with this id does."""
        item = next((each for each in self.waiting if each.event_id == message_id and not each.resumes), None)
        if item is not None:
            self.waiting.remove(item)
            self._move()
        return item

    def begin(self) -> None:
        """Take up a message."""
        self.phase = Phase.TAKEN
        self.called_off = trio.Event()
        self.settled = trio.Event()

    def interrupt(self) -> None:
        """Give the active message up. Idempotent; does nothing without one, or once its run is closed."""
        self._advance(Phase.INTERRUPTED)

    def show_interrupt(self) -> None:
        """Note that an event says that the active message is given up."""
        self._advance(Phase.INTERRUPT_SHOWN)

    def close_run(self) -> None:
        """Note that the end of the run is recorded."""
        self._advance(Phase.CLOSED)

    def _advance(self, phase: Phase) -> None:
        if Phase.NONE < self.phase < phase:
            self.phase = phase

    def hand_over(self, item: Queued) -> Turn:
        """Hand a message to the agent: it leaves the queue, and its turn begins."""
        self.waiting.remove(item)
        self.turns += 1
        self.turn = Turn(self.turns, item.seq, item.event_id)
        self.turn.reads = item.reads
        return self.turn

    def drop_resumptions(self) -> None:
        """Drop the continuations of a run that has ended; another `run` queues a new one."""
        while self.waiting and self.waiting[0].resumes:
            del self.waiting[0]

    def look_again(self) -> None:
        """Wake the task: a message is wanted, or the agent's process has ended."""
        self.changed.set()

    def end(self) -> None:
        """End the active message, with any outcome."""
        self.phase = Phase.NONE
        self.settled.set()
        self._move()
