"""The queue of a conversation: the messages that wait, whether to run them, and the current one."""

from __future__ import annotations

from collections import deque

import attrs
import trio

from supervisor.conversations.state.turn import Turn
from supervisor.events import Message, TextContent


@attrs.frozen
class Queued:
    """A message that has not been handed to the agent yet: a person's, or else Ostler's in their place.

    `goes_on`: there is none, and the agent goes on where it stopped.
    """

    seq: int
    event_id: str
    message: Message
    by_user: bool = True
    goes_on: bool = False

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


@attrs.define(eq=False)
class TurnQueue:
    """The queue of one conversation. The messages in `waiting` are taken up in order while `wanted` is true.

    A message is `active` from the moment it is taken up, which may first start an agent, until its turn has
    ended. `turn` is set from the hand-over to the agent until that turn has ended. `interrupted` says that
    the active message is to be given up, `interrupt_told` that an event says so, and `called_off` is set for
    tasks that would wait on for it. `over` says that the end of its run is recorded: it is active for a
    moment longer. Each active message has its own `called_off` and `settled`. `turns` counts the messages
    handed over.

    `changed` is set when the task that takes up the queue has to check it again.
    """

    waiting: deque[Queued] = attrs.field(factory=deque)
    active: bool = False
    interrupted: bool = False
    interrupt_told: bool = False
    over: bool = False
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
    def ending(self) -> bool:
        """Whether the active message no longer belongs to a run, or is being given up with an empty queue: it
        is too late to change its course."""
        return self.active and (self.over or (self.interrupted and not self.waiting))

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
        item = next((each for each in self.waiting if not each.goes_on), None)
        if self.turn is None or item is None or item.event_id != message_id:
            return None
        self.waiting.remove(item)
        return item

    def begin(self) -> None:
        """Take up a message."""
        self.active = True
        self.interrupted = self.interrupt_told = self.over = False
        self.called_off = trio.Event()
        self.settled = trio.Event()

    def hand_over(self, item: Queued) -> Turn:
        """Hand a message to the agent: it leaves the queue, and its turn begins."""
        self.waiting.remove(item)
        self.turns += 1
        self.turn = Turn(self.turns, item.seq, item.event_id)
        return self.turn

    def drop_go_ons(self) -> None:
        """Drop the continuations of a run that has ended; another `run` queues a new one."""
        while self.waiting and self.waiting[0].goes_on:
            self.waiting.popleft()

    def look_again(self) -> None:
        """Wake the task: a message is wanted, or the agent's process has ended."""
        self.changed.set()

    def end(self) -> None:
        """End the active message, with any outcome."""
        self.active = self.interrupt_told = False
        self.settled.set()
        self._move()
