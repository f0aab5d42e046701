"""The stage of a conversation's live part: whether its task exists, and whether it accepts anything."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import trio

from supervisor.conversations.state.errors import ConversationClosing


class Stage(enum.Enum):
    """`CLOSING` and `CLOSED` accept nothing, and nothing leads back from them."""

    STOPPED = "stopped"
    """There is no task."""
    STARTING = "starting"
    """The task is there; no agent can live in it yet."""
    RUNNING = "running"
    """Agents can live in the task."""
    ENDING = "ending"
    """The task ends by itself; another may begin after it."""
    CLOSING = "closing"
    """The task takes up nothing more. What runs in it is brought to its end."""
    CLOSED = "closed"
    """There is no task, and there never will be one."""


NEXT: Final[Mapping[Stage, frozenset[Stage]]] = {
    Stage.STOPPED: frozenset({Stage.STARTING, Stage.CLOSED}),
    Stage.STARTING: frozenset({Stage.RUNNING, Stage.STOPPED, Stage.CLOSING}),
    Stage.RUNNING: frozenset({Stage.ENDING, Stage.CLOSING}),
    Stage.ENDING: frozenset({Stage.STOPPED, Stage.CLOSING}),
    Stage.CLOSING: frozenset({Stage.CLOSED}),
    Stage.CLOSED: frozenset(),
}
"""The stages that may follow each stage. A task that is cancelled before it began goes back to `STOPPED`."""


class Stages:
    """The present stage, which moves along `NEXT` alone."""

    def __init__(self) -> None:
        self.now = Stage.STOPPED
        self._moved = trio.Event()

    @property
    def closing(self) -> bool:
        """Whether nothing is accepted any more."""
        return self.now in (Stage.CLOSING, Stage.CLOSED)

    def refuse_closing(self) -> None:
        """Raise ConversationClosing if nothing is accepted any more."""
        if self.closing:
            raise ConversationClosing

    def move(self, to: Stage) -> None:
        """Move to another stage. Raises ValueError for one that may not follow: a fault of the caller."""
        if to not in NEXT[self.now]:
            raise ValueError(f"{to.value} does not follow {self.now.value}")
        self.now = to
        self._moved.set()
        self._moved = trio.Event()

    async def moved(self) -> None:
        """Wait for the next move. Cancellation changes nothing."""
        await self._moved.wait()

    def close(self) -> None:
        """Accept nothing from now on. Idempotent."""
        if not self.closing:
            self.move(Stage.CLOSED if self.now is Stage.STOPPED else Stage.CLOSING)

    def task_ended(self) -> None:
        """Note that the task has ended."""
        self.move(Stage.CLOSED if self.closing else Stage.STOPPED)
