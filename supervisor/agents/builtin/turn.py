"""One turn: from a message, or from where the agent stopped, until it stops."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from openhands.sdk.conversation.exceptions import ConversationRunError
from openhands.sdk.conversation.state import ConversationExecutionStatus, ConversationState
from openhands.sdk.event import ActionEvent

from .conversation import Conversation
from .inbox import Inbox

Ask = Callable[[ActionEvent], Awaitable[str | None]]
"""Asks whether an action may run: returns None, or the reason why not."""

Status = ConversationExecutionStatus


class Turn:
    """Runs on the conversation's lane, where it is also interrupted; `cancelled` may be read anywhere.

    `inbox` takes the messages that arrive while it runs.
    """

    def __init__(self, conversation: Conversation, ask: Ask) -> None:
        self._conversation = conversation
        self._ask = ask
        self._task: asyncio.Task[Any] | None = None
        self.inbox = Inbox(conversation)
        self.cancelled = False
        self.asking = False
        """Whether actions wait for a person; none of them has begun."""

    async def run(self, send: Callable[[], None] | None) -> str:
        """Send the message, if there is one, then run. Returns the status in which the agent stopped.

        Raises what the SDK raises before the agent has begun, and what keeps it from writing its log.
        """
        self._task = asyncio.current_task()
        self._conversation.children.begin()
        try:
            # Even after a cancel: the user's message must be in the log.
            await asyncio.to_thread(self._prepare, send)
            self.inbox.open()
            await self._steps()
        except asyncio.CancelledError:
            if not self.cancelled:
                raise
        except BaseException:
            self._failed()
            raise
        finally:
            self._task = None  # not cancellable from here on
            await self.inbox.end()
        if self.cancelled:
            self._pause()
        return self._conversation.state.execution_status.value

    def cancel(self) -> None:
        """Tell the tools to stop, before the lane gets to it; called on any thread."""
        self.cancelled = True
        token = self._conversation.cancel_token
        if token is not None:
            token.cancel()
        self._conversation.children.interrupt()

    def interrupt(self) -> None:
        """Cancel what the turn waits for; called on the lane, after `cancel`."""
        if self._task is not None:
            self._task.cancel()

    def _prepare(self, send: Callable[[], None] | None) -> None:
        # An action without a result would run now, unconfirmed: after a fork or a move to its event.
        conversation = self._conversation
        with conversation.state:
            if send is None and self._waits:
                return  # it was asked about in an earlier process, and will be again
            if ConversationState.get_unmatched_actions(conversation.state.active_branch()):
                conversation._emit_orphaned_action_errors()
            if self._waits:
                conversation.state.execution_status = Status.IDLE
        if send is not None:
            send()

    async def _steps(self) -> None:
        kept = self._waits
        while not self.cancelled:
            if not kept:
                try:
                    await self._conversation.arun()
                except ConversationRunError:
                    return  # the SDK has written the error into the log
            if self.cancelled:
                return
            kept = False
            if not self._waits:
                if await self.inbox.unread():
                    continue
                return
            with self.inbox.held():
                reason = await self._confirm()
                if reason is not None:
                    self.inbox.refuse()  # this turn has no step left that would read a message
            if reason is not None:
                await asyncio.to_thread(self._conversation.reject_pending_actions, reason)
                return

    @property
    def _waits(self) -> bool:
        return self._conversation.state.execution_status is Status.WAITING_FOR_CONFIRMATION

    async def _confirm(self) -> str | None:
        """Ask for every action that waits; None when all may run, else the reason of the rejection."""
        pending = ConversationState.get_unmatched_actions(self._conversation.state.active_branch())
        self.asking = True
        try:
            answers = await asyncio.gather(*map(self._ask, pending))
        finally:
            self.asking = False
        return next((reason for reason in answers if reason is not None), None)

    def _pause(self) -> None:
        """Close the actions that wait: otherwise the next turn would run them."""
        state = self._conversation.state
        with state:
            self._conversation._emit_orphaned_action_errors()
            if state.execution_status is not Status.PAUSED:
                state.execution_status = Status.PAUSED

    def _failed(self) -> None:
        """Set the error status. If it cannot be written to the disk either, it is still right in memory."""
        state = self._conversation.state
        if state.execution_status in (Status.RUNNING, Status.WAITING_FOR_CONFIRMATION):
            try:
                state.execution_status = Status.ERROR
            except OSError:
                return
