"""The messages that arrive during a turn: the agent reads them before its next step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from openhands.sdk.conversation.state import ConversationExecutionStatus, ConversationState

from .conversation import Conversation

Status = ConversationExecutionStatus

AGAIN_SECONDS = 0.02
"""Seconds until the retry of a message that would come between an action and its result: such an action has
been allowed, and runs at once."""

READS_ON = (Status.FINISHED, Status.IDLE, Status.STUCK)
"""In one of these states a run has ended by itself, and a message starts another one."""


class Inbox:
    """Takes messages until its turn ends: each is read in the turn, or refused.

    Everything happens on the conversation's lane, except the writing itself, which waits for the SDK's lock:
    that is free while a model is asked, and between two steps.
    """

    def __init__(self, conversation: Conversation) -> None:
        self._state: ConversationState = conversation.state
        self._order = asyncio.Lock()
        self._open = asyncio.Event()
        self._quiet = asyncio.Event()
        self._coming = 0
        self._came = self._ending = self._over = False

    async def take(self, write: Callable[[], None]) -> bool:
        """Write a message by calling `write` on a thread. Return False if the turn ends before: then nothing
        is written.

        Raises what `write` does.
        """
        if self._over:
            return False
        self._coming += 1
        try:
            async with self._order:
                while not self._over:
                    await self._open.wait()
                    if await asyncio.to_thread(self._write, write):
                        return True
                    if self._ending:
                        break
                    await asyncio.sleep(AGAIN_SECONDS)
            return False
        finally:
            self._coming -= 1
            if not self._coming:
                self._quiet.set()

    def open(self) -> None:
        """Take messages from now on: the message that the turn is about is written."""
        self._open.set()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold messages back while a person is asked: none may come between actions and their results."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    async def unread(self) -> bool:
        """Whether there are messages that no step has read. If not, the turn takes no more."""
        if self._state.execution_status in READS_ON:
            self._ending = True
            await self._settled()
            self._ending = False
            if self._came and self._state.execution_status is Status.IDLE:
                self._came = False
                return True
        self._over = True
        return False

    def refuse(self) -> None:
        """Take no more messages."""
        self._over = True

    async def end(self) -> None:
        """Take no more messages. Returns when none is being written."""
        self._over = True
        self._open.set()
        await self._settled()

    async def _settled(self) -> None:
        while self._coming:
            self._quiet.clear()
            await self._quiet.wait()

    def _write(self, write: Callable[[], None]) -> bool:
        with self._state:
            if self._over or ConversationState.get_unmatched_actions(self._state.active_branch()):
                return False
            write()
            self._came = True
            return True
