"""The queue of a conversation: the messages that wait, whether to run them, and the current one."""

from __future__ import annotations

from collections import deque

import attrs
import trio

from supervisor.conversations.state.turn import Turn
from supervisor.events import Message, TextContent


@attrs.frozen
class Queued:
    """A user's message that has not been handed to the agent yet."""

    seq: int
    event_id: str
    message: Message

    @property
    def size(self) -> int:
        """About how many bytes it takes."""
        return message_size(self.message)


def message_size(message: Message) -> int:
    """About how many bytes a message takes: those of its texts and pictures."""
    return sum(
        len(part.text) if isinstance(part, TextContent) else sum(map(len, part.image_urls))
        for part in message.content
    )


@attrs.define(eq=False)
class TurnQueue:
    """The work of one conversation. The messages in `waiting` are taken up in order, while that is `wanted`.

    A message is under way (`active`) from when it is taken up, which may start an agent first, until its
    turn has settled; `turn` is there from when it is handed to the agent until that turn has ended.
    `interrupted` says that it is to be given up, and `called_off` is set for what would wait on for it. Each
    message under way has its own `called_off` and `settled`. `turns` counts those that were handed over.

    `changed` is set when whoever takes up the queue is to look again.
    """

    waiting: deque[Queued] = attrs.field(factory=deque)
    active: bool = False
    interrupted: bool = False
    called_off: trio.Event = attrs.field(factory=trio.Event)
    settled: trio.Event = attrs.field(factory=trio.Event)
    turn: Turn | None = None
    turns: int = 0
    changed: trio.Event = attrs.field(factory=trio.Event)
    _wanted: bool = False
    _moved: trio.Event = attrs.field(factory=trio.Event)

    @property
    def wanted(self) -> bool:
        """Whether what waits is to be taken up."""
        return self._wanted

    @wanted.setter
    def wanted(self, wanted: bool) -> None:
        self._wanted = wanted
        self._move()

    async def idle(self) -> None:
        """Return once nothing is under way or about to be. Cancelling it changes nothing."""
        while self.busy:
            await self._moved.wait()

    def _move(self) -> None:
        self._moved.set()
        self._moved = trio.Event()

    @property
    def more(self) -> bool:
        """Whether another message is to be taken up."""
        return self.wanted and bool(self.waiting)

    @property
    def busy(self) -> bool:
        """Whether a message is under way, or is about to be."""
        return self.active or self.more

    def begin(self) -> None:
        """A message is taken up."""
        self.active = True
        self.interrupted = False
        self.called_off = trio.Event()
        self.settled = trio.Event()

    def hand_over(self, item: Queued) -> Turn:
        """A message is about to be handed to the agent: it leaves the queue, and its turn begins."""
        self.waiting.remove(item)
        self.turns += 1
        self.turn = Turn(self.turns, item.seq)
        return self.turn

    def look_again(self) -> None:
        """Something is other than it was: a message is wanted, or the agent's process has ended."""
        self.changed.set()

    def end(self) -> None:
        """It is dealt with, one way or another."""
        self.active = False
        self.settled.set()
        self._move()
